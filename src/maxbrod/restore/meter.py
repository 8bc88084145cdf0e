"""The progress of a restore, seen from the driver: the current log ends of the target against those of the plan.

Tasks report nothing, so it works with any Spark master. If brokers do not answer, the last known progress stands.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.work.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.config import KafkaConfig
    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan

_EVERY_S: Final = 1.0
_SHARE: Final = 0.1
"""The part of the time that is spent on asking: for 100,000 partitions that takes a while, and burdens the brokers."""
_LOOK_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The offsets that one target partition gets from `base` on, and the records and bytes they stand for."""

    where: TopicPartition
    base: int
    offsets: int
    bytes: float
    records: float

    def part(self, end: int) -> float:
        """The part that is complete when the log ends here."""
        return min(max((end - self.base) / self.offsets, 0.0), 1.0) if self.offsets > 0 else 1.0


def expected(plan: RestorePlan) -> list[Expected]:
    return [each for topic in plan.topics for each in (_spread(topic) if topic.target.repartitioned else _kept(topic))]


class RestoreMeter:
    """The progress of one plan. Use it in a `with`; one thread at a time calls `tasks_done`."""

    def __init__(self, kafka: KafkaConfig, plan: RestorePlan, on_progress: OnProgress, *, tasks: int) -> None:
        self._client = KafkaClient(kafka)
        self._on_progress = on_progress
        self._expected = expected(plan) if on_progress is not silent else []
        self._bytes_total, self._tasks = plan.bytes, tasks
        self._bytes = self._records = 0.0
        self._look_at = 0.0

    def __enter__(self) -> Self:
        self.tasks_done(0)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def tasks_done(self, count: int) -> None:
        """Called often."""
        if self._on_progress is silent:
            return
        if time.monotonic() >= self._look_at:
            self._look()
        self._on_progress(
            Progress(
                phase="restoring",
                bytes_done=round(self._bytes),
                bytes_total=self._bytes_total,
                records_done=round(self._records),
                tasks_done=min(count, self._tasks),
                tasks_total=self._tasks,
            )
        )

    def _look(self) -> None:
        began = time.monotonic()
        latest = dict.fromkeys((each.where for each in self._expected), LATEST)
        try:
            found = list_offsets(self._client, latest, deadline=Deadline.after(_LOOK_S)) if latest else {}
        except MaxbrodError:
            found = {}
        parts = [(each, each.part(found[each.where].offset)) for each in self._expected if each.where in found]
        # A new leader may report a lower log end for a moment.
        self._bytes = max(self._bytes, sum(each.bytes * part for each, part in parts))
        self._records = max(self._records, sum(each.records * part for each, part in parts))
        ended = time.monotonic()
        self._look_at = ended + max(_EVERY_S, (ended - began) / _SHARE)


def _kept(topic: TopicPlan) -> Iterator[Expected]:
    """The partitions of a topic that is not repartitioned."""
    target = topic.target
    for partition in topic.partitions:
        source = partition.source
        exact = partition.offsets.mode is OffsetsMode.EXACT
        yield Expected(
            where=TopicPartition(topic=target.name, partition=source.partition),
            base=source.first_offset if exact else target.bases[source.partition],
            offsets=source.asked_end - source.first_offset if exact else source.records,
            bytes=source.bytes,
            records=source.records,
        )


def _spread(topic: TopicPlan) -> Iterator[Expected]:
    """The distribution of keys is unknown: as if all partitions got the same number of records."""
    count = topic.target.partition_count
    records = sum(each.source.records for each in topic.partitions) / count
    size = sum(each.source.bytes for each in topic.partitions) / count
    for partition, base in enumerate(topic.target.bases):
        where = TopicPartition(topic=topic.target.name, partition=partition)
        yield Expected(where=where, base=base, offsets=round(records), bytes=size, records=records)
