"""The Arrow schema of records everywhere in maxbrod, and its columns from and to bare numpy buffers, without a copy.

The caller knows topic and partition: every buffer belongs to one partition. Header keys are binary, not strings,
because Kafka stores whatever bytes a client sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from maxbrod.errors import UsageError
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray


HEADER_TYPE: Final = pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(pa.field("header", HEADER_TYPE, nullable=False))
RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("sequence", pa.int32(), nullable=False),
        pa.field("transactional", pa.bool_(), nullable=False),
        pa.field("control", pa.bool_(), nullable=False),
    ]
)

_REQUIRED: Final = ("offset", "timestamp_ms", "key", "value")
_DEFAULTS: Final[dict[str, int | bool]] = {
    "timestamp_type": 0,
    "leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "sequence": -1,
    "transactional": False,
    "control": False,
}


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


def project(columns: list[str] | None) -> pa.Schema:
    """RECORD_SCHEMA cut to `columns`, in its own order; None is all of them."""
    if columns is None:
        return RECORD_SCHEMA
    if not columns:
        raise UsageError("no record column is requested", hint="to count records, sum the headers' count column")
    unknown = sorted(set(columns) - set(RECORD_SCHEMA.names))
    if unknown:
        raise UsageError(f"no such record column: {', '.join(unknown)}", hint=f"choose from {RECORD_SCHEMA.names}")
    return pa.schema([field for field in RECORD_SCHEMA if field.name in columns])


def conform(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records of a simpler source with every column of RECORD_SCHEMA. Missing ones get Kafka's defaults."""
    missing = [name for name in _REQUIRED if name not in records.schema.names]
    if missing:
        raise UsageError(f"records lack the column {', '.join(missing)}")
    arrays = [_column(records, field) for field in RECORD_SCHEMA]
    _check_range("offset", arrays[0], 0, None)
    _check_range("timestamp_type", arrays[2], TimestampType.NONE, TimestampType.LOG_APPEND)
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def _check_range(name: str, column: pa.Array, least: int, most: int | None) -> None:
    values = number_column(column)
    if len(values) and (values.min() < least or (most is not None and values.max() > most)):
        known = f"{least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"the record column {name} has {values.min()} to {values.max()}, but Kafka allows {known}")


def _column(records: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name in records.schema.names:
        column = records.column(field.name)
        try:
            column = column if column.type.equals(field.type) else column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"the record column {field.name} does not fit {field.type}: {error}") from error
        if not field.nullable and (column.null_count or (field.name == "headers" and _null_headers(column))):
            raise UsageError(f"the record column {field.name} must not be null")
        return column
    if field.name == "headers":
        nothing = pa.nulls(0, pa.binary())
        return headers_array(np.zeros(records.num_rows + 1, np.int32), nothing, nothing)
    return default_column(field, records.num_rows)


def default_column(field: pa.Field, rows: int) -> pa.Array:
    """Return Kafka's default for a field of RECORD_SCHEMA that tools which back up as consumers never see."""
    dtype = "?" if pa.types.is_boolean(field.type) else f"i{field.type.bit_width // 8}"
    return number_array(np.full(rows, _DEFAULTS[field.name], dtype))


def _null_headers(headers: pa.Array) -> bool:
    """True if any header, or any header key, is null. Kafka allows neither."""
    entries = headers.flatten()
    return bool(entries.null_count or entries.field(0).null_count)
