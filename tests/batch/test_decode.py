from __future__ import annotations

import gzip
from dataclasses import replace

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.batch.compression import compress
from maxbrod.batch.decode import decode, decode_in_parts
from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError, UsageError
from maxbrod.model import Codec
from support.plain_batches import Record, varint, write_batch, write_record
from support.record_examples import record_lists, to_records

ONE = Record(offset=5, timestamp=1_700_000_000_123, key=b"k", value=b"v")


def packed(records: list[Record], codec: Codec, **fields: int) -> bytes:
    base = records[0]
    body = b"".join(write_record(record, base.offset, base.timestamp) for record in records)
    squeezed = compress(codec, np.frombuffer(body, np.uint8))
    return write_batch(records, attributes=int(codec), body=squeezed, **fields)


@given(batches=st.lists(record_lists(), max_size=4))
def test_every_record_decodes_to_what_a_plain_reader_sees(batches: list[list[Record]]) -> None:
    decoded = decode(b"".join(write_batch(batch) for batch in batches))

    assert decoded.schema.equals(RECORD_SCHEMA)
    decoded.validate(full=True)
    assert to_records(decoded) == [record for batch in batches for record in batch]


@pytest.mark.parametrize("codec", list(Codec))
@given(batches=st.lists(record_lists(), min_size=1, max_size=3))
def test_every_codec_decodes_to_the_same_records(codec: Codec, batches: list[list[Record]]) -> None:
    buffer = b"".join(packed(batch, codec) for batch in batches)

    assert to_records(decode(buffer)) == [record for batch in batches for record in batch]


def test_gzip_written_by_another_library_decodes() -> None:
    body = gzip.compress(write_record(ONE, ONE.offset, ONE.timestamp))

    assert to_records(decode(write_batch([ONE], attributes=1, body=body))) == [ONE]


def test_codecs_may_be_mixed_in_one_buffer() -> None:
    records = [Record(offset=i, timestamp=i, key=None, value=bytes([i]) * 100) for i in range(10)]
    buffer = b"".join(packed([record], codec) for record, codec in zip(records, list(Codec) * 2, strict=True))

    assert to_records(decode(buffer)) == records


def test_bare_snappy_decodes_as_well_as_framed() -> None:
    body = bytes(cramjam.snappy.compress_raw(write_record(ONE, ONE.offset, ONE.timestamp)))

    assert to_records(decode(write_batch([ONE], attributes=int(Codec.SNAPPY), body=body))) == [ONE]


def test_null_and_empty_are_told_apart() -> None:
    records = [
        Record(offset=0, timestamp=0, key=None, value=b"", headers=[(b"", None), (b"", b"")]),
        Record(offset=1, timestamp=0, key=b"", value=None),
    ]
    decoded = decode(write_batch(records))

    assert decoded.column("key").to_pylist() == [None, b""]
    assert decoded.column("value").to_pylist() == [b"", None]
    assert decoded.column("headers").to_pylist() == [[{"key": b"", "value": None}, {"key": b"", "value": b""}], []]


def test_log_append_time_is_the_batch_maximum_for_every_record() -> None:
    records = [Record(offset=i, timestamp=100 + i, key=None, value=b"x") for i in range(3)]
    decoded = decode(write_batch(records, attributes=0x08, max_timestamp=999))

    assert decoded.column("timestamp_ms").to_pylist() == [999, 999, 999]
    assert decoded.column("timestamp_type").to_pylist() == [1, 1, 1]


def test_a_delete_horizon_does_not_shift_timestamps() -> None:
    """With bit 6 the base timestamp is the horizon, and deltas still count from it."""
    records = [Record(offset=0, timestamp=1_000, key=b"k", value=None)]
    decoded = decode(write_batch(records, attributes=0x40, base_timestamp=5_000_000))

    assert decoded.column("timestamp_ms").to_pylist() == [1_000]


def test_timestamps_further_apart_than_32_bits_survive() -> None:
    records = [Record(offset=i, timestamp=t, key=None, value=None) for i, t in enumerate([0, 1 << 45, -(1 << 45)])]

    assert decode(write_batch(records)).column("timestamp_ms").to_pylist() == [0, 1 << 45, -(1 << 45)]


