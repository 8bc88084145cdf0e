"""Some records of one partition, from an offset on or from a time on. Starts no JVM.

A slice has no index, so the batches before the first record are passed over by their headers, and nothing of them is
decompressed. What aborted transactions wrote, and transaction markers, are no records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import RECORD_SCHEMA, conform, number_column
from maxbrod.batch.headers import NEWEST_MAGIC
from maxbrod.catalog.rows import Gap, Segment, decode_rows
from maxbrod.layouts.reader import decode_committed, read_foreign, read_logs
from maxbrod.model import INT64_MAX

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.model import PartitionId
    from maxbrod.storage.interface import Storage

_ROWS: Final = 64
"""Rows that are decoded at once: a partition may have a hundred thousand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedGap:
    """Offsets without data among those that were passed, and why."""

    first_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPage:
    """Records in the order of offsets, and the gaps between them."""

    records: pa.Table
    """As `RECORD_SCHEMA`."""
    gaps: tuple[PassedGap, ...]
    next_offset: int | None
    """Where the next page begins; None: the archive ends."""


def read_page(
    archive: Archive, place: PartitionId, first: int, *, count: int, bytes_max: int, end: int = INT64_MAX
) -> RecordPage:
    """The next `count` records from an offset on, below `end`; fewer if they have more than `bytes_max` bytes.

    CorruptDataError: an object is damaged or missing.
    """
    found: list[pa.RecordBatch] = []
    gaps: list[PassedGap] = []
    size = rows = 0
    for row in _rows(archive, place, first, end):
        if isinstance(row, Gap):
            gaps.append(
                PassedGap(first_offset=row.base_offset, end_offset=row.end_offset, reason=str(row.reason)),
            )
            continue
        for batch in _records(archive.storage, archive.erasures().slice_of(row), first):
            offsets = number_column(batch.column("offset"))
            low, high = (int(place) for place in offsets.searchsorted([first, end]))
            part = batch.slice(low, min(high - low, count - rows))
            if not part.num_rows:
                continue
            found.append(part)
            rows, size = rows + part.num_rows, size + part.nbytes
            if rows == count or size >= bytes_max:
                return _page(found, gaps, more=True)
    return _page(found, gaps, more=False)


def _page(found: Sequence[pa.RecordBatch], gaps: Sequence[PassedGap], *, more: bool) -> RecordPage:
    records = pa.Table.from_batches([conform(batch) for batch in found], RECORD_SCHEMA)
    last = pc.max(records["offset"]).as_py()
    return RecordPage(records=records, gaps=tuple(gaps), next_offset=last + 1 if more else None)


def find_offset(archive: Archive, place: PartitionId, time_ms: int) -> int | None:
    """The first offset whose record has this timestamp or a later one; None: there is none."""
    rows = archive.catalog.rows(topic_id=place.topic_id, partition=place.partition, timestamps=(time_ms, INT64_MAX))
    for row in _decoded(rows):
        if isinstance(row, Gap):
            continue
        for batch in _records(archive.storage, archive.erasures().slice_of(row), row.base_offset, since_ms=time_ms):
            late = number_column(batch.column("timestamp_ms")) >= time_ms
            if late.any():
                return int(number_column(batch.column("offset"))[late.argmax()])
    return None


def read_partition(archive: Archive, place: PartitionId) -> Iterator[pa.RecordBatch]:
    """All records of a partition."""
    for row in _rows(archive, place, 0, INT64_MAX):
        if isinstance(row, Segment):
            yield from _records(archive.storage, archive.erasures().slice_of(row), 0)


def _rows(archive: Archive, place: PartitionId, first: int, end: int) -> Iterator[Segment | Gap]:
    rows = archive.catalog.rows(topic_id=place.topic_id, partition=place.partition, offsets=(first, end))
    return _decoded(rows)


def _decoded(rows: pa.Table) -> Iterator[Segment | Gap]:
    for start in range(0, rows.num_rows, _ROWS):
        for row in decode_rows(rows.slice(start, _ROWS)):
            if isinstance(row, (Segment, Gap)):
                yield row


def _records(storage: Storage, stored: Slice, first: int, *, since_ms: int | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a slice, without batches that end before an offset, or whose records are all older."""
    if stored.details is not None:
        yield from read_foreign(storage, stored.details)
        return
    for data, headers in read_logs(storage, stored):
        wanted = headers.last_offset >= first
        if since_ms is not None:
            # Some clients sent batches whose header has a highest timestamp below that of the first record.
            # Those of old messages are inside.
            old = headers["magic"] != NEWEST_MAGIC
            wanted &= (headers["max_timestamp"] >= since_ms) | headers.misstates_highest | old
        yield from decode_committed(data, headers.take(wanted), stored.aborted)
