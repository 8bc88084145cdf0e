"""Records on their way into a layout: checked, cut to what the layout takes, and as the buffers that kernels read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.batch.columns import BinaryColumn, binary_column, headers_columns, number_array, number_column
from maxbrod.batch.conform import conform
from maxbrod.batch.kernels import sealed
from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray


class RecordBuffers:
    """The columns of a batch of RECORD_SCHEMA as read-only arrays, in the order in which kernels take them."""

    __slots__ = ("header_ends", "header_key", "header_value", "key", "kind", "offset", "rows", "timestamp", "value")

    def __init__(self, records: pa.RecordBatch) -> None:
        self.rows = records.num_rows
        self.offset = sealed(number_column(records.column("offset")))
        self.timestamp = sealed(number_column(records.column("timestamp_ms")))
        self.kind = sealed(number_column(records.column("timestamp_type")))
        self.key = _sealed(binary_column(records.column("key")))
        self.value = _sealed(binary_column(records.column("value")))
        ends, header_key, header_value = headers_columns(records.column("headers"))
        self.header_ends = sealed(ends)
        self.header_key = _sealed(header_key)
        self.header_value = _sealed(header_value)

    def shape(self) -> tuple[NDArray[Any], ...]:
        """All that it takes to know how long keys, values and headers are."""
        key, value, header_value = self.key, self.value, self.header_value
        return (
            *(key.ends, key.valid, value.ends, value.valid),
            *(self.header_ends, self.header_key.ends, header_value.ends, header_value.valid),
        )

    def all(self) -> tuple[NDArray[Any], ...]:
        """Offset, timestamp, its type; ends, data and validity of keys and values; the same of headers."""
        return (
            *(self.offset, self.timestamp, self.kind),
            *(*self.key, *self.value),
            *(self.header_ends, *self.header_key, *self.header_value),
        )


def _sealed(column: BinaryColumn) -> BinaryColumn:
    return BinaryColumn(*(sealed(part) for part in column))


def consumable(batches: Iterable[pa.RecordBatch], position: int) -> Iterator[pa.RecordBatch]:
    """What a consumer would see of `batches` from `position` on, as batches that have a record at least.

    Markers of transactions are left out, and records that are archived already. RefusedError: offsets do not rise.
    """
    last = -1
    for batch in batches:
        records = conform(batch)
        offset = number_column(records.column("offset"))
        wrong = np.flatnonzero(np.diff(offset, prepend=np.int64(last)) <= 0)
        if wrong.size:
            row = int(wrong[0])
            raise RefusedError(
                f"a record stands behind offset {int(offset[row - 1]) if row else last}, where offsets must rise",
                offset=int(offset[row]),
                hint="give the records of one partition in the order of their offsets, each once",
            )
        if offset.size:
            last = int(offset[-1])
        keep = (offset >= position) & ~number_column(records.column("control"))
        if not keep.all():
            records = records.filter(number_array(keep))
        if records.num_rows:
            yield records
