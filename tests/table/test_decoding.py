"""Keys and values decoded in queries: by Spark, by our own loops, and by the schemas that the archive itself holds."""

from __future__ import annotations

import io
import json
import struct
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from maxbrod.config import Config
from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.query.options import ScopeOptions
from maxbrod.query.run import Query
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, produce
from maxbrod.table.decoders import as_ddl
from maxbrod.table.formats import parse_formats
from maxbrod.table.values.protobuf import compile_files
from support.backups import back_up, config_of
from support.conversions import convert
from support.native_logs import pack
from support.plain_batches import Record
from support.table_archives import write

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": "string"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "who", "type": ["null", "string"]},
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "kind", "type": "string", "default": "plain"},
        {"name": "line", "type": ["null", "shop.Line"], "default": None},
    ],
}
LINE = {"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
PROTO = """
    syntax = "proto3"; import "line.proto";
    message Order { int64 id = 1; shop.Line line = 2; message Inner { int32 n = 1; } }
    message Other { string word = 1; }
"""
LINE_PROTO = 'syntax = "proto3"; package shop; message Line { string sku = 1; }'


def avro(schema: Any, value: Any, named: Any = None) -> bytes:
    out = io.BytesIO()
    names: dict[str, Any] = {}
    if named is not None:
        fastavro.parse_schema(named, named_schemas=names)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=names), value)
    return out.getvalue()


def headed(number: int, body: bytes) -> bytes:
    """As Confluent's serializers write."""
    return struct.pack(">bI", 0, number) + body


