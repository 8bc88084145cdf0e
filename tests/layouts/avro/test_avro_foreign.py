"""Files of other writers: every schema that can be walked, Java's wrapping, copies and overlaps."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.avro.instances import Coordination, Event, decode_coordination, encode_coordination
from maxbrod.layouts.avro.program import compile_records
from maxbrod.layouts.avro.reader import text_of
from maxbrod.layouts.avro.survey import LAYOUT
from maxbrod.model import TopicPartition
from support.given_records import Given, given_of
from support.storages import fresh_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

PATH = "orders/3/orders-3-000000000000000.avro"
WHERE = TopicPartition(topic="orders", partition=3)
MAP = {"type": "map", "values": "bytes"}
DOCUMENT = {
    "topic": "string",
    "partition": "int",
    "offset": "long",
    "timestamp": "long",
    "key": ["bytes", "null"],
    "value": "bytes",
    "headers": [MAP, "null"],
}
ARRAY = bytes.fromhex("aced0005757200025b42acf317f8060854e00200007870")


def schema_of(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def write(fields: dict[str, Any], rows: list[dict[str, Any]], codec: str = "null", interval: int = 16_000) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema_of(fields)), rows, codec, sync_interval=interval)
    return out.getvalue()


def row(offset: int, **more: Any) -> dict[str, Any]:
    basis = {"topic": "orders", "partition": 3, "offset": offset, "timestamp": 7, "key": b"k", "value": b"v"}
    return {**basis, "headers": {"h": b"x"}, **more}


def load(storage: Storage) -> list[Given]:
    return [record for found in LAYOUT.survey(storage).segments for record in given_of(LAYOUT.read(storage, found))]


def read(text: bytes, path: str = PATH) -> list[Given]:
    with fresh_storage() as storage:
        storage.put(path, text)
        assert LAYOUT.survey(storage).faults == ()
        return load(storage)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_files_of_another_writer_are_read_in_every_codec(codec: str) -> None:
    rows = [row(offset, value=b"v" * offset) for offset in range(100)]
    found = read(write(DOCUMENT, rows, codec, 500))
    assert found == [
        Given(offset=offset, timestamp=7, value=b"v" * offset, headers=((b"h", b"x"),)) for offset in range(100)
    ]


def test_fields_are_known_by_name_in_any_order_and_others_are_passed_over() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "a", "type": {"type": "array", "items": "string"}}]}
    fields: dict[str, Any] = {
        "topic": {"type": "string", "avro.java.string": "String"},
        "blob": {"type": "fixed", "name": "F", "size": 3},
        "headers": ["null", {"type": "map", "values": ["null", "bytes"]}],
        "nothing": "null",
        "value": ["null", "string"],
        "kind": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "again": "E",
        "flags": {"type": "array", "items": {"type": "map", "values": ["null", inner, "double"]}},
        "timestamp": "long",
        "fraction": "float",
        "truth": "boolean",
        "offset": ["null", "long"],
        "key": {"type": "bytes"},
    }
    more: dict[str, Any] = {
        "topic": "orders",
        "blob": b"abc",
        "nothing": None,
        "kind": "B",
        "again": "A",
        "flags": [{"x": {"a": ["p", "q"]}, "y": None}, {}, {"z": 1.5}],
        "fraction": 2.5,
        "truth": True,
    }
    rows: list[dict[str, Any]] = [
        {**more, "offset": 4, "timestamp": 1, "key": b"k", "value": "text", "headers": {"h": None, "i": b"1"}},
        {**more, "flags": [], "offset": 5, "timestamp": 2, "key": b"", "value": None, "headers": None},
    ]
    assert read(write(fields, rows)) == [
        Given(offset=4, timestamp=1, key=b"k", value=b"text", headers=((b"h", None), (b"i", b"1"))),
        Given(offset=5, timestamp=2, key=b"", value=None),
    ]


def test_maps_in_several_blocks_with_sizes_are_read() -> None:
    text = write({**DOCUMENT, "headers": MAP}, [row(0, headers={"h": b"x"})])
    plain = bytes.fromhex("020268027800")
    # Blocks of -1 with their size: the form that lets a reader skip them.
    sized = bytes.fromhex("01080268027801080269027900")
    at = text.rindex(plain)
    body = text[text.rindex(b"\x0corders") : at] + sized
    sync = text[-16:]
    header = text[: text.index(sync) + 16]
    made = header + bytes([2, 2 * len(body)]) + body + sync
    assert read(made) == [Given(offset=0, timestamp=7, headers=((b"h", b"x"), (b"i", b"y")))]


def test_java_wrapped_headers_are_what_they_were() -> None:
    headers = {
        "bytes": ARRAY + b"\0\0\0\2hv",
        "empty": ARRAY + bytes(4),
        "string": bytes.fromhex("aced000574") + b"\0\4hv\xc3\xbc",
        "nul": bytes.fromhex("aced000574") + b"\0\3a\xc0\x80",
        "pair": bytes.fromhex("aced000574") + b"\0\6" + bytes.fromhex("eda0bdedb880"),
        "long": bytes.fromhex(
            "aced00057372000e6a6176612e6c616e672e4c6f6e673b8be490cc8f23df0200014a000576616c7565"
            "787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870fffffffffffffffb"
        ),
        "cut": ARRAY + b"\0\0\0\3hv",
        "class": bytes.fromhex("aced00057372") + b"\0\4evil",
        "short": b"\xac\xed",
    }
    (record,) = read(write(DOCUMENT, [row(0, headers=headers)]))
    assert dict(record.headers) == {
        b"bytes": b"hv",
        b"empty": b"",
        b"string": "hvü".encode(),
        b"nul": b"a\0",
        b"pair": "\U0001f600".encode(),
        b"long": b"-5",
        b"cut": headers["cut"],
        b"class": headers["class"],
        b"short": b"\xac\xed",
    }


def test_a_serialised_value_of_no_known_form_stays_as_it_is() -> None:
    for value in (b"", b"x", bytes.fromhex("aced0005"), bytes.fromhex("aced000574") + b"\0\x09ab"):
        assert text_of(value) == value


def test_the_document_files_of_another_writer_are_read_though_their_names_tell_no_offset() -> None:
    text = write(DOCUMENT, [row(500), row(501)])
    assert [each.offset for each in read(text, "topics/orders/partition=3/orders+3-0.data")] == [500, 501]


def test_large_document_files_are_surveyed_by_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.avro.survey.WHOLE_BYTES", 400)
    text = write(DOCUMENT, [row(offset, value=b"v" * 100) for offset in range(500, 600)], "null", 300)
    with fresh_storage() as storage:
        storage.put("topics/orders/partition=3/orders+3-0.data", text)
        (found,) = LAYOUT.survey(storage).segments
        assert (found.base_offset, found.end_offset, found.records) == (500, 600, None)


def test_files_that_overlap_give_each_record_once() -> None:
    with fresh_storage() as storage:
        for first, last in ((0, 10), (5, 15), (7, 9), (20, 25)):
            storage.put(
                f"orders/3/orders-3-{first:015}.avro", write(DOCUMENT, [row(offset) for offset in range(first, last)])
            )
        assert [each.offset for each in load(storage)] == [*range(15), *range(20, 25)]
        survey = LAYOUT.survey(storage)
        assert [(fault.offset, fault.fatal) for fault in survey.faults] == [(7, False)]
        assert not any(fault.fatal for fault in LAYOUT.check(storage, survey, deep=True))


def test_of_two_connectors_copies_the_one_that_came_further_counts() -> None:
    with fresh_storage() as storage:
        for name, last in (("b-activate", 8), ("b-passivate", 5)):
            path = f"orders/{name}/3/orders-3-000000000000000.avro"
            storage.put(path, write(DOCUMENT, [row(offset, value=name.encode()) for offset in range(last)]))
        assert [each.value for each in load(storage)] == [b"b-activate"] * 8
        assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [False]


@pytest.mark.parametrize(
    "change", [{"topic": "payments"}, {"topic": "orderz"}, {"partition": 4}, {"offset": 3}, {"offset": -1}]
)
def test_records_of_another_place_or_order_are_refused(change: dict[str, Any]) -> None:
    with fresh_storage() as storage:
        storage.put(PATH, write(DOCUMENT, [row(3), {**row(4), **change}, row(5)]))
        (found,) = LAYOUT.survey(storage).segments
        assert (found.end_offset, LAYOUT.survey(storage).faults[0].fatal) == (4, True)
        reading = LAYOUT.read(storage, found)
        assert [each.offset for each in given_of([next(reading)])] == [3]
        with pytest.raises(CorruptDataError):
            next(reading)


def doubled(depth: int) -> dict[str, Any]:
    """A type whose size doubles with each step, without a byte in it."""
    kind: Any = {"type": "record", "name": "R0", "fields": []}
    for number in range(1, depth):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{number - 1}"}]
        kind = {"type": "record", "name": f"R{number}", "fields": fields}
    return schema_of({**DOCUMENT, "more": kind})


@pytest.mark.parametrize(
    "schema",
    [
        "string",
        [],
        {"type": "record", "name": "R"},
        {"type": "record", "name": "R", "fields": [3]},
        schema_of({"offset": "long"}),
        schema_of({**DOCUMENT, "offset": "string"}),
        schema_of({**DOCUMENT, "key": MAP}),
        schema_of({**DOCUMENT, "headers": "bytes"}),
        schema_of({**DOCUMENT, "headers": {"type": "map", "values": "null"}}),
        schema_of({**DOCUMENT, "headers": {"type": "map", "values": MAP}}),
        schema_of({**DOCUMENT, "headerList": {"type": "array", "items": "bytes"}}),
        schema_of({**DOCUMENT, "more": "R"}),
        schema_of({**DOCUMENT, "more": "Unheard"}),
        schema_of({**DOCUMENT, "more": {"type": "array", "items": "null"}}),
        schema_of({**DOCUMENT, "more": {"type": "array"}}),
        schema_of({**DOCUMENT, "more": {"type": "fixed", "name": "F", "size": -1}}),
        schema_of({**DOCUMENT, "more": {"type": "fixed", "name": "F", "size": 1 << 40}}),
        schema_of({**DOCUMENT, "more": []}),
        schema_of({**DOCUMENT, "more": 5}),
        schema_of({**DOCUMENT, "more": ["long"] * 20_000}),
        {**schema_of(DOCUMENT), "fields": [*schema_of(DOCUMENT)["fields"], {"name": "offset", "type": "long"}]},
        {**schema_of(DOCUMENT), "fields": [*schema_of(DOCUMENT)["fields"], {"name": ["x"], "type": "long"}]},
        doubled(40),
    ],
)
def test_schemas_that_cannot_be_walked_are_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedFormatError):
        compile_records(schema)


def test_types_that_nest_without_end_are_refused() -> None:
    kind: Any = "long"
    for _ in range(5000):
        kind = {"type": "array", "items": kind}
    with pytest.raises(UnsupportedFormatError):
        compile_records(schema_of({**DOCUMENT, "more": kind}))


MESSAGE = Coordination(
    event=Event.PASSIVATE, instance="b-activate-3", topic="orders", partition=3, offset=1 << 40, timestamp_ms=-5
)


def test_coordination_messages_are_read_as_an_avro_library_writes_them() -> None:
    fields = {
        "event": {"type": "enum", "name": "EnumType", "symbols": ["ACTIVATE", "PASSIVATE"]},
        "connectorInstanceName": "string",
        "topic": "string",
        "partition": "int",
        "offset": "long",
        "timestamp": "long",
    }
    values = ("PASSIVATE", "b-activate-3", "orders", 3, 1 << 40, -5)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema_of(fields)), dict(zip(fields, values, strict=True)))
    value = b"\xc3\x01" + bytes(8) + out.getvalue()
    assert decode_coordination(value) == MESSAGE
    assert encode_coordination(MESSAGE, bytes(8)) == value


@pytest.mark.parametrize("cut", range(1, 40))
def test_coordination_messages_that_are_cut_are_refused(cut: int) -> None:
    value = encode_coordination(MESSAGE, bytes(8))
    with pytest.raises((CorruptDataError, UnsupportedFormatError)):
        decode_coordination(value[:-cut])
    with pytest.raises(CorruptDataError):
        decode_coordination(value + bytes(cut))
