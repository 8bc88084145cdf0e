from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import replace

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from examples import blobs, timestamps, to_records
from hypothesis import given
from hypothesis import strategies as st
from reference import Record, write_batch

from maxbrod.batch.compression import compress, fix_lz4_header
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.batch.schema import RECORD_SCHEMA
from maxbrod.batch.select import select
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import Codec


def message(magic: int, record: Record, *, attributes: int = 0, crc: int | None = None) -> bytes:
    def blob(value: bytes | None) -> bytes:
        return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value

    time = struct.pack(">q", record.timestamp) if magic == 1 else b""
    checked = struct.pack(">bb", magic, attributes) + time + blob(record.key) + blob(record.value)
    return struct.pack(">qiI", record.offset, len(checked) + 4, zlib.crc32(checked) if crc is None else crc) + checked


def wrapper(magic: int, codec: Codec, records: list[Record], *, log_append: bool = False, time: int = 0) -> bytes:
    """As producers wrote them: inner offsets count from 0 in magic 1 and are absolute in magic 0."""
    base = records[0].offset if magic == 1 else 0
    inner = b"".join(message(magic, replace(record, offset=record.offset - base)) for record in records)
    squeezed = gzip.compress(inner) if codec is Codec.GZIP else compress(codec, np.frombuffer(inner, np.uint8))
    outer = Record(offset=records[-1].offset, timestamp=time, key=None, value=squeezed)
    return message(magic, outer, attributes=int(codec) | (0x08 if log_append else 0))


@st.composite
def messages(draw: st.DrawFn, magic: int) -> list[Record]:
    first = draw(st.integers(0, 1 << 60))
    time = timestamps if magic == 1 else st.just(-1)
    return [
        Record(offset=first + i, timestamp=draw(time), key=draw(blobs), value=draw(blobs))
        for i in range(draw(st.integers(1, 8)))
    ]


@pytest.mark.parametrize("magic", [0, 1])
@given(data=st.data())
def test_old_messages_decode_with_null_apart_from_empty(magic: int, data: st.DataObject) -> None:
    records = data.draw(messages(magic))
    decoded = decode(b"".join(message(magic, record) for record in records))

    assert decoded.schema.equals(RECORD_SCHEMA)
    decoded.validate(full=True)
    assert to_records(decoded) == records
    assert set(decoded.column("timestamp_type").to_pylist()) == {0 if magic == 1 else -1}


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@given(data=st.data())
def test_old_compressed_messages_get_their_absolute_offsets(magic: int, codec: Codec, data: st.DataObject) -> None:
    records = data.draw(messages(magic))

    assert to_records(decode(wrapper(magic, codec, records))) == records


def test_a_compacted_wrapper_keeps_its_holes() -> None:
    records = [Record(offset=offset, timestamp=1, key=b"k", value=b"v") for offset in (10, 13, 19)]

    assert decode(wrapper(1, Codec.GZIP, records)).column("offset").to_pylist() == [10, 13, 19]


def test_log_append_time_of_a_wrapper_holds_for_all_inside() -> None:
    records = [Record(offset=i, timestamp=i, key=None, value=b"v") for i in range(3)]
    decoded = decode(wrapper(1, Codec.LZ4, records, log_append=True, time=4242))

    assert decoded.column("timestamp_ms").to_pylist() == [4242] * 3
    assert decoded.column("timestamp_type").to_pylist() == [1] * 3


def test_log_append_time_of_a_plain_message_is_told() -> None:
    decoded = decode(message(1, Record(offset=0, timestamp=9, key=None, value=None), attributes=0x08))

    assert decoded.column("timestamp_type").to_pylist() == [1]


def test_all_generations_may_stand_in_one_log() -> None:
    records = [Record(offset=i, timestamp=-1 if i < 4 else i, key=None, value=bytes([i])) for i in range(10)]
    log = (
        message(0, records[0])
        + message(0, records[1])
        + wrapper(0, Codec.GZIP, records[2:4])
        + message(1, records[4])
        + wrapper(1, Codec.SNAPPY, records[5:7])
        + write_batch(records[7:9])
        + message(1, records[9])
    )
    headers = walk(log)

    assert to_records(decode(log)) == records
    assert headers["magic"].tolist() == [0, 0, 0, 1, 1, 2, 1]
    assert headers["count"].tolist() == [1, 1, -1, 1, -1, 2, 1]
    assert (headers.end, headers.tail) == (len(log), 0)


def test_messages_may_be_more_than_one_chunk_of_the_walk() -> None:
    record = Record(offset=7, timestamp=3, key=None, value=b"v")
    count = 70_000

    assert len(walk(message(1, record) * count)) == count
    assert decode(message(1, record) * count, columns=["offset"]).num_rows == count