def registered(subject: str, version: int, number: int, schema: str, **more: Any) -> tuple[bytes, bytes]:
    """As Schema Registry writes into its topic."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    value = {"subject": subject, "version": version, "id": number, **more, "schema": schema, "deleted": False}
    return json.dumps(key).encode(), json.dumps(value).encode()


def archive_topic(folder: Path, topic: str, records: list[tuple[bytes | None, bytes | None]]) -> None:
    made = [Record(offset=i, timestamp=1000 + i, key=key, value=value) for i, (key, value) in enumerate(records)]
    write(folder, [pack(made)], topic=topic, topic_id=topic.upper(), run_id=f"run-{topic}")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding") / "archive"
    line = {"references": [{"name": "shop.Line", "subject": "line", "version": 1}]}
    proto = {"references": [{"name": "line.proto", "subject": "line-proto", "version": 1}], "schemaType": "PROTOBUF"}
    archive_topic(
        folder,
        "_schemas",
        [
            (b'{"keytype":"NOOP","magic":0}', None),
            registered("orders-value", 1, 1, json.dumps(OLD)),
            registered("line", 1, 2, json.dumps(LINE)),
            registered("orders-value", 2, 3, json.dumps(NEW), **line),
            registered("line-proto", 1, 4, LINE_PROTO, schemaType="PROTOBUF"),
            registered("proto-value", 1, 5, PROTO, **proto),
            registered("docs-value", 1, 6, '{"type": "object"}', schemaType="JSON"),
        ],
    )
    new = {"who": None, "id": 2**40, "tags": ["a"], "kind": "fine", "line": {"sku": "s"}}
    archive_topic(
        folder,
        "orders",
        [
            (b"k0", headed(1, avro(OLD, {"id": 7, "who": "ann"}))),
            (b"k1", headed(3, avro(NEW, new, LINE))),
            (b"k2", None),
            (b"\xff", headed(1, avro(OLD, {"id": -1, "who": ""}))),
        ],
    )
    archive_topic(folder, "broken", [(b"", headed(1, avro(OLD, {"id": 1, "who": "x"}))), (b"", headed(99, b"\2"))])
    archive_topic(folder, "docs", [(b"1", headed(6, b'{"a": 1, "b": {"c": [1.5]}}')), (b"2", headed(6, b'{"a": 2}'))])
    archive_topic(
        folder, "json", [(b"1", b'{"n": 1, "s": "x", "odd name": true}'), (b"2", b'{"n": "two"}'), (b"3", None)]
    )
    archive_topic(folder, "bad-json", [(b"1", b'{"n": 1}'), (b"2", b"{nope")])
    archive_topic(
        folder, "long", [(b"1", b'{"n": 9223372036854775808}'), (b"2", b'{"n": 9223372036854775809, "f": 1.5}')]
    )
    archive_topic(folder, "behind", [(b"", value) for value in BEHIND])
    archive_topic(folder, "proto", [(b"", headed(5, place + body)) for place, body in protobuf_values()])
    return folder


BEHIND = [
    b'{"a": 2}',
    b'{"a": 2} trailing',
    b'{"a": 2}{"a": 3}',
    b'{"a": 2}, {"a": 3}',
    b'{"a": 2}] x',
    b'{"a": 2},"x"] x',
    b'  {"a": 3, "a": 4}\n',
]
"""The first and the last are whole; a name may come twice in JSON, of which the last one counts."""


def protobuf_values() -> list[tuple[bytes, bytes]]:
    """Messages behind the place of their type, in the short and in the long way."""
    pool = descriptor_pool.DescriptorPool()
    compiled = compile_files({"order.proto": PROTO, "line.proto": LINE_PROTO}, main="order.proto")
    for each in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(each)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
    body = order(id=5, line={"sku": "s"}).SerializeToString()
    return [(b"\x00", body), (b"\x02\x00", order(id=-6).SerializeToString())]


def ask(archive: Path, spark: Any, sql: str, **scope: Any) -> list[tuple[Any, ...]]:
    with Query(Config(archive=str(archive)), ScopeOptions(**scope), session=spark) as query:
        table = query.collect(query.ask(sql)).table
    return [tuple(row.values()) for row in table.to_pylist()]


def test_values_of_several_schemas_have_the_type_of_the_newest(archive: Path, spark: Any) -> None:
    sql = "SELECT offset, value.*, length(key) FROM orders WHERE value IS NOT NULL ORDER BY offset"
    assert ask(archive, spark, sql, value=("confluent",)) == [
        (0, "ann", 7, [], "plain", None, 2),
        (1, None, 2**40, ["a"], "fine", {"sku": "s"}, 2),
        (3, "", -1, [], "plain", None, 1),
    ]


def test_an_unknown_schema_ends_the_query_by_its_id_or_is_null(archive: Path, spark: Any) -> None:
    with pytest.raises(UsageError, match="no subject 'broken-value'"):
        ask(archive, spark, "SELECT value FROM broken", value=("confluent",))
    file = archive.parent / "old.avsc"
    file.write_text(json.dumps(OLD))
    with pytest.raises(CorruptDataError, match=r"in broken-3, at offset 0"):
        ask(archive, spark, "SELECT value.id FROM broken", value=(f"avro:{file}",))
    found = ask(archive, spark, "SELECT value.id FROM broken", value=(f"avro:{file}",), permissive=True)
    assert found == [(None,), (None,)]


def test_protobuf_and_json_of_the_registry_are_decoded(archive: Path, spark: Any) -> None:
    sql = "SELECT p.value.id, p.value.line.sku, d.value.a, d.value.b.c[0] FROM proto p JOIN docs d USING (offset)"
    assert sorted(ask(archive, spark, sql, value=("confluent",))) == [(-6, None, 2, None), (5, "s", 1, 1.5)]


def test_json_is_decoded_by_what_a_sample_has_or_by_a_schema(archive: Path, spark: Any) -> None:
    sql = "SELECT value.n, value.`odd name` FROM json ORDER BY offset"
    assert ask(archive, spark, sql, value=("json",)) == [("1", True), ("two", None), (None, None)]
    given = ("json=json:n bigint, s string",)
    with pytest.raises(CorruptDataError, match=r"a value cannot be decoded.*in json-3, at offset 1"):
        ask(archive, spark, "SELECT value.n FROM json", value=given)
    permissive = ask(archive, spark, "SELECT value.n FROM json ORDER BY offset", value=given, permissive=True)
    assert permissive == [(1,), (None,), (None,)]


def test_text_behind_a_json_value_makes_it_one_that_cannot_be_decoded(archive: Path, spark: Any) -> None:
    sql = "SELECT value.a FROM behind ORDER BY offset"
    expected = [(2,), *[(None,)] * 5, (4,)]
    assert ask(archive, spark, sql, value=("json:a bigint",), permissive=True) == expected
    with pytest.raises(CorruptDataError, match=r"a value cannot be decoded.*in behind-3, at offset 1"):
        ask(archive, spark, "SELECT value.a FROM behind WHERE offset = 1", value=("json:a bigint",))


def test_integers_beyond_64_bits_keep_their_digits(archive: Path, spark: Any) -> None:
    found = ask(archive, spark, "SELECT value.n FROM long ORDER BY offset", value=("json",))
    assert found == [("9223372036854775808",), ("9223372036854775809",)]


def test_text_is_checked_and_records_are_decoded_where_no_topic_is_needed(archive: Path, spark: Any) -> None:
    sql = "SELECT key FROM records WHERE topic = 'orders' ORDER BY offset"
    with pytest.raises(CorruptDataError, match="in orders-3, at offset 3"):
        ask(archive, spark, sql, key=("utf8",))
    assert ask(archive, spark, sql, key=("utf8",), permissive=True) == [("k0",), ("k1",), ("k2",), (None,)]
    alone = ask(archive, spark, "SELECT sum(value.id) FROM records", value=("confluent",), topics=("orders",))
    assert alone == [(7 + 2**40 - 1,)]


@pytest.mark.parametrize(
    ("variant", "ddl"),
    [
        (
            "OBJECT<a: BIGINT, b: OBJECT<c: ARRAY<DECIMAL(2,1)>>, d: VOID, e: VARIANT>",
            "STRUCT<a: BIGINT, b: STRUCT<c: ARRAY<DOUBLE>>, d: STRING, e: STRING>",
        ),
        ("OBJECT<`OBJECT<`: VOID, VOID: BIGINT>", "STRUCT<`OBJECT<`: STRING, VOID: BIGINT>"),
        ("VOID", "STRING"),
    ],
)
def test_types_of_variants_become_types_of_columns(variant: str, ddl: str) -> None:
    assert as_ddl(variant) == ddl


@pytest.mark.parametrize(
    ("digits", "ddl"),
    [
        (0, "STRUCT<a: DOUBLE, b: DOUBLE, c: DOUBLE>"),
        (19, "STRUCT<a: STRING, b: DOUBLE, c: DOUBLE>"),
        (39, "STRUCT<a: STRING, b: DOUBLE, c: STRING>"),
    ],
)
def test_only_integers_that_need_it_become_text(digits: int, ddl: str) -> None:
    assert as_ddl("OBJECT<a: DECIMAL(20,0), b: DECIMAL(21,1), c: DOUBLE>", digits) == ddl


@pytest.mark.parametrize(
    "words", [["xml"], ["avro"], ["protobuf:file"], ["json:"], ["utf8", "json"], ["a=utf8", "a=json"]]
)
def test_a_format_that_means_nothing_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_formats(words)


def test_a_real_backup_and_another_tools_copy_of_it_give_the_same_answer(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any
) -> None:
    create_topic(cluster, "_schemas")
    create_topic(cluster, topic, partitions=2)
    key, value = registered(f"{topic}-value", 1, 41, json.dumps(OLD))
    produce(cluster, "_schemas", [Message(key=key, value=value)])
    orders = [headed(41, avro(OLD, {"id": number, "who": f"w{number % 3}"})) for number in range(30)]
    for partition in range(2):
        produce(cluster, topic, [Message(key=b"k", value=each) for each in orders[partition::2]], partition=partition)
    back_up(config_of(cluster, tmp_path / "archive", topic, "_schemas"))
    convert(tmp_path / "archive", tmp_path / "copy", "kbak", accept_loss=True)
    sql = f"SELECT value.who, sum(value.id), max(partition) FROM `{topic}` GROUP BY 1 ORDER BY 1"
    expected = [(f"w{rest}", sum(range(rest, 30, 3)), 1) for rest in range(3)]
    for place in ("archive", "copy"):
        assert ask(tmp_path / place, spark, sql, value=("confluent",)) == expected