def test_a_compacted_batch_keeps_its_holes_and_an_emptied_one_gives_no_rows() -> None:
    holey = [Record(offset=offset, timestamp=1, key=b"k", value=b"v") for offset in (3, 9, 10)]
    empty = write_batch([], base_offset=20, last_offset_delta=4)
    emptied_lz4 = write_batch([], base_offset=30, last_offset_delta=4, attributes=int(Codec.LZ4))
    buffer = write_batch(holey, base_offset=1, last_offset_delta=15) + empty + emptied_lz4

    assert decode(buffer).column("offset").to_pylist() == [3, 9, 10]
    assert walk(buffer).last_offset.tolist() == [16, 24, 34]


def test_batch_fields_reach_every_record() -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=None) for i in (7, 8)]
    decoded = decode(
        write_batch(records, attributes=0x30, leader_epoch=4, producer_id=1 << 40, producer_epoch=3, base_sequence=9)
    )
    columns = {name: decoded.column(name).to_pylist() for name in decoded.schema.names[6:]}

    assert columns == {
        "leader_epoch": [4, 4],
        "producer_id": [1 << 40] * 2,
        "producer_epoch": [3, 3],
        "sequence": [9, 10],
        "transactional": [True, True],
        "control": [True, True],
    }


def test_sequence_numbers_wrap_to_zero_as_the_producer_counts() -> None:
    records = [Record(offset=i, timestamp=0, key=None, value=None) for i in range(3)]
    decoded = decode(write_batch(records, producer_id=1, producer_epoch=0, base_sequence=(1 << 31) - 2))

    assert decoded.column("sequence").to_pylist() == [(1 << 31) - 2, (1 << 31) - 1, 0]


def test_batches_with_and_without_sequence_numbers_may_stand_side_by_side() -> None:
    two = [Record(offset=i, timestamp=0, key=None, value=None) for i in (7, 9)]
    buffer = write_batch(two, producer_id=1, producer_epoch=0, base_sequence=4) + write_batch(two, base_sequence=-1)

    assert decode(buffer).column("sequence").to_pylist() == [4, 6, -1, -1]


def test_only_the_asked_columns_are_built() -> None:
    decoded = decode(write_batch([ONE]), columns=["timestamp_ms", "offset"])

    assert decoded.to_pydict() == {"offset": [5], "timestamp_ms": [ONE.timestamp]}
    assert decoded.schema.names == ["offset", "timestamp_ms"]
    with pytest.raises(UsageError, match="no such record column: colour"):
        decode(write_batch([ONE]), columns=["colour"])


def test_nothing_decodes_to_no_rows() -> None:
    decoded = decode(b"")

    assert decoded.num_rows == 0
    assert decoded.schema.equals(RECORD_SCHEMA)


def test_any_buffer_will_do() -> None:
    batch = write_batch([ONE])
    kinds = (batch, bytearray(batch), memoryview(batch), np.frombuffer(batch, np.uint8), pa.py_buffer(batch))

    assert all(to_records(decode(kind)) == [ONE] for kind in kinds)


BODY = write_record(ONE, 5, ONE.timestamp)
GOOD = write_batch([Record(offset=0, timestamp=0, key=None, value=None)])
FAR = varint((1 << 63) - 1)


def sized(rest: bytes) -> bytes:
    return varint(len(rest)) + rest


