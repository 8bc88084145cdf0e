"""Reads the slices of one split as rows of the table: what a task does. Nothing here looks at single records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.transactions import committed_batches
from maxbrod.layouts.decoding import decode_portions
from maxbrod.layouts.reading import read_logs, read_records
from maxbrod.table.read.columns import convert, needed, told_by_rows
from maxbrod.table.read.counting import known_records
from maxbrod.table.read.scope import cut_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.batch.cuts import Cut
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage
    from maxbrod.table.read.scope import Scope
    from maxbrod.table.read.splits import SliceRead

_UNREAD_ROWS: Final = 1 << 16


def read_split(
    storage: Storage, portions: Iterable[SliceRead], scopes: Sequence[Scope], names: Sequence[str], *, committed: bool
) -> Iterator[pa.RecordBatch]:
    """Batches of the columns `names`, none of them empty, in the order of offsets."""
    for portion in portions:
        cut = cut_of(scopes, portion.source.topic, portion.source.partition, portion.end_offset)
        count = known_records(portion.stored, cut, committed=committed) if told_by_rows(names) else None
        if count is not None:
            yield from (convert(each, portion.source, names) for each in _unread(count))
            continue
        columns = _columns(names, cut)
        if portion.stored.details is not None:
            found = read_records(storage, portion.stored, columns=columns)
        else:
            found = _native(storage, portion.stored, cut, columns, committed=committed)
        for records in found:
            kept = _kept(records, cut)
            if kept.num_rows:
                yield convert(kept, portion.source, names)


def _unread(count: int) -> Iterator[pa.RecordBatch]:
    """So many records, of which nothing is known but that they are there."""
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
        yield from decode_portions(data, chosen, columns=columns, object_name=storage.name_of(stored.path))
        if cut.end_offset is not None and headers.last_offset[-1] + 1 >= cut.end_offset < stored.end_offset:
            # What stands behind need not be fetched. Every batch until here was checked by its own checksum; the
            # digest of the whole is for who reads the whole.
            return


def _kept(records: pa.RecordBatch, cut: Cut) -> pa.RecordBatch:
    offsets = number_column(records.column("offset"))
    timed = cut.since_ms is not None or cut.until_ms is not None
    keep = cut.keeps(offsets, number_column(records.column("timestamp_ms")) if timed else offsets)
    return records if keep.all() else records.filter(number_array(keep))
