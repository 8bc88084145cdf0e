"""The positions of a link that appends: taken before anything is appended, and committed with the records.

Each source topic has a transactional id for each destination partition. Taking it fences whoever had it before, and
ends that one's transaction. A position is a mark: a committed offset of the link's group. If a link appends several
source topics to one topic, they have groups of their own, because a group has one offset for each partition; only one
that was alone at first stays in the link's own group.

Records that a link has appended name it in their headers, so a log tells which they are, also without a position. It is
read as a consumer reads it, and everything is decided from columns of Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.batch.decode import decode
from maxbrod.batch.provenance import source_offsets
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.errors import MaxbrodError, ProducerFencedError, UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.transactions import Transaction, begin, commit_offsets_in, end, longest_timeout_ms
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.replicate.link import Link, LinkMark, PositionKey, is_position_of, read_marks
from maxbrod.replicate.link_lease import read_committed

if TYPE_CHECKING:
    from numpy.typing import NDArray


TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Brokers allow 15 minutes by default. A transaction is longer than the limits of a task if the source's own are."""
# Other answers to a producer whose transaction has ended by a timeout.
_OVER: Final = (
    "INVALID_TXN_STATE",
    "INVALID_PRODUCER_ID_MAPPING",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "UNKNOWN_PRODUCER_ID",
    "TRANSACTION_ABORTABLE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The right to append to a partition, and how far the link has come."""

    key: PositionKey
    transaction: Transaction
    group_id: str
    """The group that has the mark, or gets it."""
    mark: LinkMark | None
    """None: the link has not begun, or brokers have forgotten it."""


def is_over(error: MaxbrodError) -> bool:
    """True if another instance, or a timeout, has ended a transaction. Nothing of it is committed."""
    return isinstance(error, ProducerFencedError) or any(code in error.message for code in _OVER)


def take_position(client: KafkaClient, link: Link, key: PositionKey, *, joined: bool, patience_s: float) -> Position:
    """Fence every other instance, then read how far the link has come."""
    source, where = key
    name = link.transactional_id(key)
    try:
        transaction = begin(client, name, timeout_ms=TRANSACTION_TIMEOUT_MS, patience_s=patience_s)
    except UsageError as error:
        if "INVALID_TRANSACTION_TIMEOUT" not in error.message:
            raise
        transaction = begin(client, name, timeout_ms=longest_timeout_ms(client), patience_s=patience_s)
    taken = False
    groups = (link.group_id, link.group_of(source))
    for group_id in reversed(groups) if joined else groups:
        mark = read_marks(read_committed(client, group_id, [where], patience_s=patience_s)).get(where)
        if is_position_of(mark, source):
            return Position(key=key, transaction=transaction, group_id=group_id, mark=mark)
        taken = taken or mark is not None
    # Another source may begin at the same time, unless this one is the only one.
    return Position(key=key, transaction=transaction, group_id=groups[joined or taken], mark=None)


def put_mark(client: KafkaClient, position: Position, mark: LinkMark, *, patience_s: float) -> None:
    """Commit a mark, with all that was appended in the transaction."""
    _, where = position.key
    offsets = [mark.committed(where)]
    commit_offsets_in(client, position.transaction, position.group_id, offsets, patience_s=patience_s)
    end(client, position.transaction, commit=True, patience_s=patience_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The records of a link that has left no mark, as a log tells."""

    first: int | None
    """The lowest source offset of the records that are there; None: there are none."""
    last: int | None
    """The highest source offset of the records that are there; None: there are none."""
    all_seen: bool
    """True if every record that was ever in the log was looked at."""
    compacted: bool
    """True if brokers may have removed any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Records of a destination log, in order. The log has no others from the end of the one before to `end`."""

    offset: NDArray[np.int64]
    sources: tuple[NDArray[np.int64], ...]
    """For each name that was asked for: the offset of each record at the source; -1: others have brought it."""
    end: int
    bytes: int

    @property
    def source(self) -> NDArray[np.int64]:
        """If one name was asked for."""
        (found,) = self.sources
        return found


def look_for_brought(
    client: KafkaClient, where: TopicPartition, topic_id: UUID, restore_id: str, *, patience_s: float
) -> Brought:
    """Read a whole log for the records of a link."""
    start, end = stable_extent(client, where, patience_s=patience_s)
    first, last = None, None
    for seen in read_brought(client, where, (start, end), topic_id, restore_id, patience_s=patience_s):
        source = seen.source[seen.source >= 0]
        if len(source):
            first = int(source.min()) if first is None else min(first, int(source.min()))
            last = int(source.max()) if last is None else max(last, int(source.max()))
    if end == 0:
        return Brought(first=None, last=None, all_seen=True, compacted=False)
    topic = capture(client, [where.topic], (), deadline=Deadline.after(patience_s)).topic(where.topic)
    compacted = topic is None or bool(topic.compacted)
    return Brought(first=first, last=last, all_seen=start == 0 and not compacted, compacted=compacted)


def first_brought(
    client: KafkaClient,
    where: TopicPartition,
    extent: tuple[int, int],
    topic_id: UUID,
    restore_id: str,
    *,
    patience_s: float,
) -> int | None:
    """The source offset of the first record of a range that the link has brought; None: there is none."""
    for seen in read_brought(client, where, extent, topic_id, restore_id, patience_s=patience_s):
        ours = seen.source >= 0
        if ours.any():
            return int(seen.source[int(ours.argmax())])
    return None


def stable_extent(client: KafkaClient, where: TopicPartition, *, patience_s: float) -> tuple[int, int]:
    """The log start, and the last stable offset: everything below is decided."""
    deadline = Deadline.after(patience_s)
    start = list_offsets(client, {where: EARLIEST}, deadline=deadline)[where].offset
    end = list_offsets(client, {where: LATEST}, deadline=deadline, read_committed=True)[where].offset
    return start, end


def read_brought(
    client: KafkaClient,
    where: TopicPartition,
    extent: tuple[int, int],
    topic_id: UUID,
    *restore_ids: str,
    patience_s: float,
) -> Iterator[Seen]:
    """The committed records of a range, each with its source offset if a link has brought it under these names."""
    start, end = extent
    for chunk in read_range(client, where, start, end, topic_id=topic_id, floor=0, patience_s=patience_s):
        aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted)
        headers = chunk.headers.take(committed_batches(chunk.headers, aborted) & (chunk.headers["count"] != 0))
        offset = np.empty(0, np.int64)
        sources = tuple(offset for _ in restore_ids)
        if len(headers):
            records = decode(chunk.data, headers, columns=["offset", "headers"], check_crc=False)
            offset = number_column(records.column("offset"))
            kept = (offset >= start) & (offset < end)
            offset, named = offset[kept], records.column("headers")
            sources = tuple(source_offsets(named, each)[kept] for each in restore_ids)
        yield Seen(offset=offset, sources=sources, end=min(chunk.end, end), bytes=chunk.data.size)