DAMAGED = {
    "a record longer than its batch": (varint(1000) + BODY[1:], 1),
    "a record shorter than its parts": (varint(6) + BODY[1:], 1),
    "a negative record length": (varint(-7) + BODY[1:], 1),
    "a varint without end": (b"\xff" * 30, 1),
    "a record that holds the next one": (sized(BODY[1:] + write_record(replace(ONE, offset=6), 5, ONE.timestamp)), 2),
    "bytes after the last record": (BODY + b"\0\0\0", 1),
    "fewer records than counted": (BODY * 2, 3),
    "an offset delta beyond the batch": (write_record(ONE, 0, ONE.timestamp), 1),
    "an offset delta that does not rise": (BODY * 2, 2),
    "a negative offset delta": (write_record(ONE, 6, ONE.timestamp), 1),
    "a key length below -1": (sized(b"\0\0\0\x03\x02v\0"), 1),
    "a value length below -1": (sized(b"\0\0\0\x02k\x03\0"), 1),
    "a header value length below -1": (sized(b"\0\0\0\x01\x01\x02\x02h\x03"), 1),
    "a key longer than its record": (sized(b"\0\0\0\x7ek\x02v\0"), 1),
    "a value longer than its record": (sized(b"\0\0\0\x02k\x7e\0"), 1),
    # Added to any position, these pass the end of 64 bits.
    "a key as long as a number can say": (sized(b"\0\0\0" + FAR + b"\x01\0"), 1),
    "a value as long as a number can say": (sized(b"\0\0\0\x01" + FAR + b"\0"), 1),
    "a header key as long as a number can say": (sized(b"\0\0\0\x01\x01\x02" + FAR + b"\x01"), 1),
    "a header value as long as a number can say": (sized(b"\0\0\0\x01\x01\x04\0" + FAR + b"\0\x01"), 1),
    "a record as long as a number can say": (FAR + BODY[1:], 1),
    "a header count beyond the record": (b"\x10\0\0\0\x02k\x02v\x7e", 1),
    "a negative header count": (b"\x10\0\0\0\x02k\x02v\x01", 1),
    "a header with a null key": (b"\x14\0\0\0\x02k\x02v\x02\x01\x01", 1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_malformed_records_are_refused_by_offset_and_position(name: str) -> None:
    body, count = DAMAGED[name]
    bad = write_batch([ONE], body=body, count=count, last_offset_delta=2 if count > 1 else 0)

    with pytest.raises(CorruptDataError) as caught:
        decode(GOOD + bad, object_name="segment-7")
    assert (caught.value.object_name, caught.value.offset, caught.value.position) == ("segment-7", 5, len(GOOD))


def test_a_record_count_cannot_make_us_allocate() -> None:
    bad = write_batch([ONE], count=(1 << 31) - 1, last_offset_delta=(1 << 31) - 2)

    with pytest.raises(CorruptDataError, match="2147483647 records, more than its bytes can"):
        decode(bad)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_is_refused_at_its_limit(codec: Codec) -> None:
    bomb = write_batch([ONE], attributes=int(codec), body=compress(codec, np.zeros(50_000_000, np.uint8)))

    with pytest.raises(CorruptDataError, match="unpack to more than 1000000 bytes") as caught:
        decode(bomb, decompressed_bytes_max=1_000_000)
    assert caught.value.offset == 5


@given(record_lists(), st.sampled_from(list(Codec)), st.integers(0, 200))
def test_parts_hold_the_same_records_however_small_they_are(records: list[Record], codec: Codec, enough: int) -> None:
    log = b"".join(packed([record], codec) for record in records)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("maxbrod.batch.decode._PART_BYTES", enough)
        patched.setattr("maxbrod.batch.compression._GROUP_BYTES", 64)
        data = np.frombuffer(log, np.uint8)
        parts = list(decode_in_parts(data, walk(data, whole=True), columns=None))
    assert pa.Table.from_batches(parts, RECORD_SCHEMA).to_pylist() == decode(log).to_pylist()
    assert len(parts) > 1 or enough or codec is Codec.NONE or len(records) < 3


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_bytes_cut_short_are_refused(codec: Codec) -> None:
    body = compress(codec, np.frombuffer(BODY * 20, np.uint8))
    bad = write_batch([ONE], attributes=int(codec), body=body[:-3])

    with pytest.raises(CorruptDataError) as caught:
        decode(GOOD + bad)
    assert (caught.value.offset, caught.value.position) == (5, len(GOOD))


def test_a_cut_buffer_is_refused_where_no_headers_say_what_to_read() -> None:
    with pytest.raises(TruncatedDataError) as caught:
        decode(GOOD + write_batch([ONE])[:-1], object_name="segment-7")
    assert (caught.value.object_name, caught.value.position) == ("segment-7", len(GOOD))


def test_a_wrong_checksum_is_refused_unless_nobody_asks() -> None:
    damaged = bytearray(write_batch([ONE]))
    damaged[17] ^= 1

    assert to_records(decode(damaged, check_crc=False)) == [ONE]
    with pytest.raises(CorruptDataError, match="checksum"):
        decode(damaged)


@pytest.mark.parametrize("time", [-(1 << 63), (1 << 63) - 1])
def test_the_farthest_timestamps_survive_as_deltas_of_ten_bytes(time: int) -> None:
    body = b"".join(
        varint(len(rest)) + rest for rest in (b"\0" + varint(0) + b"\0\1\1\0", b"\0" + varint(time) + b"\2\1\1\0")
    )
    buffer = write_batch([ONE], base_timestamp=0, body=body, count=2, last_offset_delta=1)

    assert len(varint(time)) == 10
    assert decode(buffer).column("timestamp_ms").to_pylist() == [0, time]


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="codec 5 is unknown"):
        decode(write_batch([ONE], attributes=5))
