"""What a deep check finds, and what a reader refuses, when stored bytes are not what was written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts import reader
from maxbrod.layouts.kafka import reader as native
from maxbrod.layouts.kafka.frames import FRAME_BYTES, FrameDecoder, FrameEncoder, SliceDigest, encode_frame
from maxbrod.layouts.kafka.reader import read_log, read_logs
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.model import Codec
from support.native_logs import archive, data_batch, new_storage, pack
from support.plain_batches import Record

if TYPE_CHECKING:
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.storage.interface import Storage

LOG = [data_batch(i, 3, codec=Codec(i // 3 % 5), value=b"some value %d" % i) for i in range(0, 15, 3)]


def stored(mode: str) -> tuple[Storage, Slice, bytes]:
    storage = new_storage()
    (row,) = archive(storage, LOG, mode=mode)
    # Without the table of contents behind it, which no reader of a slice needs.
    whole = bytes(storage.get(row.path))[: row.position + row.bytes]
    exchange(storage, row.path, whole)
    return storage, row, whole


def exchange(storage: Storage, path: str, data: bytes) -> None:
    storage.delete([path])
    storage.put(path, data)


@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_every_flipped_bit_is_found(mode: str) -> None:
    storage, row, whole = stored(mode)
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        exchange(storage, row.path, bytes(flipped))

        assert verify_slice(storage, row), position
        with pytest.raises(CorruptDataError):
            read_log(storage, row)
        with pytest.raises((CorruptDataError, UnsupportedFormatError)):
            list(read_logs(storage, row))


@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_every_truncation_is_found(mode: str) -> None:
    storage, row, whole = stored(mode)
    for size in range(len(whole)):
        exchange(storage, row.path, whole[:size])

        assert verify_slice(storage, row), size
        with pytest.raises(CorruptDataError):
            read_log(storage, row)
    with pytest.raises(TruncatedDataError):
        read_log(storage, row)


def test_an_object_that_is_gone_is_a_problem_and_not_an_accident() -> None:
    storage, row, _ = stored("source")
    storage.delete([row.path])

    (problem,) = verify_slice(storage, row)
    assert storage.name_of(row.path) in str(problem)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"records": 14}, "records is 15, but the catalog says 14"),
        ({"max_timestamp": 5}, "max timestamp is 1014"),
        ({"max_timestamp": None}, "max timestamp is 1014"),
        ({"min_timestamp": 999}, "min timestamp is 1000"),
        ({"min_timestamp": 1001}, "min timestamp is 1000"),
        ({"min_timestamp": None}, "min timestamp is 1000"),
        ({"first_leader_epoch": 7}, "first leader epoch is -1"),
        ({"last_leader_epoch": 7}, "last leader epoch is -1"),
        ({"base_offset": 1}, "outside the offsets"),
        ({"end_offset": 14}, "outside the offsets"),
        ({"raw_bytes": 5}, "bytes, but 5 were written"),
    ],
)
@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_a_row_that_says_something_else_is_found(wrong: dict[str, Any], words: str, mode: str) -> None:
    storage, row, _ = stored(mode)

    assert verify_slice(storage, row) == []
    assert words in " ".join(map(str, verify_slice(storage, replace(row, **wrong))))


def test_a_row_may_cover_more_offsets_than_its_batches() -> None:
    """Where compaction has left less, the row says so, and covers the hole."""
    storage, row, _ = stored("source")

    assert verify_slice(storage, replace(row, end_offset=100)) == []


def test_batches_that_do_not_follow_each_other_are_found() -> None:
    storage, row, whole = stored("source")
    swapped = b"".join([LOG[1], LOG[0], *LOG[2:]])
    assert len(swapped) == len(whole)
    exchange(storage, row.path, swapped)
    digest = f"crc32c:{google_crc32c.value(swapped):08x}"

    assert "outside the offsets" in str(verify_slice(storage, replace(row, digest=digest))[0])


def test_a_lowest_timestamp_that_only_headers_tell_is_consistent() -> None:
    """A row that was written without looking into records may say the first record's time, which is not the lowest."""
    records = [Record(offset=i, timestamp=time, key=b"", value=b"") for i, time in enumerate((50, 20, 80))]
    storage = new_storage()
    for exact, lowest in ((True, 20), (False, 50)):
        (row,) = archive(storage, [pack(records, Codec.LZ4)], exact=exact)

        assert (row.min_timestamp, row.max_timestamp) == (lowest, 80)
        assert verify_slice(storage, row) == []


