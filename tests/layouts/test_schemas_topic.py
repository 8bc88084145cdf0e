"""Schema ids come out of Schema Registry's topic; deleted ones stay, marked, because records still use them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.layouts.internal_topics import RegisteredSchema, SchemaReference, read_schemas_topic
from support.offsets_records import Row, as_batch

Word = tuple[dict[str, Any] | bytes, dict[str, Any] | bytes | None]


def schema(subject: str, version: int, number: int, **others: Any) -> Word:
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, "schema": f'"type {number}"', "deleted": False}
    return key, value | others


def read(words: list[Word]) -> Any:
    def encoded(each: dict[str, Any] | bytes) -> bytes:
        return each if isinstance(each, bytes) else json.dumps(each).encode()

    rows = [Row(encoded(key), None if value is None else encoded(value)) for key, value in words]
    return read_schemas_topic([as_batch(rows)])


def test_an_id_leads_to_its_schema_with_type_and_references() -> None:
    reference = {"name": "other.proto", "subject": "other", "version": 3}
    topic = read(
        [
            ({"keytype": "NOOP", "magic": 0}, None),
            ({"keytype": "CONFIG", "subject": None, "magic": 0}, {"compatibilityLevel": "BACKWARD"}),
            schema("orders-value", 1, 1),
            schema("orders-value", 2, 2, schemaType="PROTOBUF", references=[reference], md5="later releases add more"),
            schema("copy-value", 1, 1),
        ]
    )
    table = topic.by_id()
    assert sorted(table) == [1, 2]
    assert table[1].schema == '"type 1"'
    assert table[1].schema_type == "AVRO"
    assert table[2] == RegisteredSchema(
        subject="orders-value",
        version=2,
        id=2,
        schema='"type 2"',
        schema_type="PROTOBUF",
        references=(SchemaReference(name="other.proto", subject="other", version=3),),
    )
    assert not topic.unreadable


def test_a_deleted_schema_keeps_its_id_and_the_living_come_first() -> None:
    topic = read(
        [
            schema("a", 1, 1),
            schema("a", 2, 2),
            schema("z", 1, 2),
            schema("gone", 1, 9),
            schema("a", 1, 1, deleted=True),
            ({"keytype": "DELETE_SUBJECT", "subject": "z", "magic": 0}, {"subject": "z", "version": 1}),
            (schema("gone", 1, 9)[0], None),
        ]
    )
    table = topic.by_id()
    assert {number: (each.subject, each.deleted) for number, each in table.items()} == {1: ("a", True), 2: ("a", False)}
    assert topic.versions["z", 1].deleted


def test_ids_of_other_contexts_are_kept_apart() -> None:
    topic = read([schema("orders", 1, 1), schema(":.east:orders", 1, 1, schema='"east"')])
    assert topic.by_id()[1].subject == "orders"
    assert topic.by_id(".east")[1].schema == '"east"'
    assert not topic.by_id(".west")


def test_a_record_that_cannot_be_read_costs_no_other() -> None:
    words: list[Word] = [
        schema("a", 1, 1),
        (b"no json", b"{}"),
        (b"[1]", b"{}"),
        (schema("b", 1, 1)[0], b"\xff"),
        schema("c", 1, 1, id="one"),
        schema("d", 1, 1, references=5),
        schema("e", 1, 1, schema=None),
        (b"[" * 100_000, b"{}"),
    ]
    topic = read(words)
    assert [each.subject for each in topic.versions.values()] == ["a"]
    assert [offset for offset, _ in topic.unreadable] == list(range(1, 8))


@given(key=st.binary(max_size=30), value=st.binary(max_size=30))
def test_no_bytes_crash_the_reader(key: bytes, value: bytes) -> None:
    read([(key, value), (schema("a", 1, 1)[0], value)])
