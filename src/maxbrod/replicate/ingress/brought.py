"""What a link has brought into a topic that others write to as well: its records name it in their headers.

The log is read as a consumer reads it. Everything is decided from columns of Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.batch.decode import decode
from maxbrod.batch.provenance import source_offsets
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from numpy.typing import NDArray

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a log tells about a link that has left no mark."""

    first: int | None
    """The lowest source offset of the records that are there; None: there are none."""
    last: int | None
    """The highest source offset of the records that are there; None: there are none."""
    all_seen: bool
    """Whether every record that was ever in the log was looked at."""
    compacted: bool
    """Whether brokers may have removed any of them."""


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