def test_frames_are_independent_and_say_their_size() -> None:
    content = np.random.default_rng(3).integers(0, 8, 3 * FRAME_BYTES + 17, np.uint8)
    encoder = FrameEncoder(1)
    frames = [*encoder.encode(content[:100]), *encoder.encode(content[100:]), *encoder.finish()]

    assert len(frames) == 4
    assert [next(FrameDecoder(1 << 30).decode(memoryview(frame))).size for frame in frames] == [*[FRAME_BYTES] * 3, 17]
    joined = b"".join(frame.tobytes() for frame in frames)
    for size in (99_991, len(joined)):
        decoder = FrameDecoder(1 << 30)
        pieces = [memoryview(joined)[at : at + size] for at in range(0, len(joined), size)]
        assert np.array_equal(np.concatenate([part for piece in pieces for part in decoder.decode(piece)]), content)
        decoder.finish()


def test_frames_of_every_header_size_are_measured() -> None:
    for size in (0, 1, 255, 256, 257, 65_791, 65_792, 70_000, FRAME_BYTES):
        for fill in (np.zeros(size, np.uint8), np.random.default_rng(1).integers(0, 255, size, np.uint8)):
            frame = encode_frame(fill, 1)
            decoder = FrameDecoder(1 << 30)
            (content,) = decoder.decode(memoryview(frame))
            decoder.finish()
            assert np.array_equal(content, fill)


def test_a_frame_that_claims_to_be_huge_takes_no_memory() -> None:
    claim = (1 << 40).to_bytes(8, "little")
    frame = bytes.fromhex("28b52ffd") + b"\xe0" + claim + bytes.fromhex("010000")

    with pytest.raises(CorruptDataError, match="holds"):
        list(FrameDecoder(1 << 30).decode(memoryview(frame)))


