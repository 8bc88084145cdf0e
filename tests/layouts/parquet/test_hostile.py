"""Damaged and hostile segments are refused with the object and the offset, or read as they were; nothing crashes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts.parquet import metadata
from maxbrod.layouts.parquet.metadata import decode_struct
from maxbrod.layouts.parquet.survey import LAYOUT
from support.parquet_trees import local, read, rows, write
from support.storages import fresh_storage

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.storage.interface import Storage

REFUSALS = (CorruptDataError, UnsupportedFormatError)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return local(tmp_path)


def whole_segment() -> tuple[ForeignSegment, bytes]:
    with fresh_storage() as storage:
        (segment,) = write(storage, [rows(50)])
        return segment, bytes(storage.get(segment.path))


SEGMENT, DATA = whole_segment()


@settings(max_examples=300)
@given(at=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_changes_no_record(at: int, bit: int) -> None:
    """Pages carry a checksum. A footer has none: what it says of the records is checked against the name and them."""
    damaged = bytearray(DATA)
    damaged[at] ^= 1 << bit
    with fresh_storage() as storage:
        storage.put(SEGMENT.path, damaged)
        survey = LAYOUT.survey(storage)
        refusal = found = None
        try:
            found = read(storage, survey.segments) if not survey.faults else None
        except REFUSALS as error:
            refusal = error
        assert refusal is None or str(refusal.object_name).endswith(SEGMENT.path)
        if found is not None:
            found.validate(full=True)
            assert found.equals(pa.Table.from_batches([rows(50)]))


def test_a_page_that_is_passed_over_never_goes_unnoticed(storage: Storage) -> None:
    """Byte 5 is the type of the first page: Arrow skips pages of types that it does not know, and tells nobody."""
    damaged = bytearray(DATA)
    damaged[5] ^= 1
    storage.put(SEGMENT.path, damaged)
    with pytest.raises(CorruptDataError, match="missing"):
        read(storage, LAYOUT.survey(storage).segments)


@settings(max_examples=100)
@given(size=st.integers(0, len(DATA) - 1))
def test_a_cut_segment_is_told_and_never_read(size: int) -> None:
    with fresh_storage() as storage:
        storage.put(SEGMENT.path, DATA[:size])
        survey = LAYOUT.survey(storage)
        assert not survey.segments
        assert [fault.path for fault in survey.faults] == [SEGMENT.path]
        assert survey.faults[0].fatal


@settings(max_examples=100)
@given(garbage=st.binary(max_size=300), tail=st.booleans())
def test_any_bytes_under_a_segments_name_are_told(garbage: bytes, tail: bool) -> None:
    with fresh_storage() as storage:
        storage.put(SEGMENT.path, b"PAR1" + garbage + (len(garbage).to_bytes(4, "little") + b"PAR1" if tail else b""))
        survey = LAYOUT.survey(storage)
        assert not survey.segments
        assert len(list(LAYOUT.check(storage, survey, deep=True))) == 1


def put(storage: Storage, table: pa.Table, keys: dict[str, str] | None = None, **options: Any) -> None:
    """A hand-made file under the segment's name, with the segment's own footer but for `keys`."""
    sink = pa.BufferOutputStream()
    own = pq.ParquetFile(pa.BufferReader(DATA)).metadata.metadata
    with pq.ParquetWriter(sink, table.schema, store_schema=False, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key.decode(): value.decode() for key, value in own.items()} | (keys or {}))
    storage.replace(SEGMENT.path, sink.getvalue().to_pybytes())


def stored() -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(DATA)).read()


def changed(name: str, values: pa.Array) -> pa.Table:
    table = stored()
    return table.set_column(table.schema.names.index(name), name, values)


@pytest.mark.parametrize(
    "table",
    [
        changed("offset", pa.array([0, 1, 1, *range(3, 50)], pa.uint64())),
        changed("offset", pa.array([*range(49), 60], pa.uint64())),
        changed("offset", pa.array([*range(49), (1 << 64) - 1], pa.uint64())),
        changed("offset", pa.array([*range(49), None], pa.uint64())),
        changed("timestamp_type", pa.array([7] * 50, pa.int8())),
        changed("header_value_null", pa.array([[True]] * 50, pa.list_(pa.bool_()))),
        changed("headers", pa.array([None] * 50, stored().schema.field("headers").type)),
    ],
)
def test_columns_that_contradict_each_other_are_refused(storage: Storage, table: pa.Table) -> None:
    put(storage, table)
    (segment,) = LAYOUT.survey(storage).segments
    with pytest.raises(CorruptDataError) as refusal:
        read(storage, [segment])
    assert refusal.value.object_name == storage.name_of(SEGMENT.path)
    assert refusal.value.offset is not None
    assert any(fault.fatal for fault in LAYOUT.check(storage, LAYOUT.survey(storage), deep=True))


@pytest.mark.parametrize(
    "table",
    [
        changed("offset", pa.array(["x"] * 50)),
        changed("timestamp", pa.array([1.5] * 50)),
        changed("headers", pa.array([b"x"] * 50)),
        changed("key_null", pa.array(["x"] * 50)),
        changed("value", pa.array([1] * 50)),
    ],
)
def test_columns_of_other_types_are_refused(storage: Storage, table: pa.Table) -> None:
    put(storage, table)
    with pytest.raises(UnsupportedFormatError):
        read(storage, LAYOUT.survey(storage).segments)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"topic": "other"}, "another segment"),
        ({"startOffset": "1"}, "another segment"),
        ({"level": "1"}, "another segment"),
        ({"partition": "-1"}, "not a number"),
        ({"endOffset": "٤٩"}, "not a number"),
        ({"messageCount": ""}, "lacks the key messageCount"),
        ({"region": ""}, "lacks the key region"),
        ({"messageCount": "51"}, "claims 51 records"),
    ],
)
def test_a_footer_that_does_not_fit_is_told(storage: Storage, keys: dict[str, str], told: str) -> None:
    put(storage, stored(), keys)
    (fault,) = LAYOUT.survey(storage).faults
    assert told in fault.message
    assert fault.fatal


def test_a_file_without_the_tools_columns_is_told(storage: Storage) -> None:
    put(storage, stored().drop_columns(["headers"]))
    (fault,) = LAYOUT.survey(storage).faults
    assert "lacks the column headers" in fault.message


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_bomb_is_refused_before_it_is_unpacked(storage: Storage, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Zeros by the megabyte in a few bytes: by the sizes that the headers of its pages give."""
    monkeypatch.setattr(metadata, "PAGE_BYTES_MAX", 1 << 20)
    zeros = pa.array([bytes(1 << 16)] * 50, pa.binary())
    put(storage, changed("value", zeros), compression=codec, use_dictionary=False, data_page_size=1 << 30)
    assert storage.head(SEGMENT.path).size < 1 << 15
    (segment,) = LAYOUT.survey(storage).segments
    with pytest.raises(CorruptDataError, match="claims to unpack"):
        read(storage, [segment])
    assert read(storage, [segment], ["offset", "key"]).num_rows == 50


