"""Columns of one writer in the type of another: fields by their names, defaults for those that are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from maxbrod.errors import UnsupportedFormatError
from maxbrod.table.values.nodes import Node, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence


def conform(column: pa.Array, node: Node) -> pa.Array:
    """UnsupportedFormatError: a field has changed into something that it cannot be read as."""
    if column.type == node.type:
        return column
    if node.shape is Shape.STRUCT and pa.types.is_struct(column.type):
        return _struct(column, node.children, node.type)
    if node.shape is Shape.LIST and type(column.type) is type(node.type):
        return _list(column, node)
    try:
        return column.cast(node.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedFormatError(
            f"values of type {column.type} cannot be read as {node.type}, which the newest schema has",
            operation="decode",
            hint="ask for them as bytes, or give the schema of these values",
        ) from error


def _struct(column: pa.Array, wanted: Sequence[Node], kind: pa.DataType) -> pa.Array:
    # Not by `field`, which would leave a slice's own beginning out.
    there = {column.type.field(number).name: number for number in range(column.type.num_fields)}
    parts = column.flatten()
    children = [
        conform(parts[there[each.name]], each) if each.name in there else _default(each, len(column)) for each in wanted
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=column.is_null())


def _list(column: pa.Array, node: Node) -> pa.Array:
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
        one = pa.array([_value(node, node.default)], node.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError):
        one = pa.nulls(1, node.type)
    return one.take(pa.nulls(count, pa.int64()).fill_null(0))


def _value(node: Node, default: Any) -> Any:  # noqa: ANN401 - JSON
    """A default as Avro writes it in JSON, as Arrow takes it."""
    if default is None:
        return None
    if node.shape is Shape.BLOB and node.type == pa.binary():
        return str(default).encode("latin-1")
    if node.shape is Shape.STRUCT and isinstance(default, dict):
        return {each.name: _value(each, default.get(each.name, each.default)) for each in node.children}
    if node.shape is Shape.LIST and isinstance(default, dict):
        return [(key, _value(node.children[1], value)) for key, value in default.items()]
    if node.shape is Shape.LIST:
        return [_value(node.children[0], value) for value in default]
    return default
