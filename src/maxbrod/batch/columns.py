"""Arrow's variable-length columns from and to bare numpy buffers, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from maxbrod.batch.schema import HEADER_TYPE, HEADERS_TYPE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


class BinaryColumn(NamedTuple):
    """`data[ends[i]:ends[i + 1]]` is value i, unless `valid[i]` is false: then it is null."""

    ends: NDArray[np.int32]
    data: NDArray[np.uint8]
    valid: NDArray[np.bool_]


class GrowingBytes:
    """Bytes that grow at the end. Pages that are never written cost no memory, so a large first capacity is cheap."""

    __slots__ = ("data", "size")

    def __init__(self, capacity: int) -> None:
        self.data: NDArray[np.uint8] = np.empty(capacity, np.uint8)
        self.size = 0

    def reserve(self, size: int) -> None:
        """Make it `size` bytes long. The added bytes are undefined."""
        if size > self.data.size:
            grown = np.empty(max(size, 2 * self.data.size), np.uint8)
            grown[: self.size] = self.data[: self.size]
            self.data = grown
        self.size = size

    def taken(self) -> NDArray[np.uint8]:
        return self.data[: self.size]


def number_array(values: NDArray[Any]) -> pa.Array:
    """An Arrow array over integers or booleans. Not by `pa.array`, which imports pandas and takes half a second."""
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(
            pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))]
        )
    contiguous = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(contiguous)])


def text_array(values: Iterable[str]) -> pa.Array:
    """An Arrow array of few texts without nulls. Not by `pa.array`: in a worker pandas would take 52 MB as well."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def binary_array(ends: NDArray[np.int32], data: NDArray[np.uint8], valid: NDArray[np.bool_] | None) -> pa.Array:
    nulls = 0 if valid is None else len(valid) - int(np.count_nonzero(valid))
    bitmap = None if valid is None or not nulls else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.binary(), len(ends) - 1, [bitmap, pa.py_buffer(ends), pa.py_buffer(data)], null_count=nulls
    )


def headers_array(ends: NDArray[np.int32], keys: pa.Array, values: pa.Array) -> pa.Array:
    entries = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    return pa.Array.from_buffers(HEADERS_TYPE, len(ends) - 1, [None, pa.py_buffer(ends)], 0, children=[entries])


def binary_column(array: pa.Array) -> BinaryColumn:
    """The buffers of a binary array. A sliced array keeps its parent's data: `ends` then does not begin at 0."""
    bitmap, ends, data = array.buffers()
    rows = slice(array.offset, array.offset + len(array))
    if len(array) == 0:
        return BinaryColumn(np.zeros(1, np.int32), np.empty(0, np.uint8), np.empty(0, np.bool_))
    return BinaryColumn(
        np.frombuffer(ends, np.int32)[rows.start : rows.stop + 1],
        np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
        _bits(bitmap, rows),
    )


def number_column(array: pa.Array) -> NDArray[Any]:
    """The values of an array of integers or booleans without nulls; the inverse of `number_array`."""
    rows = slice(array.offset, array.offset + len(array))
    if pa.types.is_boolean(array.type):
        return _bits(array.buffers()[1], rows)
    return np.frombuffer(array.buffers()[1], f"i{array.type.bit_width // 8}", rows.stop)[rows]


def _bits(bitmap: pa.Buffer | None, rows: slice) -> NDArray[np.bool_]:
    if bitmap is None:
        return np.ones(rows.stop - rows.start, np.bool_)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=rows.stop, bitorder="little")
    return bits[rows.start :].view(np.bool_)


def headers_columns(array: pa.Array) -> tuple[NDArray[np.int32], BinaryColumn, BinaryColumn]:
    """List ends, keys and values of a headers array. `ends` counts from the start of the children's buffers."""
    if len(array) == 0:
        empty = binary_column(pa.nulls(0, pa.binary()))
        return np.zeros(1, np.int32), empty, empty
    ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    entries = array.values  # not flatten(): that would drop the entries before a slice
    return ends, binary_column(entries.field(0)), binary_column(entries.field(1))
