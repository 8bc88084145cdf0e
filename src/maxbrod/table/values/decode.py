"""Decodes Avro and Protobuf values into Arrow columns, as they are or in the format of Confluent's serializers.

The type of a value is a tree of nodes. A kernel walks all values twice. First it counts how often each node occurs.
Then it writes two numbers for each occurrence to one tape: the value or its position, and its length, -1 for null.

Confluent's values begin with a zero byte and the id of a schema in four bytes. Protobuf has message indexes after that:
their number, and the indexes. Each value is decoded by the schema of its own id and converted to the type of the newest
schema, so that a column has one type: fields by name, with defaults for those that are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import binary_array, binary_column
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.avro.program import Node, Program, Shape
from maxbrod.layouts.kernels import gather, running_ends
from maxbrod.table.values import avro_kernels, protobuf_kernels

HEAD_BYTES: Final = 5
_KERNELS: Final = {"avro": avro_kernels, "protobuf": protobuf_kernels}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tape:
    """The output of a kernel: occurrences of node `n` are at [first[n], first[n + 1])."""

    data: NDArray[np.uint8]
    first: NDArray[np.int64]
    value: NDArray[np.int64]
    length: NDArray[np.int64]

    def of(self, node: Node) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = slice(self.first[node.number], self.first[node.number + 1])
        return self.value[rows], self.length[rows]


_REALS: Final = {4: (np.int32, np.float32), 8: (np.int64, np.float64)}
_DECIMAL_BYTES: Final = 16


def build(node: Node, tape: Tape) -> pa.Array:
    """The column of a node with everything below it. CorruptDataError: more than Arrow or Spark can hold."""
    value, length = tape.of(node)
    valid = _bitmap(length)
    count = len(value)
    match node.shape:
        case Shape.NUMBER:
            return _numbers(value, node.type, valid) if node.per_us == 1 else _times(value, length, node)
        case Shape.REAL:
            bits, real = _REALS[node.type.bit_width // 8]
            data = np.ascontiguousarray(value.astype(bits)).view(real)
            return pa.Array.from_buffers(node.type, count, [valid, pa.py_buffer(data)])
        case Shape.BLOB:
            return _blobs(value, length, tape.data, node.type)
        case Shape.SYMBOL:
            return _symbols(value, length, node)
        case Shape.DECIMAL:
            return _decimals(value, length, tape.data, node.type)
        case Shape.STRUCT:
            children = [build(child, tape) for child in node.children]
            return pa.Array.from_buffers(node.type, count, [valid], children=children)
        case Shape.LIST:
            return _lists(node, tape, value, valid)
        case Shape.NULL:
            return pa.nulls(count, node.type)


def _bitmap(length: NDArray[np.int64]) -> pa.Buffer | None:
    there = length >= 0
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))


def _numbers(value: NDArray[np.int64], kind: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(
            kind, len(value), [valid, pa.py_buffer(np.packbits(value != 0, bitorder="little"))]
        )
    if pa.types.is_decimal(kind):
        # Unsigned 64 bits, which no integer type of Spark holds.
        return pa.Array.from_buffers(pa.uint64(), len(value), [valid, pa.py_buffer(value.copy())]).cast(kind)
    data = value.astype(np.int32 if kind.bit_width == 32 else np.int64)
    return pa.Array.from_buffers(kind, len(value), [valid, pa.py_buffer(data)])


def _times(value: NDArray[np.int64], length: NDArray[np.int64], node: Node) -> pa.Array:
    """Null for times out of the range of microseconds."""
    if node.per_us > 1:
        return _numbers(value // node.per_us, node.type, _bitmap(length))
    most = (2**63 - 1) // -node.per_us
    fits = (value >= -most) & (value <= most)
    return _numbers(np.where(fits, value, 0) * -node.per_us, node.type, _bitmap(np.where(fits, length, -1)))


def _blobs(at: NDArray[np.int64], length: NDArray[np.int64], data: NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    ends = np.empty(len(at) + 1, np.int32)
    if running_ends(length, ends) < 0:
        raise CorruptDataError("decoded values take more than 2 GiB in one batch", hint="read smaller batches")
    out = np.empty(int(ends[-1]), np.uint8)
    gather(data, at, ends, out)
    found = binary_array(ends, out, length >= 0)
    if kind == pa.binary():
        return found
    try:
        return found.cast(kind)
    except pa.ArrowInvalid:
        # Not UTF-8: a replacement character, as Java's decoder does. Once for each distinct text.
        encoded = found.dictionary_encode()
        words = [word.decode(errors="replace") for word in encoded.dictionary.to_pylist()]
        return pa.array(words, pa.string()).take(encoded.indices)


def _symbols(value: NDArray[np.int64], length: NDArray[np.int64], node: Node) -> pa.Array:
    """The names of numbers. One that the schema does not name stays a number, as in Protobuf's JSON."""
    different = np.unique(value[length >= 0])
    texts = pa.array([node.symbols.get(int(number), str(number)) for number in different], pa.string())
    places = np.searchsorted(different, value).astype(np.int64)
    return texts.take(pa.Array.from_buffers(pa.int64(), len(value), [_bitmap(length), pa.py_buffer(places)]))


