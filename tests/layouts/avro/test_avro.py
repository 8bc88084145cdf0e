"""What the layout promises, without the tool's own samples."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.avro.format import CODECS, read_header
from maxbrod.layouts.avro.survey import LAYOUT
from maxbrod.layouts.foreign import ClusterFacts, ForeignGroup, ForeignTopic, Layout, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from support.given_records import Given, batch, contents, given_of, in_batches, some_records
from support.plain_batches import varint
from support.storages import fresh_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="orders", partition=3)
FEW = [Given(offset=offset, value=b"x" * 30) for offset in (5, 6, 9, 12)]
ODD = [
    Given(offset=0, key=None, value=None),
    Given(offset=1, key=b"", value=b"", timestamp=-1),
    Given(offset=7, headers=((b"h", b"1"),), timestamp_type=1),
    Given(offset=8, headers=((b"b", b"1"), (b"a", b"2"), (b"b", b"3"))),
    Given(offset=9, headers=((b"n", None),), timestamp=-1, timestamp_type=-1),
    Given(offset=10, headers=((b"\xff", b"no text"), (b"", b""))),
    # What Java would have written for the byte[] "x": of our own files it is nothing but bytes.
    Given(offset=11, headers=((b"j", bytes.fromhex("aced0005757200025b42acf317f8060854e00200007870") + b"\0\0\0\1x"),)),
    Given(offset=(1 << 63) - 2, timestamp=-(1 << 63)),
]


def store(storage: Storage, *runs: list[list[Given]], options: WriteOptions | None = None) -> None:
    """One run each: survey, write, publish."""
    options = options or WriteOptions()
    for run in runs:
        survey = LAYOUT.survey(storage)
        written = LAYOUT.write(storage, WHERE, [batch(records) for records in run], options, survey=survey)
        LAYOUT.publish(storage, survey, written, options, ClusterFacts())


def load(storage: Storage) -> list[Given]:
    return [record for found in LAYOUT.survey(storage).segments for record in given_of(LAYOUT.read(storage, found))]


def fast_rows(storage: Storage) -> list[dict[str, Any]]:
    """The records of the archive's files as another reader of Avro has them."""
    files = [text for path, text in sorted(contents(storage).items()) if path.endswith(".data")]
    return [dict(row) for text in files for row in fastavro.reader(io.BytesIO(unpacked(text)))]  # type: ignore[arg-type]


def unpacked(text: bytes) -> bytes:
    """A file of codec zstandard as one without: fastavro would need one more library for it."""
    named = b"\x14avro.codec\x12zstandard"
    sync, at = text[-16:], text.index(text[-16:]) + 16
    if named not in text[:at]:
        return text
    out = text[:at].replace(named, b"\x14avro.codec\x08null")
    while at < len(text):
        count, at = varint_at(text, at)
        size, at = varint_at(text, at)
        with pa.CompressedInputStream(pa.BufferReader(text[at : at + size]), "zstd") as stream:
            data = stream.read()
        assert text[at + size : at + size + 16] == sync
        out += varint(count) + varint(len(data)) + data + sync
        at += size + 16
    return out


def varint_at(text: bytes, at: int) -> tuple[int, int]:
    end = next(i for i in range(at, len(text)) if text[i] < 0x80) + 1
    raw = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(text[at:end]))
    return raw >> 1 ^ -(raw & 1), end


def as_fast(record: Given) -> dict[str, Any]:
    """A record as fastavro reads what we write."""
    listed = len(record.headers) > 1 or any(value is None or not is_text(key) for key, value in record.headers)
    return {
        "topic": "orders",
        "partition": 3,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": {key.decode(): value or b"" for key, value in record.headers if is_text(key)},
        "timestampType": record.timestamp_type,
        "headerList": [{"key": key, "value": value} for key, value in record.headers] if listed else None,
    }


def is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_file_has_the_bytes_that_the_page_explains() -> None:
    with fresh_storage() as storage:
        record = Given(offset=5, timestamp=1, key=b"k", value=None, headers=((b"h", b"v"),))
        store(storage, [[record]])
        text = contents(storage)["topics/orders/partition=3/orders+3-00000000000000000005.data"]
    assert text.startswith(b"Obj\x01\x10\x16avro.schema")
    sync = text[-16:]
    body = bytes.fromhex(
        "0c6f7264657273060a02"  # topic, partition 3, offset 5, timestamp 1
        "00026b0200020268027600"  # key "k", value null, headers: one pair "h" "v", end
        "0000"  # timestampType 0, headerList null
    )  # fmt: skip
    assert text.endswith(sync + bytes([2, 2 * len(body)]) + body + sync)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_and_another_reader_agrees(codec: str) -> None:
    with fresh_storage() as storage:
        store(storage, [ODD], options=WriteOptions(codec=codec))
        assert load(storage) == ODD
        assert fast_rows(storage) == [as_fast(record) for record in ODD]


