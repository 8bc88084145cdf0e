"""Torn, damaged and hostile files: recovered or refused, never a crash, never other records than were written."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError
from maxbrod.layouts.binlog.reader import repair
from maxbrod.layouts.binlog.survey import LAYOUT, prune
from support.given_records import Given, given_of
from support.plain_binlog import partition_index, record, segment
from support.storages import fresh_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

PREFIX = "t/segment_partition_000_from_offset_0000000000"
RECORDS = [Given(offset=i, value=b"value %d" % i, headers=((b"h", b"v"),) if i % 2 else ()) for i in range(6)]


def put(storage: Storage, records: bytes, index: bytes | None, listed: list[int] | None = None) -> None:
    storage.put(f"{PREFIX}_records", records)
    if index is not None:
        storage.put(f"{PREFIX}_index", index)
    storage.put("t/index_partition_000", partition_index(0, listed or [0]))


def load(storage: Storage) -> list[Given]:
    found = []
    for each in LAYOUT.survey(storage).segments:
        found += given_of(LAYOUT.read(storage, each))
    return found


def fatal(storage: Storage) -> bool:
    return any(fault.fatal for fault in LAYOUT.check(storage, LAYOUT.survey(storage), deep=True))


def test_bytes_behind_the_last_indexed_record_are_passed_over() -> None:
    records, index = segment(RECORDS)
    with fresh_storage() as storage:
        put(storage, records + record(Given(offset=6))[:-3], index)
        assert load(storage) == RECORDS
        assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [False]


def test_a_torn_record_in_the_middle_is_led_around_by_the_index() -> None:
    head, index = segment(RECORDS[:3])
    data = head + record(RECORDS[3])[:9]
    for each in RECORDS[3:]:
        text = record(each)
        index += struct.pack(">qqq", each.offset, len(data), len(text))
        data += text
    with fresh_storage() as storage:
        put(storage, data, index)
        assert load(storage) == RECORDS
        assert not fatal(storage)


@pytest.mark.parametrize("cut", range(1, 24))
def test_an_index_torn_at_its_end_loses_no_indexed_record(cut: int) -> None:
    records, index = segment(RECORDS)
    with fresh_storage() as storage:
        put(storage, records, index[:-cut])
        assert load(storage) == RECORDS[:-1]
        repair(storage)
        assert load(storage) == RECORDS[:-1]
        assert LAYOUT.survey(storage).faults[0].fatal is False


@pytest.mark.parametrize("missing", range(1, 24))
def test_an_index_that_was_torn_and_written_on_is_made_good_from_the_records(missing: int) -> None:
    data, index = segment(RECORDS[:3])
    index = index[:-missing]
    for each in RECORDS[2:]:  # the tool had lost sight of the third, and wrote it again
        text = record(each)
        index += struct.pack(">qqq", each.offset, len(data), len(text))
        data += text
    with fresh_storage() as storage:
        put(storage, data, index)
        assert load(storage) == RECORDS
        assert not fatal(storage)
        repair(storage)
        assert load(storage) == RECORDS
        assert LAYOUT.survey(storage).faults == ()


@pytest.mark.parametrize("index", [None, b""])
def test_a_lost_segment_index_is_made_anew_byte_for_byte(index: bytes | None) -> None:
    records, expected = segment(RECORDS)
    with fresh_storage() as storage:
        put(storage, records, index)
        assert load(storage) == RECORDS
        assert not fatal(storage)
        repair(storage)
        assert bytes(storage.get(f"{PREFIX}_index")) == expected


def test_a_lost_partition_index_is_a_fault_until_it_is_repaired() -> None:
    records, index = segment(RECORDS)
    with fresh_storage() as storage:
        put(storage, records, index)
        storage.delete(["t/index_partition_000"])
        assert load(storage) == []
        assert fatal(storage)
        repair(storage)
        assert load(storage) == RECORDS
        assert not fatal(storage)


def test_repair_walks_records_that_are_larger_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.layouts.binlog.reader.PIECE_BYTES", 64)
    large = [Given(offset=i, value=b"x" * size) for i, size in enumerate([1, 5000, 0, 700, 3])]
    records, expected = segment(large)
    with fresh_storage() as storage:
        put(storage, records, None)
        repair(storage)
        assert bytes(storage.get(f"{PREFIX}_index")) == expected


def test_damage_without_an_index_is_told_with_its_place_and_what_stands_before_it_is_kept() -> None:
    records, _ = segment(RECORDS)
    at = len(segment(RECORDS[:2])[0])
    broken = records[: at + 8] + b"\x00\x00\x00\x07" + records[at + 12 :]
    with fresh_storage() as storage:
        put(storage, broken, None)
        (found,) = LAYOUT.survey(storage).segments
        reading = LAYOUT.read(storage, found)
        assert given_of([next(reading)]) == RECORDS[:2]
        with pytest.raises(CorruptDataError) as raised:
            next(reading)
        assert (raised.value.offset, raised.value.position) == (2, at)
        assert [fault.fatal for fault in repair(storage)] == [True, False]
        assert load(storage) == RECORDS[:2]


def test_records_before_the_damage_are_given_and_the_damage_is_named() -> None:
    records, index = segment(RECORDS)
    at = len(segment(RECORDS[:4])[0])
    with fresh_storage() as storage:
        put(storage, records[:at] + b"\xff" + records[at + 1 :], index)
        (found,) = LAYOUT.survey(storage).segments
        reading = LAYOUT.read(storage, found)
        assert given_of([next(reading)]) == RECORDS[:4]
        with pytest.raises(CorruptDataError) as raised:
            next(reading)
        assert (raised.value.offset, raised.value.position) == (4, at)
        assert str(raised.value.object_name).endswith("_records")
        assert fatal(storage)


def test_a_records_file_that_lost_its_end_is_told() -> None:
    records, index = segment(RECORDS)
    with fresh_storage() as storage:
        put(storage, records[:-5], index)
        assert fatal(storage)
        (found,) = LAYOUT.survey(storage).segments
        with pytest.raises(TruncatedDataError):
            list(LAYOUT.read(storage, found))


@pytest.mark.parametrize(
    ("at", "value"),
    [(20, 0x7FFFFFFF), (20, -2), (20, -(1 << 31)), (25, 0x7FFFFFFF), (25, -7), (34, 0x7FFFFFFF), (34, -1)],
    ids=["key beyond", "key -2", "key minimum", "value beyond", "value -7", "headers beyond", "headers -1"],
)
def test_impossible_lengths_and_counts_are_refused(at: int, value: int) -> None:
    text = bytearray(record(Given(offset=0, key=b"k", value=b"value")))
    assert text[20:24] == b"\0\0\0\1"
    struct.pack_into(">i", text, at, value)
    for index in (b"\x01" + struct.pack(">qqq", 0, 1, len(text)), None):
        with fresh_storage() as storage:
            put(storage, b"\x01" + bytes(text), index)
            (found,) = LAYOUT.survey(storage).segments
            with pytest.raises(CorruptDataError):
                list(LAYOUT.read(storage, found))


@pytest.mark.parametrize("by", [-1, 1, 3])
def test_a_record_never_has_other_bytes_than_its_index_grants_it(by: int) -> None:
    text = record(RECORDS[0])
    with fresh_storage() as storage:
        put(storage, b"\x01" + text + b"more", b"\x01" + struct.pack(">qqq", 0, 1, len(text) + by))
        (found,) = LAYOUT.survey(storage).segments
        with pytest.raises(CorruptDataError):
            list(LAYOUT.read(storage, found))


@pytest.mark.parametrize(
    "entry", [(0, 1, 1 << 62), (0, (1 << 63) - 1, (1 << 63) - 1), (0, -1, 30), (-5, 1, 30), (0, 1, -30)]
)
def test_an_absurd_index_never_leads_anywhere_but_to_the_records(entry: tuple[int, int, int]) -> None:
    records, _ = segment(RECORDS)
    with fresh_storage() as storage:
        put(storage, records, b"\x01" + struct.pack(">qqq", *entry))
        assert load(storage) == RECORDS


@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_is_refused_or_harmless_and_never_a_crash(data: st.DataObject) -> None:
    files = dict(zip(("_records", "_index"), segment(RECORDS), strict=True))
    which = data.draw(st.sampled_from(["_records", "_index"]))
    text = bytearray(files[which])
    if data.draw(st.booleans()):
        del text[data.draw(st.integers(0, len(text) - 1)) :]
    for at in data.draw(st.lists(st.integers(0, max(len(text) - 1, 0)), max_size=3)) if text else []:
        text[at] ^= data.draw(st.integers(1, 255))
    files[which] = bytes(text)
    with fresh_storage() as storage:
        put(storage, files["_records"], files["_index"])
        survey = LAYOUT.survey(storage)
        list(LAYOUT.check(storage, survey, deep=True))
        for found in survey.segments:
            try:
                records = given_of(LAYOUT.read(storage, found))
            except MaxbrodError:
                continue
            assert [each.offset for each in records] == sorted({each.offset for each in records})
        repair(storage)


@settings(max_examples=100)
@given(text=st.binary(max_size=200))
def test_any_partition_index_is_read_or_refused(text: bytes) -> None:
    with fresh_storage() as storage:
        records, index = segment(RECORDS)
        put(storage, records, index)
        storage.replace("t/index_partition_000", text)
        LAYOUT.survey(storage)
        repair(storage)
        assert load(storage) == RECORDS


@pytest.mark.parametrize("name", [b"../../etc/passwd", b"segment_partition_001_from_offset_0000000000", b"\xff\xfe"])
def test_a_partition_index_never_leads_out_of_its_partition(name: bytes) -> None:
    with fresh_storage() as storage:
        put(storage, *segment(RECORDS))
        storage.replace("t/index_partition_000", b"\x01" + struct.pack(">i", len(name)) + name + bytes(8))
        survey = LAYOUT.survey(storage)
        assert survey.segments == ()
        assert survey.faults[0].fatal


def many(storage: Storage, starts: list[int]) -> None:
    for number, start in enumerate(starts):
        first = 0 if not number else start
        records, index = segment([Given(offset=start + i, timestamp=1000 * (start + i)) for i in range(3)])
        name = f"t/segment_partition_000_from_offset_{first:010}"
        storage.put(f"{name}_records", records)
        storage.put(f"{name}_index", index)
    storage.put("t/index_partition_000", partition_index(0, [0, *starts[1:]]))


def going(storage: Storage, *starts: int) -> list[str]:
    return [each.path for each in LAYOUT.survey(storage).segments if each.base_offset in starts]


def test_pruned_segments_go_and_the_index_follows() -> None:
    with fresh_storage() as storage:
        many(storage, [10, 20, 30, 40])
        prune(storage, LAYOUT.survey(storage), going(storage, 10, 20))
        assert [each.offset for each in load(storage)] == [30, 31, 32, 40, 41, 42]
        assert LAYOUT.survey(storage).faults == ()
        assert bytes(storage.get("t/index_partition_000")) == partition_index(0, [30, 40])
        prune(storage, LAYOUT.survey(storage), going(storage, 30))
        survey = LAYOUT.survey(storage)
        assert (len(survey.segments), list(survey.positions.values())) == (1, [43])


def test_a_pruning_that_was_cut_short_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_storage() as storage:
        many(storage, [10, 20, 30])
        survey = LAYOUT.survey(storage)
        with monkeypatch.context() as patched:
            patched.setattr(type(storage), "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                prune(storage, survey, going(storage, 10, 20))
        assert not fatal(storage)
        assert [each.offset for each in load(storage)] == [30, 31, 32]
        prune(storage, LAYOUT.survey(storage), ())
        assert len(list(storage.list())) == 2 * len(LAYOUT.survey(storage).segments) + 1


def test_a_listed_segment_that_is_gone_is_told_and_repaired() -> None:
    with fresh_storage() as storage:
        many(storage, [10, 20, 30])
        storage.delete(["t/segment_partition_000_from_offset_0000000020_records"])
        assert fatal(storage)
        assert any(fault.fatal for fault in repair(storage))
        assert [each.offset for each in load(storage)] == [10, 11, 12, 30, 31, 32]


def test_segments_that_the_index_has_lost_are_told_and_taken_in_by_number_not_by_name() -> None:
    starts = [9_999_999_990, 9_999_999_995, 10_000_000_002, 10_000_000_006]
    offsets = [start + i for start in starts for i in range(3)]
    with fresh_storage() as storage:
        many(storage, starts)
        # What the tool leaves where it rebuilds its index in the order of names.
        storage.replace("t/index_partition_000", partition_index(0, [0, *starts[2:]]))
        assert len(load(storage)) == 9
        assert fatal(storage)
        repair(storage)
        assert [each.offset for each in load(storage)] == offsets
        assert LAYOUT.survey(storage).faults == ()
        storage.delete(["t/index_partition_000"])
        repair(storage)
        assert bytes(storage.get("t/index_partition_000")) == partition_index(0, [0, *starts[1:]])
