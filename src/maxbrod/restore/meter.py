"""The progress of a restore, seen from the driver: what is at the target now, against what the plan brings there.

Tasks report nothing, so it works with any Spark master. If brokers do not answer, the last known progress stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.request import OffsetsMode
from maxbrod.work.progress import OnProgress, Progress, silent

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig
    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan

_EVERY_S: Final = 1.0
_SHARE: Final = 0.1
"""The part of the time that is spent on looking: 100,000 partitions take a while, and burden the brokers."""
_LOOK_S: Final = 2.0


class RestoreMeter:
    """`look` returns the bytes and the records at the target. One thread at a time calls `seen`."""

    def __init__(
        self,
        look: Callable[[], tuple[float, float]],
        on_progress: OnProgress,
        *,
        bytes_total: int,
        tasks: int,
        every_s: float = 0.0,
    ) -> None:
        self._look, self._on_progress = look, on_progress
        self._bytes_total, self._tasks, self._every_s = bytes_total, tasks, every_s
        self._bytes = self._records = 0.0
        self._look_at = 0.0

    def seen(self, tasks: int, size: int) -> None:
        """Look at the target, which shows what has arrived; what the tasks have read does not count."""
        del size
        if self._on_progress is silent:
            return
        began = time.monotonic()
        if began >= self._look_at:
            there, records = self._look()
            # A new leader may report a lower log end for a moment, and a task that failed removes what it wrote.
            self._bytes = max(self._bytes, min(there, self._bytes_total))
            self._records = max(self._records, records)
            ended = time.monotonic()
            self._look_at = ended + max(self._every_s, (ended - began) / _SHARE)
        self._on_progress(
            Progress(
                phase="restoring",
                bytes_done=round(self._bytes),
                bytes_total=self._bytes_total,
                records_done=round(self._records),
                tasks_done=min(tasks, self._tasks),
                tasks_total=self._tasks,
            )
        )


@contextmanager
def metering_logs(
    kafka: KafkaConfig, plan: RestorePlan, on_progress: OnProgress, *, tasks: int
) -> Iterator[RestoreMeter]:
    """Look at the log ends of the target, beginning now."""
    with KafkaClient(kafka) as client:
        look = partial(_restored, client, expected(plan) if on_progress is not silent else [])
        meter = RestoreMeter(look, on_progress, bytes_total=plan.bytes, tasks=tasks, every_s=_EVERY_S)
        meter.seen(0, 0)
        yield meter


def _restored(client: KafkaClient, logs: Sequence[Expected]) -> tuple[float, float]:
    latest = dict.fromkeys((log.where for log in logs), LATEST)
    try:
        found = list_offsets(client, latest, deadline=Deadline.after(_LOOK_S)) if latest else {}
    except MaxbrodError:
        found = {}
    parts = [(log, log.part(found[log.where].offset)) for log in logs if log.where in found]
    return sum(log.bytes * part for log, part in parts), sum(log.records * part for log, part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The offsets that one target partition gets from `base` on, and the records and bytes they stand for."""

    where: TopicPartition
    base: int
    offsets: int
    bytes: float
    records: float

    def part(self, end: int) -> float:
        """Return the part that is complete when the log ends here."""
        return min(max((end - self.base) / self.offsets, 0.0), 1.0) if self.offsets > 0 else 1.0


def expected(plan: RestorePlan) -> list[Expected]:
    return [log for topic in plan.topics for log in (_spread(topic) if topic.target.repartitioned else _kept(topic))]


def _kept(topic: TopicPlan) -> Iterator[Expected]:
    """Yield the partitions of a topic that is not repartitioned."""
    for where, partition in topic.placed():
        source, exact = partition.source, partition.offsets.mode is OffsetsMode.EXACT
        yield Expected(
            where=where,
            base=source.first_offset if exact else topic.target.bases[source.partition],
            offsets=source.asked_end - source.first_offset if exact else source.records,
            bytes=source.bytes,
            records=source.records,
        )


def _spread(topic: TopicPlan) -> Iterator[Expected]:
    """The distribution of keys is unknown: as if all partitions got the same number of records."""
    count = topic.target.partition_count
    records = sum(partition.source.records for partition in topic.partitions) / count
    size = sum(partition.source.bytes for partition in topic.partitions) / count
    for number, base in enumerate(topic.target.bases):
        where = TopicPartition(topic=topic.target.name, partition=number)
        yield Expected(where=where, base=base, offsets=round(records), bytes=size, records=records)