def zig_zag(value: int, size: int) -> bytes:
    """A positive number as a varint of just so many bytes."""
    groups = [2 * value >> 7 * index & 0x7F for index in range(size)]
    assert not 2 * value >> 7 * size
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def test_a_page_never_unpacks_to_more_than_its_footer_promises(storage: Storage) -> None:
    """Arrow takes memory for what the header of a page claims: here 700 MB in place of some bytes."""
    start = 4
    end = DATA.index(bytes((0x1C, 0x15)), start)  # where the header of the data page begins within that of the page
    packed = decode_struct(memoryview(DATA), start)[0][3]
    claim = bytes((0x15, 0x00, 0x15)) + zig_zag(700_000_000, 5) + b"\x15"
    header = claim + zig_zag(packed, end - start - len(claim)) + b"\x2c"  # no checksum: there is no room for one
    damaged = DATA[:start] + header + DATA[start + len(header) :]
    assert decode_struct(memoryview(damaged), start)[0][2] == 700_000_000
    storage.put(SEGMENT.path, damaged)
    with pytest.raises(CorruptDataError, match="claims to unpack to 700000000 bytes"):
        read(storage, LAYOUT.survey(storage).segments)


@given(data=st.binary(max_size=200))
def test_no_bytes_crash_the_reader_of_page_headers(data: bytes) -> None:
    with suppress(CorruptDataError):
        metadata.check_pages(memoryview(data), column="value", unpacked_bytes=1 << 20)


def test_one_long_value_in_every_row_is_read_in_small_batches(storage: Storage) -> None:
    """A dictionary holds it once: neither file nor footer say how much the rows will take."""
    long = pa.array([bytes(range(256)) * 400] * 50, pa.binary())
    put(storage, changed("value", long), use_dictionary=["value"])
    assert storage.head(SEGMENT.path).size < 1 << 20
    assert read(storage, LAYOUT.survey(storage).segments).column("value").to_pylist() == long.to_pylist()


def test_a_segment_that_is_gone_or_another_is_told_by_the_quick_check(storage: Storage) -> None:
    write(storage, [rows(20)], segment_records_max=10)
    survey = LAYOUT.survey(storage)
    storage.delete([survey.segments[0].path])
    storage.replace(survey.segments[1].path, DATA)
    messages = [fault.message for fault in LAYOUT.check(storage, survey, deep=False)]
    assert messages[0] == "the object is missing"
    assert messages[1].startswith("the object has")


def test_a_cut_object_has_a_name_of_its_own(storage: Storage) -> None:
    storage.put(SEGMENT.path, DATA[:-1])
    with pytest.raises(TruncatedDataError):
        list(LAYOUT.read(storage, SEGMENT))