@settings(max_examples=60)
@given(data=st.data(), records=some_records(), most=st.sampled_from([1, 60, 300, None]))
def test_any_records_come_back_equal_and_another_reader_agrees(
    data: st.DataObject, records: list[Given], most: int | None
) -> None:
    options = WriteOptions(codec=data.draw(st.sampled_from(CODECS)), segment_bytes_max=most)
    with fresh_storage() as storage:
        store(storage, data.draw(in_batches(records)), options=options)
        assert load(storage) == records
        assert fast_rows(storage) == [as_fast(record) for record in records]
        survey = LAYOUT.survey(storage)
        assert list(LAYOUT.check(storage, survey, deep=True)) == []
        assert survey.positions == ({WHERE: records[-1].offset + 1} if records else {})


@settings(max_examples=30)
@given(data=st.data(), records=some_records())
def test_the_cut_into_files_never_depends_on_the_batches(data: st.DataObject, records: list[Given]) -> None:
    options = WriteOptions(segment_bytes_max=150)
    with fresh_storage() as one, fresh_storage() as other:
        store(one, [records], options=options)
        store(other, data.draw(in_batches(records)), options=options)
        assert contents(one) == contents(other)


def test_many_blocks_and_many_batches_are_one_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.avro.writer.BLOCK_BYTES", 100)
    monkeypatch.setattr("maxbrod.layouts.avro.reader._GROUP_BYTES", 300)
    records = [Given(offset=offset, value=b"x" * (offset % 50), headers=((b"h", b"v"),)) for offset in range(200)]
    with fresh_storage() as storage:
        store(storage, [records[:70], records[70:]], options=WriteOptions(codec="deflate"))
        (segment,) = LAYOUT.survey(storage).segments
        batches = list(LAYOUT.read(storage, segment))
        assert len(batches) > 10
        assert given_of(batches) == records
        assert fast_rows(storage) == [as_fast(record) for record in records]


def test_runs_go_on_where_the_last_one_ended_and_write_nothing_twice() -> None:
    with fresh_storage() as storage:
        store(storage, [FEW[:2]], [FEW], [FEW])
        assert load(storage) == FEW
        assert len(LAYOUT.survey(storage).segments) == 2


def test_a_run_that_crashed_is_gone_on_with_and_nothing_is_lost_or_double() -> None:
    with fresh_storage() as storage:
        options = WriteOptions(segment_records_max=1)
        before = LAYOUT.survey(storage)
        LAYOUT.write(storage, WHERE, [batch(FEW[:3])], options, survey=before)
        store(storage, [FEW])
        assert load(storage) == FEW
        # Another attempt of the very run that crashed finds the same names.
        LAYOUT.write(storage, WHERE, [batch(FEW[:3])], options, survey=before)
        assert load(storage) == FEW


def test_markers_of_transactions_never_reach_the_archive() -> None:
    with fresh_storage() as storage:
        marked = batch(FEW, control=pa.array([False, True, False, True]))
        LAYOUT.write(storage, WHERE, [marked], WriteOptions(), survey=LAYOUT.survey(storage))
        assert load(storage) == [FEW[0], FEW[2]]


def test_offsets_that_do_not_rise_are_refused() -> None:
    with fresh_storage() as storage, pytest.raises(RefusedError, match="must rise"):
        store(storage, [[FEW[1]], [FEW[1]]])


def test_groups_and_topics_come_back() -> None:
    groups = (ForeignGroup(group_id="grüppe", offsets={WHERE: 7, TopicPartition(topic="x", partition=0): 1 << 62}),)
    topics = {"orders": ForeignTopic(name="orders", partition_count=8, configs={"cleanup.policy": "compact"})}
    with fresh_storage() as storage:
        facts = ClusterFacts(cluster_id="c", topics=topics, groups=groups, taken_at_ms=5)
        LAYOUT.publish(storage, LAYOUT.survey(storage), [], WriteOptions(), facts)
        store(storage, [FEW])  # whose source does not tell of groups
        survey = LAYOUT.survey(storage)
        assert (survey.groups, survey.topics, survey.cluster_id, survey.taken_at_ms) == (groups, topics, "c", 5)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"version":2}', b'{"version":1,"groups":{"g":{"t":{"0":-1}}}}', b'{"version":1,"topics":3}'],
)
def test_broken_facts_are_a_fault_and_no_record_is_lost(text: bytes) -> None:
    with fresh_storage() as storage:
        store(storage, [FEW])
        storage.replace("maxbrod.json", text)
        assert [fault.path for fault in LAYOUT.survey(storage).faults] == ["maxbrod.json"]
        assert load(storage) == FEW


@pytest.mark.parametrize("topic", ["..", ".", "a/b", "", "a" * 250, "ü"])
def test_topics_that_kafka_cannot_have_are_refused(topic: str) -> None:
    where = TopicPartition(topic=topic, partition=0)
    with fresh_storage() as storage, pytest.raises(UsageError):
        LAYOUT.write(storage, where, [batch(FEW)], WriteOptions(), survey=LAYOUT.survey(storage))


