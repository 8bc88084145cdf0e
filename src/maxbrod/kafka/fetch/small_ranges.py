"""Reads many small ranges with few requests: a thousand quiet partitions would otherwise take a thousand round trips.

This is the fast path only. A range that does not arrive whole, whose leader has moved, whose log starts within a batch,
or whose bytes are damaged is left out, and `ranges` reads it with retries.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.batch.cuts import may_begin_before
from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError, UnavailableError, UnsupportedFormatError, UsageError
from maxbrod.kafka.fetch.request import Chunk, FetchedPartition, PartitionFetch, fetch_request, read_answer, select
from maxbrod.kafka.wire.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition

ANSWER_BYTES: Final = 32 << 20
"""The limit of one response. A range that the broker cut there is left out; one without bytes is requested again."""
_RANGE_BYTES_MIN: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallRange:
    """Offsets [start, end) of a partition, about `bytes_estimate` of them."""

    where: TopicPartition
    topic_id: UUID
    start: int
    end: int
    bytes_estimate: int
    floor: int | None = None
    """See `ranges.read_range`."""


def read_small_ranges(
    client: KafkaClient, ranges: Sequence[SmallRange], *, read_committed: bool = True
) -> Iterator[tuple[SmallRange, Chunk]]:
    """Yield the ranges that arrived whole, each as one chunk, in no particular order."""
    for node_id, asked in _by_leader(client, ranges).items():
        waiting = asked
        while waiting:
            answered = dict(_ask(client, node_id, waiting, read_committed=read_committed))
            yield from ((wanted, chunk) for wanted, chunk in answered.items() if chunk is not None)
            if not answered:
                break
            waiting = [pair for pair in waiting if pair[0] not in answered]


def _by_leader(client: KafkaClient, ranges: Iterable[SmallRange]) -> dict[int, list[tuple[SmallRange, int]]]:
    """Ranges by leader. A request can name a partition only once, so only its first range is included."""
    groups: dict[int, list[tuple[SmallRange, int]]] = defaultdict(list)
    named: set[TopicPartition] = set()
    for wanted in ranges:
        if wanted.where in named:
            continue
        named.add(wanted.where)
        try:
            leader = client.leader(wanted.where, deadline=Deadline.after(client.request_timeout_s))
        except (UnavailableError, UsageError):
            continue
        if leader.topic.topic_id == wanted.topic_id:
            groups[leader.node_id].append((wanted, leader.leader_epoch))
    return groups


def _ask(
    client: KafkaClient, node_id: int, asked: Iterable[tuple[SmallRange, int]], *, read_committed: bool
) -> Iterator[tuple[SmallRange, Chunk | None]]:
    """The content of one response: a chunk, or None for a range to be read alone. Without a response, nothing."""
    wanted = [
        PartitionFetch(
            topic_id=small.topic_id,
            partition=small.where.partition,
            offset=small.start,
            leader_epoch=epoch,
            bytes_max=max(4 * small.bytes_estimate, _RANGE_BYTES_MIN),
        )
        for small, epoch in asked
    ]
    request = fetch_request(wanted, bytes_max=ANSWER_BYTES, read_committed=read_committed)
    limit = Deadline.after(client.request_timeout_s)
    try:
        connection = client.connection(node_id, deadline=limit)
        answer = read_answer(connection.receive(connection.send(request, limit), limit))
    except (UnavailableError, CorruptDataError):
        return
    connection.throttle(answer.throttle_ms)
    for small, _ in asked:
        found = answer.partitions.get((small.topic_id, small.where.partition))
        if found is not None and (found.error_code or found.diverging or len(found.records)):
            yield small, _whole(small, found)


def _whole(wanted: SmallRange, found: FetchedPartition) -> Chunk | None:
    if found.error_code or found.diverging:
        return None
    try:
        headers = walk(found.records, check_crc=False)
        if not len(headers):
            return None
        selection = select(found, headers, wanted.start, wanted.end, floor=wanted.floor)
        if selection.end != wanted.end or may_begin_before(selection.headers, found.log_start_offset):
            return None
        return selection.checked(str(wanted.where))
    except (CorruptDataError, UnsupportedFormatError):
        return None
