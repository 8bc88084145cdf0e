"""Converts records to the columns of a file and back. Works on columns only, never on single records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import (
    RECORD_SCHEMA,
    binary_array,
    binary_column,
    headers_array,
    headers_columns,
    number_array,
    number_column,
)
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.parquet.format import (
    FILE_SCHEMA,
    FLAGS,
    HEADERS,
    NANOSECONDS,
    NO_TIMESTAMP,
    TIMESTAMP_MS_MAX,
)
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_DEFAULTS: Final[dict[str, int | bool]] = {
    "leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "sequence": -1,
    "transactional": False,
    "control": False,
}


def to_file(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records of RECORD_SCHEMA as the columns of a file."""
    kinds = number_column(records.column("timestamp_type"))
    nanoseconds, beyond = _nanoseconds(number_column(records.column("timestamp_ms")), kinds)
    headers, header_nulls = _headers_to_file(records.column("headers"))
    arrays = [
        _filled(records.column("key")),
        _filled(records.column("value")),
        number_array(number_column(records.column("offset")).view(np.uint64)),
        number_array(nanoseconds),
        headers,
        pc.is_null(records.column("key")),
        pc.is_null(records.column("value")),
        header_nulls,
        records.column("timestamp_type"),
        number_array(beyond),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


def from_file(found: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a file, the tool's or ours, as records of `schema`, which is RECORD_SCHEMA or a part of it."""
    arrays = [_record_column(found, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_written(found: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a file, the tool's or ours, as we write them. Timestamps keep their precision."""
    ours = to_file(from_file(found, RECORD_SCHEMA))
    times = number_array(_numbers(found, "timestamp"))
    return ours.set_column(ours.schema.get_field_index("timestamp"), ours.schema.field("timestamp"), times)


def offsets_of(found: pa.RecordBatch) -> NDArray[np.int64]:
    """The offsets. CorruptDataError: one exceeds Kafka's 63 bits."""
    offsets = _numbers(found, "offset")
    if offsets.size and offsets.min() < 0:
        raise CorruptDataError("an offset has more than 63 bits")
    return offsets


def _record_column(found: pa.RecordBatch, field: pa.Field) -> pa.Array:
    if field.name in _BUILDERS:
        return _BUILDERS[field.name](found)
    kind = "?" if pa.types.is_boolean(field.type) else f"i{field.type.bit_width // 8}"
    return number_array(np.full(found.num_rows, _DEFAULTS[field.name], kind))


def _nanoseconds(
    milliseconds: NDArray[np.int64], kinds: NDArray[np.int8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Timestamps in nanoseconds, and the milliseconds to add if they do not fit."""
    fitting = np.clip(milliseconds, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX)
    nanoseconds = fitting * NANOSECONDS
    nothing = kinds == TimestampType.NONE
    nanoseconds[nothing] = NO_TIMESTAMP
    return nanoseconds, milliseconds - np.where(nothing, -1, fitting)


def _milliseconds(found: pa.RecordBatch) -> pa.Array:
    nanoseconds = _numbers(found, "timestamp")
    milliseconds = nanoseconds // NANOSECONDS  # rounds down, before 1970 too: Kafka has no fractions
    milliseconds[nanoseconds == NO_TIMESTAMP] = -1
    if "timestamp_beyond_ms" in found.schema.names:
        milliseconds = milliseconds + _numbers(found, "timestamp_beyond_ms")
    return number_array(milliseconds)


def _timestamp_types(found: pa.RecordBatch) -> pa.Array:
    if "timestamp_type" not in found.schema.names:
        nothing = _numbers(found, "timestamp") == NO_TIMESTAMP
        return number_array(np.where(nothing, TimestampType.NONE, TimestampType.CREATE).astype(np.int8))
    kinds = _numbers(found, "timestamp_type")
    if kinds.size and (kinds.min() < TimestampType.NONE or kinds.max() > TimestampType.LOG_APPEND):
        raise CorruptDataError(f"a timestamp has the unknown type {kinds.min()} or {kinds.max()}")
    return number_array(kinds.astype(np.int8))


def _blobs(found: pa.RecordBatch, name: str) -> pa.Array:
    column = _binary(found.column(name))
    flags = f"{name}_null"
    return _with_nulls(column, _flags(found.column(flags))) if flags in found.schema.names else column


def _headers_from_file(found: pa.RecordBatch) -> pa.Array:
    column = found.column("headers")
    if not _is_headers(column.type):
        raise UnsupportedFormatError(f"the column headers is {column.type}, not a list of keys and values")
    if column.null_count:
        raise CorruptDataError("a record has null for its headers")
    ends = _list_ends(column)
    entries = column.values
    keys, values = _binary(pc.struct_field(entries, "key")), _binary(pc.struct_field(entries, "value"))
    if entries.null_count or keys.null_count:
        raise CorruptDataError("a header, or the key of one, is null")
    if "header_value_null" in found.schema.names:
        values = _with_nulls(values, _header_flags(found.column("header_value_null"), ends, len(values)))
    return headers_array(np.ascontiguousarray(ends), keys, values)


def _header_flags(column: pa.Array, ends: NDArray[np.int32], entries: int) -> NDArray[np.bool_]:
    """One flag for each of the `entries` headers in the buffers, of which those within `ends` count."""
    if not column.type.equals(FLAGS) and not pa.types.is_list(column.type):
        raise UnsupportedFormatError(f"the column header_value_null is {column.type}, not a list of flags")
    own = _list_ends(column)
    if column.null_count or not np.array_equal(own - own[0], ends - ends[0]):
        raise CorruptDataError("the number of header value flags differs from the number of headers")
    flags = np.zeros(entries, np.bool_)
    flags[ends[0] : ends[-1]] = _flags(column.values)[own[0] : own[-1]]
    return flags


def _headers_to_file(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    ends, _, values = headers_columns(headers)
    ends = np.ascontiguousarray(ends)
    entries = headers.values
    pair = [_filled(entries.field(0)), _filled(entries.field(1))] if len(headers) else [_nothing(), _nothing()]
    children = pa.StructArray.from_arrays(pair, fields=list(HEADERS.value_type))
    flags = number_array(~values.valid)
    buffers = [None, pa.py_buffer(ends)]
    return (
        pa.Array.from_buffers(HEADERS, len(headers), buffers, 0, children=[children]),
        pa.Array.from_buffers(FLAGS, len(headers), buffers, 0, children=[flags]),
    )


def _filled(column: pa.Array) -> pa.Array:
    """Nulls as empty bytes, without the bytes that a null may have in its buffers."""
    return pc.fill_null(column, _EMPTY) if column.null_count else column


def _with_nulls(column: pa.Array, nulls: NDArray[np.bool_]) -> pa.Array:
    if not nulls.any():
        return column
    ends, data, valid = binary_column(column)
    return binary_array(np.ascontiguousarray(ends), data, valid & ~nulls)


def _binary(column: pa.Array) -> pa.Array:
    if column.type.equals(pa.binary()):
        return column
    try:
        return column.cast(pa.binary())
    except pa.ArrowException as error:
        raise UnsupportedFormatError(f"a column of bytes is {column.type}") from error


def _numbers(found: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """A column of integers. Unsigned 64-bit values are reinterpreted: those that are too large become negative."""
    column = found.column(name)
    if not pa.types.is_integer(column.type):
        raise UnsupportedFormatError(f"the column {name} is {column.type}, not an integer")
    if column.null_count:
        raise CorruptDataError(f"the column {name} has a null")
    if not len(column):
        return np.empty(0, np.int64)
    return number_column(column).astype(np.int64, copy=False)


def _flags(column: pa.Array) -> NDArray[np.bool_]:
    if not pa.types.is_boolean(column.type) or column.null_count:
        raise UnsupportedFormatError(f"a column of flags is {column.type}, or has nulls")
    return number_column(column) if len(column) else np.empty(0, np.bool_)


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    return {"key", "value"} <= {field.name for field in kind.value_type}


def _list_ends(column: pa.Array) -> NDArray[np.int32]:
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _nothing() -> pa.Array:
    return pa.nulls(0, pa.binary())


_EMPTY: Final = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.zeros(2, np.int32)), pa.py_buffer(b"")])[0]
_BUILDERS: Final[dict[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "offset": lambda found: number_array(offsets_of(found)),
    "timestamp_ms": _milliseconds,
    "timestamp_type": _timestamp_types,
    "key": lambda found: _blobs(found, "key"),
    "value": lambda found: _blobs(found, "value"),
    "headers": _headers_from_file,
}