@pytest.mark.parametrize(
    "options",
    [
        WriteOptions(codec="lz4"),
        WriteOptions(codec="deflate", level=10),
        WriteOptions(codec="snappy", level=1),
        WriteOptions(extra={"region": "x"}),
        WriteOptions(extra={"schema": "other"}),
        WriteOptions(segment_bytes_max=0),
    ],
)
def test_options_that_the_layout_does_not_know_are_refused(options: WriteOptions) -> None:
    with fresh_storage() as storage, pytest.raises(UsageError):
        LAYOUT.write(storage, WHERE, [], options, survey=LAYOUT.survey(storage))


@pytest.mark.parametrize(
    "path",
    [
        "topics/orders/partition=3/payments+3-0.data",
        "topics/orders/partition=3/orders+4-0.data",
        "topics/orders/partition=03/orders+03-0.data",
        "orders/3/orders-3-00000000000000.avro",
        "orders/3/orders-3-000000000000000.parquet",
        "topics/orders/partition=99999999999/orders+99999999999-0.data",
    ],
)
def test_objects_of_other_names_are_passed_over(path: str) -> None:
    with fresh_storage() as storage:
        storage.put(path, b"Obj\x01")
        survey = LAYOUT.survey(storage)
        assert (survey.segments, survey.positions, survey.faults) == ((), {}, ())
        assert not LAYOUT.detect(storage)


def test_it_is_a_layout_like_any_other() -> None:
    layout: Layout = LAYOUT
    assert layout_of(layout.name) is LAYOUT
    assert not any(loss.real for loss in layout.losses)


def test_every_kind_of_storage_holds_such_an_archive(storage: Storage) -> None:
    store(storage, [FEW[:2]], [FEW[2:]])
    assert LAYOUT.detect(storage)
    assert load(storage) == FEW


def test_what_write_returns_is_what_a_survey_finds() -> None:
    with fresh_storage() as storage:
        options = WriteOptions(segment_records_max=3)
        written = LAYOUT.write(storage, WHERE, [batch(ODD)], options, survey=LAYOUT.survey(storage))
        assert written == list(LAYOUT.survey(storage).segments)
        assert written[0].min_timestamp == -1


def test_some_columns_alone_are_read() -> None:
    with fresh_storage() as storage:
        store(storage, [FEW])
        (found,) = LAYOUT.survey(storage).segments
        (part,) = LAYOUT.read(storage, found, columns=["offset", "headers"])
        assert part.schema.names == ["offset", "headers"]
        trimmed = replace(found, details={"from_offset": 9})
        (part,) = LAYOUT.read(storage, trimmed, columns=["value"])
        assert (part.schema.names, part.num_rows) == (["value"], 2)


SEED = """
{
    "namespace": "ch.tbd.kafka.backuprestore.model.avro",
    "type": "record",
    "name": "AvroKafkaRecord",
    "fields" : [
        {"name": "topic", "type": "string"},
        {"name": "partition", "type": "int"},
        {"name": "offset", "type": "long"},
        {"name": "timestamp", "type": "long"},
        {"name": "key", "type": [ "bytes", "null" ], "default": "null" },
        {"name": "value", "type": "bytes"},
        {"name": "headers", "type": [ {"type": "map", "values": "bytes"}, "null" ], "default": null}
    ]
}
"""
"""As the tool's document prints it."""
AS_SEED = WriteOptions(extra={"schema": "seed"}, segment_records_max=3)


def schema_of(storage: Storage) -> Any:
    path = LAYOUT.survey(storage).segments[0].path
    return read_header(storage, path, storage.head(path).size).schema


def test_with_the_schema_of_the_document_files_have_just_that() -> None:
    with fresh_storage() as storage:
        store(storage, [ODD[:4], ODD[4:]], options=AS_SEED)
        assert schema_of(storage) == json.loads(SEED)
        assert list(schema_of(storage)) == list(json.loads(SEED))
        lost = [
            replace(
                record,
                value=record.value or b"",
                timestamp_type=0,
                headers=tuple((key, value or b"") for key, value in record.headers if key != b"\xff"),
            )
            for record in ODD
        ]
        assert load(storage) == lost
        assert [row["value"] for row in fast_rows(storage)] == [record.value for record in lost]
        assert not list(LAYOUT.check(storage, LAYOUT.survey(storage), deep=True))


def test_what_the_schema_of_the_document_cannot_hold_is_a_loss_to_be_accepted() -> None:
    real = [loss.field for loss in LAYOUT.losses_with(AS_SEED) if loss.real]
    assert real == ["value_null", "headers"]
    assert not any(loss.real for loss in LAYOUT.losses_with(WriteOptions()))


def test_our_own_schema_is_that_of_the_document_but_for_a_value_that_may_be_null_and_two_fields_more() -> None:
    with fresh_storage() as storage:
        store(storage, [FEW])
        ours, document = schema_of(storage), json.loads(SEED)
        assert ours["fields"][:7] == [
            {**field, "type": ["bytes", "null"], "default": "null"} if field["name"] == "value" else field
            for field in document["fields"]
        ]
        assert [field["name"] for field in ours["fields"][7:]] == ["timestampType", "headerList"]