@pytest.mark.parametrize("cut", [1, 17, 25, 33])
def test_a_cut_old_message_is_a_tail_not_an_error(cut: int) -> None:
    whole = message(1, Record(offset=1, timestamp=2, key=b"k", value=b"v"))
    headers = walk(whole + whole[:cut])

    assert (len(headers), headers.end, headers.tail) == (1, len(whole), cut)


def test_a_wrong_checksum_of_an_old_message_is_named() -> None:
    good = message(1, Record(offset=1, timestamp=2, key=b"k", value=b"v"))
    bad = message(1, Record(offset=2, timestamp=2, key=b"k", value=b"v"), crc=1)

    with pytest.raises(CorruptDataError, match="checksum") as caught:
        walk(good + bad)
    assert (caught.value.offset, caught.value.position) == (2, len(good))


def test_garbage_after_an_old_message_is_refused() -> None:
    good = message(0, Record(offset=1, timestamp=-1, key=None, value=b"v"))

    with pytest.raises(UnsupportedFormatError, match="magic 9") as caught:
        walk(good + bytes(16) + b"\x09" + bytes(40))
    assert caught.value.position == len(good)
    with pytest.raises(CorruptDataError):
        walk(good + bytes(60))


INNER = Record(offset=0, timestamp=1, key=None, value=b"v")


@pytest.mark.parametrize(
    ("inner", "what"),
    [
        (message(0, INNER), "another magic"),
        (message(1, INNER, crc=5), "wrong checksum"),
        (message(1, INNER, attributes=1), "inside a compressed one"),
        (message(1, INNER)[:-1], "length"),
        (message(1, INNER) + b"\0\0", "length"),
    ],
)
def test_a_wrapper_with_damage_inside_is_refused(inner: bytes, what: str) -> None:
    outer = Record(offset=8, timestamp=1, key=None, value=gzip.compress(inner))

    with pytest.raises(CorruptDataError, match=what) as caught:
        decode(message(1, outer, attributes=1))
    assert (caught.value.offset, caught.value.position) == (8, 0)


@pytest.mark.parametrize(("key_length", "value_length"), [(-2, -1), (100, -1), (-1, 3), (-1, -5), (0, 0)])
def test_lengths_that_disagree_are_refused(key_length: int, value_length: int) -> None:
    checked = struct.pack(">bbqii", 1, 0, 7, key_length, value_length) + b"xx"
    text = struct.pack(">qiI", 3, len(checked) + 4, zlib.crc32(checked)) + checked

    with pytest.raises(CorruptDataError) as caught:
        decode(text)
    assert caught.value.offset == 3


def test_the_wrong_lz4_header_checksum_of_old_clients_is_forgiven_in_magic_0() -> None:
    frame = bytearray(compress(Codec.LZ4, np.frombuffer(message(0, INNER), np.uint8)))
    frame[6] ^= 0xFF
    outer = Record(offset=0, timestamp=-1, key=None, value=bytes(frame))

    assert decode(message(0, outer, attributes=3)).column("value").to_pylist() == [b"v"]


def test_the_lz4_header_checksum_is_computed_as_lz4_does() -> None:
    for frame in (bytes(cramjam.lz4.compress(b"abc")), compress(Codec.LZ4, np.frombuffer(b"abc", np.uint8))):
        array = np.frombuffer(frame, np.uint8)
        assert fix_lz4_header(array).tobytes() == frame


def test_a_selection_of_old_messages_comes_out_as_new_batches() -> None:
    records = [Record(offset=i, timestamp=i, key=b"k", value=bytes([i])) for i in range(6)]
    log = wrapper(1, Codec.LZ4, records[:3]) + write_batch(records[3:])
    keep = np.array([True, False, True, True, True, False])
    headers = walk(log)
    chosen = select(log, headers, keep)

    assert set(walk(chosen)["magic"].tolist()) == {2}
    assert to_records(decode(chosen)) == [record for record, kept in zip(records, keep, strict=True) if kept]
    dense = walk(select(log, headers, keep, dense=True))
    assert dense["last_offset_delta"].tolist() == [1, 1]


def test_old_messages_have_nothing_to_patch() -> None:
    data = np.frombuffer(message(1, INNER), np.uint8).copy()

    with pytest.raises(UnsupportedFormatError, match="no producer fields"):
        patch(data, walk(data), producer_id=1)


def test_only_the_asked_columns_of_old_messages_are_given() -> None:
    assert decode(message(1, INNER), columns=["value"]).equals(
        pa.record_batch({"value": pa.array([b"v"], pa.binary())})
    )