@pytest.fixture(params=[1, 1 << 30], ids=["large parts", "small parts"])
def copied_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of this size are not copied for the batch that began in the part before."""
    monkeypatch.setattr(native, "_COPIED_BYTES", request.param)


@pytest.mark.usefixtures("copied_bytes")
@pytest.mark.parametrize("mode", ["source", "zstd"])
@pytest.mark.parametrize("request_bytes", [1, 100, 1 << 20])
def test_reading_ahead_never_changes_what_is_read_or_refused(mode: str, request_bytes: int) -> None:
    storage, row, whole = stored(mode)
    log = read_log(storage, row).tobytes()
    with ThreadPoolExecutor(1) as ahead:
        pieces = list(read_logs(storage, row, request_bytes=request_bytes, ahead=ahead))
        assert b"".join(data.tobytes() for data, _ in pieces) == log
        assert (
            list(read_logs(storage, replace(row, bytes=0, raw_bytes=0, digest=str(SliceDigest())), ahead=ahead)) == []
        )
        exchange(storage, row.path, whole[:-1])
        with pytest.raises(CorruptDataError, match=row.path):
            list(read_logs(storage, row, request_bytes=request_bytes, ahead=ahead))


@pytest.mark.usefixtures("copied_bytes")
@given(size=st.integers(1, 300), check_crc=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_do_not_depend_on_the_parts_in_which_they_are_read(size: int, check_crc: bool) -> None:
    storage, row, whole = stored("source")
    pieces = list(read_logs(storage, row, request_bytes=size, check_crc=check_crc))

    assert b"".join(data.tobytes() for data, _ in pieces) == whole
    assert [size for _, headers in pieces for size in headers.size.tolist()] == [len(batch) for batch in LOG]
    assert all(headers.end == len(data) and not headers.tail for data, headers in pieces)


def test_a_large_part_is_not_copied_for_the_batch_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, row, whole = stored("source")
    monkeypatch.setattr(native, "_COPIED_BYTES", len(whole) // 2)
    pieces = list(read_logs(storage, row, request_bytes=len(whole) // 2 + 1))

    # The batch that both parts share is the only one that is copied.
    assert [isinstance(owner_of(data), bytes) for data, _ in pieces] == [True, False, True]
    assert len(pieces[1][1]) == 1


def owner_of(data: object) -> object:
    """What holds the memory of an array."""
    while isinstance(data, np.ndarray | memoryview):
        below = data.base if isinstance(data, np.ndarray) else data.obj
        if below is None:
            return data
        data = below
    return data


def test_no_more_than_two_pieces_are_ever_read_ahead() -> None:
    storage, row, whole = stored("source")
    requested: list[int] = []
    get_range = storage.get_range

    def watch(path: str, start: int, size: int) -> memoryview:
        requested.append(start)
        return get_range(path, start, size)

    size = -(-len(whole) // 5)
    with ThreadPoolExecutor(1) as ahead, patch.object(storage, "get_range", watch):
        reader = read_logs(storage, row, request_bytes=size, ahead=ahead)
        next(reader)
        ahead.submit(len, requested).result()  # all earlier requests are done
        # One or two parts hold the first whole batch.
        assert len(requested) <= 4
        assert len(list(reader)) + 1 <= 5
    assert requested == list(range(0, len(whole), size))


def handed_out(storage: Storage, row: Slice, request_bytes: int) -> tuple[int, CorruptDataError | None]:
    """Up to which offset a slice can be read, and what ended it."""
    reached = row.base_offset
    try:
        for _, headers in reader.read_logs(storage, row, request_bytes=request_bytes):
            reached = int(headers.last_offset[-1]) + 1
    except CorruptDataError as error:
        return reached, error
    return reached, None


@pytest.mark.usefixtures("copied_bytes")
@pytest.mark.parametrize("mode", ["source", "zstd"])
def test_how_far_a_damaged_slice_is_read_depends_on_its_bytes_alone(mode: str) -> None:
    storage, row, whole = stored(mode)
    damaged = [whole[:size] for size in range(0, len(whole), 23)]
    for position in range(0, len(whole), 5):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << position % 8
        damaged.append(bytes(flipped))
    for data in damaged:
        exchange(storage, row.path, data)
        (first, error), *others = (handed_out(storage, row, size) for size in (1 << 20, 100, 17))
        assert error is not None
        assert {each for each, _ in others} == {first}, "a restore that resumes must meet the same"
        if first < row.end_offset:
            assert f"offsets {first} to {row.end_offset} cannot be read" in str(error)
            assert storage.name_of(row.path) in str(error)
        assert handed_out(storage, replace(row, sound_end=first), 1 << 20) == (first, None)


def test_what_stands_before_damage_is_handed_out_and_what_is_known_to_be_lost_is_not() -> None:
    storage, row, whole = stored("source")
    flipped = bytearray(whole)
    flipped[len(LOG[0]) + len(LOG[1]) + 70] ^= 1
    exchange(storage, row.path, bytes(flipped))
    assert handed_out(storage, row, 1 << 20)[0] == 6
    # Even if it is repaired in the meantime, it is left out: a restore that resumes must leave out the same.
    exchange(storage, row.path, whole)
    assert handed_out(storage, replace(row, sound_end=6), 1 << 20) == (6, None)
    storage.delete([row.path])
    reached, error = handed_out(storage, row, 1 << 20)
    assert (reached, error is not None and error.exit_code) == (0, 4)
    assert "offsets 0 to 15 cannot be read: the object is not there" in str(error)


def test_a_damaged_byte_that_looks_like_another_version_is_told_as_damage() -> None:
    storage, row, whole = stored("source")
    flipped = bytearray(whole)
    flipped[16] = 7
    exchange(storage, row.path, bytes(flipped))
    with pytest.raises(CorruptDataError, match="digest"):
        list(read_logs(storage, row))


def with_records(batch: bytes, records: bytes, attributes: int) -> bytes:
    """The batch with other bytes in the place of its records, and a checksum that fits them."""
    changed = bytearray(batch[:61] + records)
    changed[22] |= attributes
    changed[8:12] = (len(changed) - 12).to_bytes(4, "big")
    changed[17:21] = google_crc32c.value(bytes(changed[21:])).to_bytes(4, "big")
    return bytes(changed)


def run_of_zeros(size: int) -> bytes:
    """A zstd frame that does not say how much it holds: blocks of 128 KiB, four bytes each."""
    blocks = b"".join(((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"\0" for _ in range(size >> 17))
    return bytes.fromhex("28b52ffd0038") + blocks + (1 << 1 | 1).to_bytes(3, "little") + b"\0"


@pytest.mark.parametrize("attributes", [0, 0x08], ids=["create time", "log-append time"])
@pytest.mark.parametrize(
    "records", [run_of_zeros(4 << 20), b"no frame at all", run_of_zeros(1 << 17)], ids=["bomb", "garbage", "zeros"]
)
def test_a_batch_whose_records_cannot_be_unpacked_is_found_whatever_its_checksum_says(
    attributes: int, records: bytes
) -> None:
    storage = new_storage()
    hostile = with_records(data_batch(1, codec=Codec.ZSTD), records, attributes)
    (row,) = archive(storage, [data_batch(0, codec=Codec.ZSTD), hostile])
    with patch("maxbrod.batch.decode.DECOMPRESSED_BYTES_MAX", 1 << 20):
        (problem,) = verify_slice(storage, row)
    assert problem.offset == 1
    assert "records of a batch" in problem.message


def test_a_batch_that_unpacks_beyond_the_limit_is_a_limit_and_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = new_storage()
    large = data_batch(1, 2, value=bytes(1 << 20), codec=Codec.ZSTD)
    (row,) = archive(storage, [data_batch(0, codec=Codec.ZSTD), large], exact=False)
    assert verify_slice(storage, row) == []
    for module in ("batch.decode", "layouts.kafka.slices"):
        monkeypatch.setattr(f"maxbrod.{module}.DECOMPRESSED_BYTES_MAX", 1 << 20)
    (problem,) = verify_slice(storage, row)
    assert (problem.offset, problem.limit) == (1, True)
    assert "not looked into: zstd records unpack to more than 1048576 bytes, which is the limit" in problem.message
    exchange(storage, row.path, bytes(storage.get(row.path))[:-200] + bytes(200))
    assert not any(each.limit for each in verify_slice(storage, row))


def test_frames_that_hold_more_than_was_written_are_not_unpacked() -> None:
    """A slice of a few hundred bytes could be made to unpack for hours."""
    frames = b"".join(encode_frame(np.zeros(FRAME_BYTES, np.uint8), 3).tobytes() for _ in range(3))
    storage, row, _ = stored("zstd")
    digest = SliceDigest()
    digest.add(np.frombuffer(frames, np.uint8))
    exchange(storage, row.path, frames)
    hostile = replace(row, position=0, bytes=len(frames), digest=str(digest), raw_bytes=2 * FRAME_BYTES)
    for read in (read_log, lambda *about: list(read_logs(*about))):
        with pytest.raises(CorruptDataError, match=r"were written|CRC|magic|batch") as caught:
            read(storage, hostile)
    assert caught.value.exit_code == 4
    with pytest.raises(CorruptDataError, match="more bytes"):
        list(FrameDecoder(2 * FRAME_BYTES).decode(memoryview(frames)))


def test_a_slice_that_claims_to_be_huge_takes_no_memory() -> None:
    storage, row, _ = stored("source")
    for size in (1 << 40, 1 << 62):
        with pytest.raises(TruncatedDataError):
            read_log(storage, replace(row, bytes=size))
