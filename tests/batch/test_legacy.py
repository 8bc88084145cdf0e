from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch import kernels, legacy_kernels
from maxbrod.batch.columns import RECORD_SCHEMA
from maxbrod.batch.compression import compress, fix_lz4_header
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.patch import patch
from maxbrod.errors import CorruptDataError, RefusedError, UnsupportedFormatError
from maxbrod.model import Codec
from support.old_messages import message, messages, wrapper
from support.plain_batches import Record, write_batch
from support.record_examples import to_records


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
        (message(1, INNER, attributes=1), "contains a compressed one"),
        (message(1, INNER)[:-1], "length"),
        (message(1, INNER) + b"\0\0", "length"),
    ],
)
def test_a_wrapper_with_damage_inside_is_refused(inner: bytes, what: str) -> None:
    outer = Record(offset=8, timestamp=1, key=None, value=gzip.compress(inner))

    with pytest.raises(CorruptDataError, match=what) as caught:
        decode(message(1, outer, attributes=1))
    assert (caught.value.offset, caught.value.position) == (8, 0)


@pytest.mark.parametrize("size", range(1, 26))
def test_less_than_a_message_inside_a_wrapper_is_not_read_past_its_end(size: int) -> None:
    """As plain Python, where a read past the end raises; the arena goes on behind it and would hide that."""
    count_inner = legacy_kernels.count_inner.py_func

    assert count_inner(np.zeros(size, np.uint8), 0, size, 0, True)[0] == kernels.BAD_LENGTH


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_inside_a_wrapper_has_room_for_its_own_fields(magic: int) -> None:
    checked = bytes([magic, 0])
    short = struct.pack(">qiI", 0, len(checked) + 4, zlib.crc32(checked)) + checked
    inner = np.frombuffer(short + message(magic, INNER), np.uint8)

    assert legacy_kernels.count_inner(kernels.sealed(inner), 0, inner.size, magic, True)[0] == kernels.BAD_LENGTH


@pytest.mark.parametrize(
    ("key_length", "value_length", "rest"),
    [(-2, -1, b""), (-1, -5, b""), (-2, 2, b"xx"), (100, -1, b"xx"), (-1, 3, b"xx"), (-1, -1, b"xx"), (0, 0, b"xx")],
)
def test_lengths_that_disagree_are_refused(key_length: int, value_length: int, rest: bytes) -> None:
    checked = struct.pack(">bbqii", 1, 0, 7, key_length, value_length) + rest
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


def test_any_of_the_old_messages_may_be_asked_for() -> None:
    records = [Record(offset=i, timestamp=i, key=None, value=bytes([i])) for i in range(9)]
    log = (
        b"".join(message(1, record) for record in records[:4])
        + wrapper(1, Codec.LZ4, records[4:6])
        + b"".join(message(1, record) for record in records[6:])
    )
    headers = walk(log)

    for rows, offsets in (([0, 2, 3], [0, 2, 3]), ([1, 4, 5, 7], [1, 4, 5, 6, 8]), ([4], [4, 5]), ([], [])):
        taken = headers.take(np.array(rows, np.int64))
        assert decode(log, taken, columns=["offset"]).column("offset").to_pylist() == offsets


def test_damage_in_one_of_many_old_messages_is_named() -> None:
    good = [message(1, Record(offset=i, timestamp=i, key=b"k", value=b"v")) for i in range(3)]
    squeezed = wrapper(1, Codec.GZIP, [Record(offset=i, timestamp=i, key=b"k", value=b"v") for i in (3, 4)])
    checked = struct.pack(">bbqii", 1, 0, 7, 100, -1)
    bad = struct.pack(">qiI", 5, len(checked) + 4, zlib.crc32(checked)) + checked
    before = b"".join(good) + squeezed

    with pytest.raises(CorruptDataError, match="length") as caught:
        decode(before + bad, object_name="00000.log")
    assert (caught.value.object_name, caught.value.offset, caught.value.position) == ("00000.log", 5, len(before))


def test_a_wrapper_that_is_a_decompression_bomb_is_refused_at_its_limit() -> None:
    good = message(1, INNER)
    bomb = message(1, Record(offset=8, timestamp=1, key=None, value=gzip.compress(bytes(2_000_000))), attributes=1)

    with pytest.raises(CorruptDataError, match="unpack to more than 1000000 bytes") as caught:
        decode(good + bomb, decompressed_bytes_max=1_000_000)
    assert (caught.value.offset, caught.value.position) == (8, len(good))


def test_a_wrapper_may_have_a_key() -> None:
    outer = Record(offset=8, timestamp=1, key=b"key", value=gzip.compress(message(1, INNER)))

    assert decode(message(1, outer, attributes=1)).column("offset").to_pylist() == [8]


