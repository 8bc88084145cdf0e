"""A consumer group at work in a sandbox: one member that reads, commits and leaves, and reads on another time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata

from maxbrod.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.sandbox.cluster import Cluster

_POLL_MS: Final = 200
_TIMEOUT_S: Final = 120.0


def read_as_group(
    cluster: Cluster,
    group_id: str,
    counts: Mapping[str, int | None],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, list[int]]:
    """The offsets of the committed records that a member of the group reads of each topic, from where the group stands.

    So many of a topic as `counts` says, to its end for None; then it commits where it is, and leaves. For topics of one
    partition, in codecs that kafka-python reads by itself.
    """
    consumer = KafkaConsumer(
        *counts,
        **cluster.running_client_properties(),
        group_id=group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=5000,
        # A broker may hear of a topic after its members: without partitions, they ask again only when this is over.
        metadata_max_age_ms=1000,
    )
    try:
        return _Member(consumer, counts, time.monotonic() + timeout_s).read()
    finally:
        consumer.close(autocommit=False)


class _Member:
    def __init__(self, consumer: Any, counts: Mapping[str, int | None], deadline: float) -> None:  # noqa: ANN401 - untyped
        self._consumer = consumer
        self._counts = counts
        self._deadline = deadline
        self._read: dict[str, list[int]] = {topic: [] for topic in counts}

    def read(self) -> dict[str, list[int]]:
        while not self._done():
            if time.monotonic() > self._deadline:
                raise UnavailableError("a consumer group did not come to the end of its topics", hint="run it again")
            for where, records in self._consumer.poll(_POLL_MS).items():
                self._take(where, [each.offset for each in records])
        self._commit()
        return self._read

    def _take(self, where: Any, offsets: list[int]) -> None:  # noqa: ANN401 - kafka-python is untyped
        mine, count = self._read[where.topic], self._counts[where.topic]
        mine += offsets if count is None else offsets[: count - len(mine)]
        if len(mine) == count:
            self._consumer.pause(where)

    def _done(self) -> bool:
        assigned = {where.topic: where for where in self._consumer.assignment()}
        return assigned.keys() == self._counts.keys() and all(map(self._is_read, assigned.values()))

    def _is_read(self, where: Any) -> bool:  # noqa: ANN401 - kafka-python is untyped
        count = self._counts[where.topic]
        if count is not None:
            return len(self._read[where.topic]) >= count
        end = self._consumer.end_offsets([where])[where]
        return int(self._consumer.position(where)) >= int(end)

    def _commit(self) -> None:
        places = {
            where: self._read[where.topic][-1] + 1 for where in self._consumer.assignment() if self._read[where.topic]
        }
        self._consumer.commit({where: OffsetAndMetadata(offset, "", -1) for where, offset in places.items()})
