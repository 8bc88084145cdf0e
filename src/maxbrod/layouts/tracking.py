"""Headers that a tool adds to each record it backs up, so that its origin can be told later. Column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import binary_array, headers_array, number_array, number_column
from maxbrod.batch.schema import HEADER_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def with_headers(records: pa.RecordBatch, added: Sequence[tuple[bytes, pa.Array]]) -> pa.RecordBatch:
    """`records` with a header more for each pair of a name and a value a record, behind those that they have."""
    if not added or not records.num_rows:
        return records
    headers = records.column("headers")
    own = np.diff(np.frombuffer(headers.buffers()[1], np.int32)[headers.offset : headers.offset + len(headers) + 1])
    ends = np.zeros(records.num_rows + 1, np.int32)
    np.cumsum(own + len(added), out=ends[1:])
    entries = pa.concat_arrays(
        [headers.flatten(), *(_entries(name, values, records.num_rows) for name, values in added)]
    )
    rows = number_array(_order(own, ends, len(added)))
    taken = entries.take(rows)
    column = headers_array(ends, taken.field(0), taken.field(1))
    return records.set_column(records.schema.get_field_index("headers"), records.schema.field("headers"), column)


def little_endian(values: pa.Array) -> pa.Array:
    """Each integer of a column as its 8 bytes."""
    numbers = np.ascontiguousarray(number_column(values), "<i8")
    return _even(numbers.view(np.uint8), len(numbers), 8)


def decimal(values: pa.Array) -> pa.Array:
    """Each integer of a column as text."""
    return pc.cast(pc.cast(values, pa.string()), pa.binary())


def constant(value: bytes, rows: int) -> pa.Array:
    return _even(np.tile(np.frombuffer(value, np.uint8), rows), rows, len(value))


def _entries(name: bytes, values: pa.Array, rows: int) -> pa.Array:
    return pa.StructArray.from_arrays([constant(name, rows), values], fields=list(HEADER_TYPE))


def _even(data: NDArray[np.uint8], rows: int, size: int) -> pa.Array:
    return binary_array(np.arange(rows + 1, dtype=np.int32) * np.int32(size), data, None)


def _order(own: NDArray[np.int32], ends: NDArray[np.int32], added: int) -> NDArray[np.int64]:
    """Where each entry of the new column stands in: all own ones, then all first added ones, then all second ones."""
    order = np.empty(int(ends[-1]), np.int64)
    is_own = np.ones(len(order), np.bool_)
    for each in range(added):
        at = ends[1:] - added + each
        order[at] = int(own.sum()) + each * len(own) + np.arange(len(own))
        is_own[at] = False
    order[is_own] = np.arange(int(own.sum()))
    return order
