"""What the layout promises, without the tool's own samples."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.binlog.survey import LAYOUT
from maxbrod.layouts.foreign import ClusterFacts, ForeignGroup, ForeignSegment, Layout, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from support.given_records import Given, batch, contents, given_of, in_batches, some_records
from support.plain_binlog import partition_index, read_records, segment
from support.storages import fresh_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="orders", partition=3)
FEW = [Given(offset=offset, value=b"x" * 30) for offset in (5, 6, 9, 12)]
# One record: offset 5, create time 1, key "k", null value, one header "h" with a null value.
GOLDEN = bytes.fromhex(
    "01"
    "0000000000000005000000000000000000000001"
    "000000016bffffffff00000001"
    "0000000168ffffffff"
)  # fmt: skip
GOLDEN_RECORD = Given(offset=5, timestamp=1, key=b"k", value=None, headers=((b"h", None),))


def store(
    storage: Storage,
    *runs: list[list[Given]],
    options: WriteOptions | None = None,
    groups: tuple[ForeignGroup, ...] = (),
) -> None:
    """One run each: survey, write, publish."""
    options = options or WriteOptions()
    for run in runs:
        survey = LAYOUT.survey(storage)
        written = LAYOUT.write(storage, WHERE, [batch(records) for records in run], options, survey=survey)
        LAYOUT.publish(storage, survey, written, options, ClusterFacts(groups=groups))


def load(storage: Storage) -> list[Given]:
    return [record for found in LAYOUT.survey(storage).segments for record in given_of(LAYOUT.read(storage, found))]


def test_a_record_has_the_bytes_of_the_documents_table() -> None:
    with fresh_storage() as storage:
        store(storage, [[GOLDEN_RECORD]])
        found = contents(storage)
    prefix = "orders/segment_partition_003_from_offset_0000000000"
    assert found == {
        f"{prefix}_records": GOLDEN,
        f"{prefix}_index": bytes.fromhex("0100000000000000050000000000000001000000000000002a"),
        "orders/index_partition_003": b"\x01\x00\x00\x00\x2csegment_partition_003_from_offset_0000000000" + bytes(8),
    }


@settings(max_examples=60)
@given(data=st.data(), records=some_records(), size=st.sampled_from([0, 1, 60, 300, None]))
def test_any_records_come_back_equal_and_a_plain_reader_agrees(
    data: st.DataObject, records: list[Given], size: int | None
) -> None:
    cut = data.draw(in_batches(records))
    with fresh_storage() as storage:
        store(storage, cut, options=WriteOptions(segment_bytes_max=size))
        assert load(storage) == records
        survey = LAYOUT.survey(storage)
        plain = [record for found in survey.segments for record in read_records(bytes(storage.get(found.path)))]
        assert plain == records
        assert survey.faults == ()
        assert list(LAYOUT.check(storage, survey, deep=True)) == []
        assert survey.positions == {WHERE: records[-1].offset + 1 if records else 0}


@settings(max_examples=30)
@given(data=st.data(), records=some_records())
def test_the_cut_into_segments_never_depends_on_the_batches(data: st.DataObject, records: list[Given]) -> None:
    options = WriteOptions(segment_bytes_max=150)
    with fresh_storage() as one, fresh_storage() as other:
        store(one, [records], options=options)
        store(other, data.draw(in_batches(records)), options=options)
        assert contents(one) == contents(other)


def test_runs_go_on_where_the_last_one_ended_and_write_nothing_twice() -> None:
    with fresh_storage() as storage:
        store(storage, [FEW[:2]], [FEW], [FEW])
        assert load(storage) == FEW
        index = bytes(storage.get("orders/index_partition_003"))
        assert index == partition_index(3, [0, 9])


def test_what_a_crash_left_unpublished_is_not_archived_and_is_written_over() -> None:
    with fresh_storage() as storage:
        options = WriteOptions(segment_records_max=1)
        survey = LAYOUT.survey(storage)
        LAYOUT.write(storage, WHERE, [batch(FEW[:3])], options, survey=survey)
        survey = LAYOUT.survey(storage)
        assert (survey.segments, survey.positions) == ((), {WHERE: 0})
        assert not any(fault.fatal for fault in survey.faults)
        store(storage, [FEW], options=options)
        assert load(storage) == FEW
        assert LAYOUT.survey(storage).faults == ()


def test_a_segment_that_a_crash_left_never_comes_between_those_that_were_published() -> None:
    with fresh_storage() as storage:
        LAYOUT.write(storage, WHERE, [batch(FEW)], WriteOptions(segment_records_max=1), survey=LAYOUT.survey(storage))
        store(storage, [FEW])
        assert load(storage) == FEW
        assert not any(fault.fatal for fault in LAYOUT.survey(storage).faults)


def test_publishing_twice_is_publishing_once() -> None:
    with fresh_storage() as storage:
        survey, options = LAYOUT.survey(storage), WriteOptions()
        written = LAYOUT.write(storage, WHERE, [batch(FEW)], options, survey=survey)
        LAYOUT.publish(storage, survey, written, options, ClusterFacts())
        before = contents(storage)
        LAYOUT.publish(storage, survey, written, options, ClusterFacts())
        assert contents(storage) == before


def test_segments_of_the_tool_are_gone_on_with() -> None:
    with fresh_storage() as storage:
        records, index = segment(FEW[:2])
        prefix = "orders/segment_partition_003_from_offset_0000000000"
        storage.put(f"{prefix}_records", records)
        storage.put(f"{prefix}_index", index)
        storage.put("orders/index_partition_003", partition_index(3, [0]))
        store(storage, [FEW[2:]])
        assert load(storage) == FEW
        assert bytes(storage.get(f"{prefix}_records")) == records


def test_a_partition_without_records_is_known_as_the_tool_knows_it() -> None:
    with fresh_storage() as storage:
        store(storage, [[]])
        prefix = "orders/segment_partition_003_from_offset_0000000000"
        empty = {f"{prefix}_records": b"\x01", f"{prefix}_index": b"\x01"}
        assert contents(storage) == {**empty, "orders/index_partition_003": partition_index(3, [0])}
        store(storage, [FEW])
        assert load(storage) == FEW


def test_the_tools_empty_first_segment_is_filled() -> None:
    with fresh_storage() as storage:
        prefix = "orders/segment_partition_003_from_offset_0000000000"
        storage.put(f"{prefix}_records", b"\x01")
        storage.put(f"{prefix}_index", b"\x01")
        storage.put("orders/index_partition_003", partition_index(3, [0]))
        store(storage, [FEW])
        assert load(storage) == FEW
        assert bytes(storage.get(f"{prefix}_records")) == segment(FEW)[0]


def test_markers_of_transactions_never_reach_the_archive() -> None:
    with fresh_storage() as storage:
        survey = LAYOUT.survey(storage)
        marked = batch(FEW, control=pa.array([False, True, False, True]))
        written = LAYOUT.write(storage, WHERE, [marked], WriteOptions(), survey=survey)
        LAYOUT.publish(storage, survey, written, WriteOptions(), ClusterFacts())
        assert load(storage) == [FEW[0], FEW[2]]


def test_offsets_that_do_not_rise_are_refused() -> None:
    with fresh_storage() as storage, pytest.raises(RefusedError, match="must rise"):
        store(storage, [[FEW[1]], [FEW[1]]])


def test_groups_come_back_and_files_are_as_the_tool_writes_them() -> None:
    other = TopicPartition(topic="orders", partition=7)
    elsewhere = TopicPartition(topic="payments", partition=0)
    groups = (
        ForeignGroup(group_id="grüppe", offsets={WHERE: 12, other: 5_000_000_000, elsewhere: 1}),
        ForeignGroup(group_id="a", offsets={WHERE: 0}),
    )
    with fresh_storage() as storage:
        store(storage, [FEW], groups=groups)
        found = bytes(storage.get("orders/consumer_offsets_partition_003"))
        assert found == '{"a":0,"grüppe":12}'.encode()
        survey = LAYOUT.survey(storage)
        assert {group.group_id: dict(group.offsets) for group in survey.groups} == {
            "a": {WHERE: 0},
            "grüppe": {WHERE: 12, other: 5_000_000_000},
        }
        assert survey.positions == {WHERE: 13}
        store(storage, [[]], groups=(ForeignGroup(group_id="a", offsets={WHERE: 3}),))
        assert json.loads(bytes(storage.get("orders/consumer_offsets_partition_007"))) == {}
        store(storage, [[]])
        assert json.loads(bytes(storage.get("orders/consumer_offsets_partition_003"))) == {"a": 3}


def test_a_groups_file_of_no_bytes_is_no_fault() -> None:
    with fresh_storage() as storage:
        storage.put("orders/consumer_offsets_partition_000", b"")
        survey = LAYOUT.survey(storage)
        assert (survey.groups, survey.faults) == ((), ())


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"g": -1}', b'{"g": 1.5}', b'{"g": true}', b"\xff", b'{"g":' * 5000])
def test_broken_groups_are_a_fault_and_nothing_else_is_lost(text: bytes) -> None:
    with fresh_storage() as storage:
        store(storage, [FEW])
        storage.replace("orders/consumer_offsets_partition_003", text)
        assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [True]
        assert load(storage) == FEW


def test_some_columns_alone_are_read() -> None:
    with fresh_storage() as storage:
        store(storage, [FEW])
        (found,) = LAYOUT.survey(storage).segments
        (part,) = LAYOUT.read(storage, found, columns=["offset", "headers"])
        assert part.schema.names == ["offset", "headers"]


@pytest.mark.parametrize("topic", ["..", ".", "a/b", "", "a" * 250, "ü"])
def test_topics_that_kafka_cannot_have_are_refused(topic: str) -> None:
    where = TopicPartition(topic=topic, partition=0)
    with fresh_storage() as storage, pytest.raises(UsageError):
        LAYOUT.write(storage, where, [batch(FEW)], WriteOptions(), survey=LAYOUT.survey(storage))


@pytest.mark.parametrize(
    "options",
    [
        WriteOptions(codec="zstd"),
        WriteOptions(extra={"region": "x"}),
        WriteOptions(segment_bytes_max=-1),
        WriteOptions(segment_records_max=0),
    ],
)
def test_options_that_the_layout_does_not_know_are_refused(options: WriteOptions) -> None:
    with fresh_storage() as storage, pytest.raises(UsageError):
        LAYOUT.write(storage, WHERE, [], options, survey=LAYOUT.survey(storage))


@pytest.mark.parametrize(
    "path",
    [
        "orders/index_partition_00",
        "orders/index_partition_0000",
        "orders/sub/index_partition_000",
        "orders/segment_partition_000_from_offset_0000000000",
        "orders/segment_partition_000_from_offset_9999999999999999999_records",
        "orders/segment_partition_99999999999_from_offset_0000000000_records",
    ],
)
def test_objects_of_other_names_are_passed_over(path: str) -> None:
    with fresh_storage() as storage:
        storage.put(path, b"\x01")
        survey = LAYOUT.survey(storage)
        assert (survey.segments, survey.positions, survey.faults) == ((), {}, ())


def test_segments_are_read_in_pieces_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.binlog.reader.PIECE_BYTES", 100)
    monkeypatch.setattr("maxbrod.layouts.binlog.reader._PIECE_ENTRIES", 3)
    records = [Given(offset=offset, value=b"x" * (400 if offset == 4 else 20)) for offset in range(9)]
    with fresh_storage() as storage:
        store(storage, [records])
        (found,) = LAYOUT.survey(storage).segments
        batches = list(LAYOUT.read(storage, found))
        assert given_of(batches) == records
        assert len(batches) > 4


def test_it_is_a_layout_like_any_other() -> None:
    layout: Layout = LAYOUT
    assert layout_of(layout.name) is LAYOUT
    assert not any(loss.real for loss in layout.losses)


def test_every_kind_of_storage_holds_such_an_archive(storage: Storage) -> None:
    store(storage, [FEW[:2]], [FEW[2:]])
    assert LAYOUT.detect(storage)
    assert load(storage) == FEW


def test_what_write_returns_reads_like_what_a_survey_finds() -> None:
    with fresh_storage() as storage:
        written = LAYOUT.write(
            storage, WHERE, [batch(FEW)], WriteOptions(segment_records_max=3), survey=LAYOUT.survey(storage)
        )
        LAYOUT.publish(storage, LAYOUT.survey(storage), written, WriteOptions(), ClusterFacts())

        def bare(found: ForeignSegment) -> ForeignSegment:
            return replace(found, min_timestamp=None, max_timestamp=None)

        assert [bare(each) for each in written] == list(LAYOUT.survey(storage).segments)
