"""Reads the slices of one split as rows of the table, in a task. Works on whole batches, never on single records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.cuts import Cut
from maxbrod.batch.transactions import committed_batches
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.reader import decode_portions, read_logs, read_records
from maxbrod.storage.interface import Storage
from maxbrod.table.read.columns import are_in_rows, convert, needed
from maxbrod.table.read.counts import known_records
from maxbrod.table.read.scope import Scope, SliceRead

_UNREAD_ROWS: Final = 1 << 16
_UNPACKED_BYTES_MAX: Final = 128 << 20
"""The most that a batch may unpack to: every task holds its records several times on their way through the JVM."""
_PIECE_BYTES: Final = 16 << 20


def read_split(
    storage: Storage, reads: Iterable[SliceRead], scopes: Sequence[Scope], names: Sequence[str], *, committed: bool
) -> Iterator[pa.RecordBatch]:
    """Batches of the columns `names`, none of them empty, in the order of offsets."""
    for read in reads:
        cut = read.cut(scopes)
        count = known_records(read.stored, cut, committed=committed) if are_in_rows(names) else None
        if count is not None:
            yield from (convert(unread, read.source, names) for unread in _unread(count))
            continue
        columns = _columns(names, cut)
        if read.stored.details is not None:
            found = read_records(storage, read.stored, columns=columns)
        else:
            found = _native(storage, read.stored, cut, columns, committed=committed)
        for records in found:
            kept = _kept(records, cut)
            if kept.num_rows:
                yield from _small(convert(kept, read.source, names))


def _small(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in pieces: the JVM holds each as a whole, and a batch of a few kB may unpack to hundreds of MB."""
    step = max(1, rows.num_rows * _PIECE_BYTES // max(rows.nbytes, 1))
    return (rows.slice(first, step) for first in range(0, rows.num_rows, step))


def _unread(count: int) -> Iterator[pa.RecordBatch]:
    """`count` records of which no column is read."""
    for first in range(0, count, _UNREAD_ROWS):
        yield pa.RecordBatch.from_arrays([pa.nulls(min(_UNREAD_ROWS, count - first))], ["unread"])


def _columns(names: Sequence[str], cut: Cut) -> list[str]:
    timed = cut.since_ms is not None or cut.until_ms is not None
    return sorted({*needed(names), "offset", *(("timestamp_ms",) if timed else ())})


def _native(
    storage: Storage, stored: Slice, cut: Cut, columns: Sequence[str], *, committed: bool
) -> Iterator[pa.RecordBatch]:
    for data, headers in read_logs(storage, stored):
        visible = committed_batches(headers, stored.aborted) if committed else ~headers.control
        chosen = headers.take(visible & cut.touches(headers))
        yield from decode_portions(
            data,
            chosen,
            columns=columns,
            object_name=storage.name_of(stored.path),
            bytes_max=_UNPACKED_BYTES_MAX,
        )
        if cut.end_offset is not None and headers.last_offset[-1] + 1 >= cut.end_offset < stored.end_offset:
            # The rest of the slice need not be fetched. Every batch up to here was checked by its own CRC; the digest
            # of the slice can be checked only by reading all of it.
            return


def _kept(records: pa.RecordBatch, cut: Cut) -> pa.RecordBatch:
    offsets = number_column(records.column("offset"))
    timed = cut.since_ms is not None or cut.until_ms is not None
    keep = cut.keeps(offsets, number_column(records.column("timestamp_ms")) if timed else offsets)
    return records if keep.all() else records.filter(number_array(keep))