def _decimals(at: NDArray[np.int64], length: NDArray[np.int64], data: NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    if (length > _DECIMAL_BYTES).any():
        raise CorruptDataError("a decimal has more than 38 digits")
    out = np.zeros((len(at), _DECIMAL_BYTES), np.uint8)
    for place in range(_DECIMAL_BYTES):
        # From the lowest byte on; above the highest one, the sign is extended.
        there = length > place
        last = np.maximum(at + length - 1 - place, 0)
        first = data[np.where(length > 0, at, 0)] if len(data) else np.zeros(len(at), np.uint8)
        sign = np.where((length > 0) & (first >= 0x80), 0xFF, 0)
        out[:, place] = np.where(there, data[np.where(there, last, 0)] if len(data) else 0, sign)
    return pa.Array.from_buffers(kind, len(at), [_bitmap(length), pa.py_buffer(out)])


def _lists(node: Node, tape: Tape, counts: NDArray[np.int64], valid: pa.Buffer | None) -> pa.Array:
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    items = [build(child, tape) for child in node.children]
    if pa.types.is_map(node.type):
        entry = pa.struct([node.type.key_field, node.type.item_field])
        inner = pa.StructArray.from_arrays(items, fields=list(entry))
    else:
        (inner,) = items
    return pa.Array.from_buffers(node.type, len(counts), [valid, pa.py_buffer(ends)], children=[inner])


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Values in one buffer, each from its start to its end; a start of -1 means null."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Encoded:
        return Encoded(data=self.data, starts=self.starts[rows], ends=self.ends[rows])


def encoded(values: pa.Array) -> Encoded:
    """The values of a binary array, without copying them."""
    column = binary_column(values)
    ends = column.ends.astype(np.int64)
    return Encoded(data=column.data, starts=np.where(column.valid, ends[:-1], -1), ends=ends[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedValues:
    column: pa.Array
    status: NDArray[np.int64]
    """0 if the value could be read, otherwise a status of the kernel: see `meaning`."""


def decode(program: Program, values: Encoded) -> DecodedValues:
    """Decode every value by one program. Those that cannot be read are null and have a status."""
    kernel = _KERNELS[program.format].walk
    status = np.zeros(len(values.starts), np.int64)
    nulls = np.array([node.number for node in program.root.beside()], np.int64)
    count = np.zeros(program.nodes, np.int64)
    nothing = np.zeros(0, np.int64)
    given = (program.code, values.data, values.starts, values.ends, status, nulls)
    kernel(*given, False, nothing, count, nothing, nothing)
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    value, length = np.zeros(int(first[-1]), np.int64), np.zeros(int(first[-1]), np.int64)
    count[:] = 0
    kernel(*given, True, first, count, value, length)
    tape = Tape(data=values.data, first=first, value=value, length=length)
    return DecodedValues(column=build(program.root, tape), status=status)


def meaning(program: Program, status: int) -> str:
    return str(_KERNELS[program.format].MEANING[status])


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodedValue:
    """A value that could not be decoded, and why."""

    row: int
    why: str
    like_it: int = 1
    """The number of values of the batch that fail for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writers:
    """The programs of each schema id: one for Avro; for Protobuf one for each message, by its place."""

    programs: Mapping[int, Mapping[int, Program]]
    reader: Node
    """The common type of all values."""
    indexed: bool = False
    """True if message indexes precede the values: Protobuf."""


def decode_plain(program: Program, values: Encoded) -> tuple[pa.Array, list[UndecodedValue]]:
    """Decode values of one known schema, without a header."""
    found = decode(program, values)
    return found.column, _failures(program, found, np.arange(len(found.status)))


def decode_confluent(writers: Writers, values: Encoded) -> tuple[pa.Array, list[UndecodedValue]]:
    """Decode values with headers. Those that cannot be decoded are null and reported."""
    count = len(values.starts)
    headed = values.starts >= 0
    whole = headed & (values.ends - values.starts >= HEAD_BYTES)
    starts = np.where(whole, values.starts, 0)
    heads = [values.data[starts + place] if len(values.data) else np.zeros(count, np.uint8) for place in range(5)]
    whole &= heads[0] == 0
    ids = np.zeros(count, np.int64)
    for head in heads[1:]:
        ids = ids << 8 | head
    failures = _group(np.flatnonzero(headed & ~whole), "it does not begin with a zero byte and the id of a schema")
    bodies = np.where(whole, values.starts + HEAD_BYTES, -1)
    places = np.zeros(count, np.int64)
    if writers.indexed:
        protobuf_kernels.read_indexes(values.data, bodies, values.ends, places)
        failures += _group(np.flatnonzero(whole & (bodies < 0)), "its message indexes cannot be read")
        whole &= bodies >= 0
    body = Encoded(data=values.data, starts=bodies, ends=values.ends)
    columns, rows = [pa.nulls(int(np.count_nonzero(~whole)), writers.reader.type)], [np.flatnonzero(~whole)]
    for number in np.unique(ids[whole]):
        for place in np.unique(places[whole & (ids == number)]):
            mine = np.flatnonzero(whole & (ids == number) & (places == place))
            column, failed = _decode_one(writers, int(number), int(place), body.take(mine), mine)
            columns.append(column)
            rows.append(mine)
            failures += failed
    return _in_order(columns, rows), sorted(failures, key=lambda undecoded: undecoded.row)


def _decode_one(
    writers: Writers, number: int, place: int, values: Encoded, rows: NDArray[np.int64]
) -> tuple[pa.Array, list[UndecodedValue]]:
    program = writers.programs.get(number, {}).get(place)
    if program is None:
        what = (
            "there is no such message in it" if number in writers.programs else "which is not archived for this topic"
        )
        why = f"its schema has the id {number}, {what} ({len(rows):,} values in this batch)"
        return pa.nulls(len(rows), writers.reader.type), _group(rows, why)
    found = decode(program, values)
    return conform(found.column, writers.reader), _failures(program, found, rows)


def _failures(program: Program, found: DecodedValues, rows: NDArray[np.int64]) -> list[UndecodedValue]:
    return [
        failure
        for status in np.unique(found.status[found.status != 0])
        for failure in _group(rows[np.flatnonzero(found.status == status)], meaning(program, int(status)))
    ]


def _group(rows: NDArray[np.int64], why: str) -> list[UndecodedValue]:
    return [UndecodedValue(row=int(rows[0]), why=why, like_it=len(rows))] if len(rows) else []


def _in_order(columns: list[pa.Array], rows: list[NDArray[np.int64]]) -> pa.Array:
    order = np.argsort(np.concatenate(rows), kind="stable").astype(np.int64)
    joined = pa.concat_arrays(columns)
    return joined.take(pa.Array.from_buffers(pa.int64(), len(order), [None, pa.py_buffer(order)]))


def conform(column: pa.Array, node: Node) -> pa.Array:
    """Convert a column to the type of another schema. UnsupportedFormatError: a field has an incompatible type."""
    if column.type == node.type:
        return column
    if node.shape is Shape.STRUCT and pa.types.is_struct(column.type):
        return _conform_struct(column, node.children, node.type)
    if node.shape is Shape.LIST and type(column.type) is type(node.type):
        return _conform_list(column, node)
    try:
        return column.cast(node.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedFormatError(
            f"values of type {column.type} cannot be read as {node.type}, which the newest schema has",
            operation="decode",
            hint="ask for them as bytes, or give the schema of these values",
        ) from error


def _conform_struct(column: pa.Array, wanted: Sequence[Node], kind: pa.DataType) -> pa.Array:
    # Not by `field`, which ignores the offset of a slice.
    there = {column.type.field(number).name: number for number in range(column.type.num_fields)}
    parts = column.flatten()
    children = [
        conform(parts[there[node.name]], node) if node.name in there else _default(node, len(column)) for node in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


def _conform_list(column: pa.Array, node: Node) -> pa.Array:
    valid, ends, *_ = column.buffers()
    if column.offset:
        column = pa.concat_arrays([column])
        valid, ends, *_ = column.buffers()
    if pa.types.is_map(node.type):
        key, value = node.children
        inner = pa.StructArray.from_arrays(
            [conform(column.keys, key), conform(column.items, value)],
            fields=[node.type.key_field, node.type.item_field],
        )
    else:
        inner = conform(column.values, node.children[0])
    return pa.Array.from_buffers(node.type, len(column), [valid, ends], children=[inner])


def _default(node: Node, count: int) -> pa.Array:
    try:
        one = pa.array([_default_value(node, node.default)], node.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError):
        one = pa.nulls(1, node.type)
    return one.take(pa.nulls(count, pa.int64()).fill_null(0))


def _default_value(node: Node, default: Any) -> Any:  # noqa: ANN401 - JSON
    """A default, given as Avro's JSON, as a value for Arrow."""
    if default is None:
        return None
    if node.shape is Shape.BLOB and node.type == pa.binary():
        return str(default).encode("latin-1")
    if node.shape is Shape.STRUCT and isinstance(default, dict):
        return {child.name: _default_value(child, default.get(child.name, child.default)) for child in node.children}
    if node.shape is Shape.LIST and isinstance(default, dict):
        return [(key, _default_value(node.children[1], value)) for key, value in default.items()]
    if node.shape is Shape.LIST:
        return [_default_value(node.children[0], value) for value in default]
    return default
