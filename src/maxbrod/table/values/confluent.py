"""Decodes values of Confluent's serializers: a zero byte, the id of a schema in four bytes, and the encoded value.

Protobuf has message indexes before the value: their number, and the indexes. Each value is decoded by the schema of its
own id and converted to the type of the newest schema, so that a column has one type: fields by name, with defaults for
those that are missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.errors import UnsupportedFormatError
from maxbrod.layouts.nodes import Node, Program, Shape
from maxbrod.table.values.nodes import DecodedValues, Encoded, decode, meaning
from maxbrod.table.values.protobuf_kernels import read_indexes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


HEAD_BYTES: Final = 5


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
        read_indexes(values.data, bodies, values.ends, places)
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
    return _in_order(columns, rows), sorted(failures, key=lambda each: each.row)


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
        conform(parts[there[each.name]], each) if each.name in there else _default(each, len(column)) for each in wanted
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
        return {each.name: _default_value(each, default.get(each.name, each.default)) for each in node.children}
    if node.shape is Shape.LIST and isinstance(default, dict):
        return [(key, _default_value(node.children[1], value)) for key, value in default.items()]
    if node.shape is Shape.LIST:
        return [_default_value(node.children[0], value) for value in default]
    return default
