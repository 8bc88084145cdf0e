"""Avro values become what fastavro makes of them, whatever their schema; damage never reads beyond a value."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import UnsupportedFormatError
from maxbrod.layouts.avro.program import compile_avro
from maxbrod.table.values.decode import decode, encoded

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "small", "type": ["int", "null"]},
        {"name": "paid", "type": "boolean"},
        {"name": "price", "type": "double"},
        {"name": "weight", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 3}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "counts", "type": {"type": "map", "values": "int"}},
                        {"name": "before", "type": ["null", "State"]},
                    ],
                },
            },
        },
        {"name": "last", "type": ["null", "shop.Line"]},
        {"name": "either", "type": ["null", "long", "string", {"type": "array", "items": "double"}]},
        {"name": "nothing", "type": "null"},
    ],
}

texts = st.text(max_size=8)
lines = st.fixed_dictionaries(
    {
        "sku": texts,
        "counts": st.dictionaries(texts, st.integers(-(2**31), 2**31 - 1), max_size=3),
        "before": st.sampled_from([None, "NEW", "DONE"]),
    }
)
orders = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "who": st.none() | texts,
        "small": st.none() | st.integers(-(2**31), 2**31 - 1),
        "paid": st.booleans(),
        "price": st.floats(allow_nan=False),
        "weight": st.floats(allow_nan=False, width=32),
        "raw": st.binary(max_size=5),
        "mark": st.binary(min_size=3, max_size=3),
        "state": st.sampled_from(["NEW", "DONE"]),
        "tags": st.lists(st.none() | texts, max_size=3),
        "lines": st.lists(lines, max_size=3),
        "last": st.none() | lines,
        "either": st.none() | st.integers(-5, 5) | texts | st.lists(st.floats(allow_nan=False), max_size=2),
        "nothing": st.none(),
    }
)


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoded(schema: Any, values: list[bytes | None]) -> tuple[list[Any], list[int]]:
    found = decode(compile_avro(json.dumps(schema)), encoded(pa.array(values, pa.binary())))
    found.column.validate(full=True)
    return found.column.to_pylist(), found.status.tolist()


def expected(order: dict[str, Any] | None) -> dict[str, Any] | None:
    """As Spark has it: maps, and a field for each branch of a union."""
    if order is None:
        return None
    either = order["either"]
    members = [isinstance(either, kind) for kind in (int, str, list)]
    union = {f"member{number}": either if chosen else None for number, chosen in enumerate(members)}
    return {
        **order,
        "lines": [{**line, "counts": list(line["counts"].items())} for line in order["lines"]],
        "last": order["last"] and {**order["last"], "counts": list(order["last"]["counts"].items())},
        "either": None if either is None else union,
    }


@given(st.lists(st.none() | orders, max_size=6))
@settings(max_examples=60)
def test_every_value_is_what_was_written(values: list[dict[str, Any] | None]) -> None:
    found, status = decoded(ORDER, [None if each is None else written(ORDER, each) for each in values])
    assert found == [expected(each) for each in values]
    assert not any(status)


@given(st.lists(orders, min_size=1, max_size=4), st.data())
@settings(max_examples=60)
def test_a_damaged_value_is_null_and_harms_no_other(values: list[dict[str, Any]], data: st.DataObject) -> None:
    encodings: list[bytes | None] = [written(ORDER, each) for each in values]
    row = data.draw(st.integers(0, len(values) - 1))
    whole = encodings[row] or b""
    encodings[row] = whole[: data.draw(st.integers(0, len(whole) - 1))]
    found, status = decoded(ORDER, encodings)
    assert [number for number, each in enumerate(status) if each] == [row]
    assert found[row] is None
    assert [each for number, each in enumerate(found) if number != row] == [
        expected(each) for number, each in enumerate(values) if number != row
    ]


@given(st.binary(max_size=60))
def test_any_bytes_at_all_are_read_or_refused(value: bytes) -> None:
    found, status = decoded(ORDER, [value])
    assert (found[0] is None) == bool(status[0])


def test_what_stands_behind_a_value_is_damage() -> None:
    assert decoded("long", [b"\x02", b"\x02\x00"]) == ([1, None], [0, 4])


def test_logical_types_are_those_of_spark() -> None:
    schema = {
        "type": "record",
        "name": "Times",
        "fields": [
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
            {
                "name": "fixed",
                "type": {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 1},
            },
        ],
    }
    at = datetime(2026, 11, 1, 12, 30, 15, 250_000, tzinfo=UTC)
    value = {"day": date(1969, 12, 30), "ms": at, "us": at, "sum": Decimal("-1234.56"), "fixed": Decimal("7.5")}
    assert decoded(schema, [written(schema, value)]) == ([value], [0])
    assert decoded("long", [None]) == ([None], [0])
    late = compile_avro(json.dumps({"type": "long", "logicalType": "timestamp-millis"}))
    far = decode(late, encoded(pa.array([written("long", 2**62)], pa.binary())))
    assert far.column.to_pylist() == [None]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("nobody", "no type 'nobody'"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "contains itself"),
        ({"type": "array", "items": "null"}, "take no bytes"),
        ({"type": "fixed", "name": "F", "size": -1}, "no size"),
        ({"type": "record", "name": "R"}, "no list of fields"),
        (7, "is no type"),
    ],
)
def test_a_schema_that_cannot_be_walked_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=why):
        compile_avro(json.dumps(schema))


def test_types_of_other_schemas_are_found_by_their_names() -> None:
    line = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
    order = {"type": "record", "name": "O", "namespace": "shop", "fields": [{"name": "line", "type": "Line"}]}
    program = compile_avro(json.dumps(order), [json.dumps(line)])
    found = decode(program, encoded(pa.array([b"\x06abc"], pa.binary())))
    assert found.column.to_pylist() == [{"line": {"sku": "abc"}}]