@pytest.mark.parametrize(("key_length", "value_length"), [(-1, 3), (-1, -1), (1 << 20, 0), (4, 4)])
def test_a_wrapper_whose_lengths_disagree_is_refused(key_length: int, value_length: int) -> None:
    checked = struct.pack(">bbqii", 1, 1, 7, key_length, value_length) + b"xxxxxxx"
    text = struct.pack(">qiI", 3, len(checked) + 4, zlib.crc32(checked)) + checked

    with pytest.raises(CorruptDataError, match="lengths of a compressed message disagree") as caught:
        decode(text)
    assert (caught.value.offset, caught.value.position) == (3, 0)


def test_a_wrong_lz4_header_checksum_is_not_forgiven_in_magic_1() -> None:
    frame = bytearray(compress(Codec.LZ4, np.frombuffer(message(1, INNER), np.uint8)))
    frame[6] ^= 0xFF
    outer = Record(offset=0, timestamp=1, key=None, value=bytes(frame))

    with pytest.raises(CorruptDataError, match="cannot be decompressed"):
        decode(message(1, outer, attributes=3))


# What `lz4 --content-size --no-frame-crc` makes of eight times "abc".
LZ4_WITH_CONTENT_SIZE = bytes.fromhex("04224d18684018000000000000004f0c0000003c616263030050626361626300000000")


def test_the_lz4_header_checksum_is_put_right_behind_a_content_size() -> None:
    broken = bytearray(LZ4_WITH_CONTENT_SIZE)
    broken[14] ^= 0xFF

    assert broken[4] & 0x08
    assert fix_lz4_header(np.frombuffer(broken, np.uint8)).tobytes() == LZ4_WITH_CONTENT_SIZE


@pytest.mark.parametrize(("flags", "place"), [(0x60, 6), (0x68, 14), (0x61, 10), (0x69, 18)])
def test_the_place_of_an_lz4_header_checksum_follows_from_its_flags(flags: int, place: int) -> None:
    frame = np.frombuffer(struct.pack("<IBB", 0x184D2204, flags, 0x40) + b"\xee" * 20, np.uint8)

    assert np.flatnonzero(fix_lz4_header(frame) != frame).tolist() == [place]


def test_lz4_bytes_too_short_for_a_header_are_left_for_the_decoder_to_refuse() -> None:
    for size in range(20):
        frame = np.frombuffer(bytes.fromhex("04224d1869") + bytes(15), np.uint8)[:size]
        assert fix_lz4_header(frame).tobytes() == frame.tobytes() or size > 18


def test_checksums_of_old_messages_are_left_alone_where_nobody_asks() -> None:
    bad = message(1, Record(offset=2, timestamp=2, key=b"k", value=b"v"), crc=1)

    assert len(walk(bad, check_crc=False)) == 1


def test_an_old_message_over_the_limit_is_corrupt_and_not_merely_cut() -> None:
    whole = message(1, Record(offset=1, timestamp=2, key=b"k", value=bytes(100)))
    small = message(1, INNER)

    assert len(walk(small + whole, batch_bytes_max=len(whole))) == 2
    with pytest.raises(CorruptDataError, match="impossible length") as caught:
        walk(small + whole, batch_bytes_max=len(whole) - 1)
    assert (caught.value.offset, caught.value.position) == (1, len(small))


def test_the_smallest_old_messages_fill_a_walk_to_the_last() -> None:
    record = Record(offset=7, timestamp=-1, key=None, value=None)

    assert len(message(0, record)) == 26
    assert len(walk(message(0, record) * 1000)) == 1000


@pytest.mark.parametrize(("key", "value"), [(bytes(1 << 20), None), (None, bytes(1 << 20))], ids=["keys", "values"])
def test_old_messages_of_more_than_one_arrow_column_are_refused(key: bytes | None, value: bytes | None) -> None:
    """One message named many times over stands for as many."""
    log = message(1, Record(offset=3, timestamp=0, key=key, value=value))

    with pytest.raises(RefusedError, match="more than 2 GiB") as caught:
        decode(log, walk(log).take(np.zeros(2048, np.int64)))
    assert (caught.value.offset, caught.value.position) == (3, 0)


def test_old_messages_have_nothing_to_patch() -> None:
    data = np.frombuffer(message(1, INNER), np.uint8).copy()

    with pytest.raises(UnsupportedFormatError, match="no producer fields"):
        patch(data, walk(data), producer_id=1)


def test_only_the_asked_columns_of_old_messages_are_given() -> None:
    assert decode(message(1, INNER), columns=["value"]).equals(
        pa.record_batch({"value": pa.array([b"v"], pa.binary())})
    )
