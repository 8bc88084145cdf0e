"""Confluent's format: every value by its own schema, in one type; what is wrong is told, and harms no other."""

from __future__ import annotations

import json
import struct
from typing import Any

import pyarrow as pa
import pytest

from maxbrod.errors import UnsupportedFormatError
from maxbrod.layouts.avro.program import compile_avro
from maxbrod.table.values.decode import Writers, conform, decode_confluent, encoded
from maxbrod.table.values.protobuf import compile_files, compile_protobuf, message_places

PROTO = """
    syntax = "proto3";
    message First { int32 n = 1; map<string, int32> m = 2; message Inner { message Deep { string word = 1; } } }
    message Second { int32 n = 1; }
"""


def headed(number: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, number) + body


def decoded(writers: Writers, values: list[bytes | None]) -> tuple[list[Any], list[tuple[int, int, str]]]:
    column, failures = decode_confluent(writers, encoded(pa.array([b"before", *values], pa.binary()).slice(1)))
    column.validate(full=True)
    return column.to_pylist(), [(each.row, each.like_it, each.why) for each in failures]


def test_values_keep_their_order_and_what_is_wrong_is_told_with_how_many() -> None:
    whole, text = compile_avro('"int"'), compile_avro('"long"')
    writers = Writers(programs={1: {0: whole}, 2: {0: text}}, reader=text.root)
    values = [headed(2, b"\x04"), None, headed(9, b"\x04"), headed(1, b"\x02"), b"\x00\x00", b"{}{}{}", headed(9, b"")]
    found, failures = decoded(writers, [*values, headed(1, b"")])
    assert found == [2, None, None, 1, None, None, None, None]
    assert [(row, count) for row, count, _ in failures] == [(2, 2), (4, 2), (7, 1)]
    assert "has the id 9, which is not archived for this topic (2 values in this batch)" in failures[0][2]
    assert decoded(writers, []) == ([], [])
    assert decoded(writers, [None]) == ([None], [])


def test_messages_are_found_by_their_places() -> None:
    compiled = compile_files({"x.proto": PROTO}, main="x.proto")
    places = message_places(compiled, "x.proto")
    assert sorted(set(places.values())) == ["First", "First.Inner", "First.Inner.Deep", "Second"]
    programs = {place: compile_protobuf(compiled, name) for place, name in places.items()}
    writers = Writers(programs={5: programs}, reader=programs[0].root, indexed=True)
    body = b"\x08\x07"
    values = [
        b"\x00" + body,
        b"\x02\x00" + body,
        b"\x02\x02" + body,
        b"\x06\x00\x00\x00" + b"\x0a\x01w",
        b"\x06\x00\x02\x00" + b"\x0a\x01w",
        b"\x02\x14",
        b"",
    ]
    found, failures = decoded(writers, [headed(5, value) for value in values])
    assert [each and each["n"] for each in found] == [7, 7, 7, None, None, None, None]
    assert [(row, why.split(" (")[0]) for row, _, why in failures] == [
        (5, "its schema has the id 5, there is no such message in it"),
        (6, "its message indexes cannot be read"),
    ]


def test_a_column_of_an_older_writer_becomes_that_of_the_newest() -> None:
    line = {"type": "record", "name": "L", "fields": [{"name": "n", "type": "int"}]}
    wider = {
        "type": "record",
        "name": "L",
        "fields": [{"name": "s", "type": "string", "default": "x"}, {"name": "n", "type": "long"}],
    }

    def order(of: Any, *more: Any) -> Any:
        fields = [
            {"name": "list", "type": {"type": "array", "items": of}},
            {"name": "map", "type": {"type": "map", "values": "L"}},
            {"name": "one", "type": ["null", "L"]},
            *more,
        ]
        return compile_avro(json.dumps({"type": "record", "name": "O", "fields": fields}))

    added = [
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "inner", "type": "L", "default": {"n": 3}},
        {"name": "counts", "type": {"type": "map", "values": "int"}, "default": {"a": 1}},
        {"name": "none", "type": "string"},
    ]
    old, new = order(line), order(wider, *added)
    rows = [
        {"list": [{"n": 1}, None], "map": [("k", {"n": 2})], "one": None},
        None,
        {"list": [], "map": [], "one": {"n": 5}},
    ]
    column = pa.array([None, *rows], old.root.type).slice(1)
    found = conform(column, new.root)
    found.validate(full=True)
    defaults = {"raw": b"\xff", "inner": {"s": "x", "n": 3}, "counts": [("a", 1)], "none": None}
    assert found.to_pylist() == [
        {"list": [{"s": "x", "n": 1}, None], "map": [("k", {"s": "x", "n": 2})], "one": None, **defaults},
        None,
        {"list": [], "map": [], "one": {"s": "x", "n": 5}, **defaults},
    ]
    with pytest.raises(UnsupportedFormatError, match="cannot be read as"):
        conform(pa.array(["a"]), compile_avro('"long"').root)
