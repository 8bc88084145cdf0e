from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError
from support.plain_batches import Record, write_batch
from support.record_examples import record_lists

A = write_batch([Record(offset=10, timestamp=5, key=b"a", value=b"1")])
B = write_batch(
    [Record(offset=i, timestamp=7, key=b"b", value=b"22") for i in (11, 14)],
    leader_epoch=3,
    producer_id=77,
    producer_epoch=2,
    base_sequence=100,
    attributes=0x18,
)


def test_every_field_of_every_header_is_read() -> None:
    headers = walk(A + B)

    assert headers.position.tolist() == [0, len(A)]
    assert headers.size.tolist() == [len(A), len(B)]
    assert (headers.end, headers.tail) == (len(A + B), 0)
    row = {name: int(column[1]) for name, column in headers.fields.items() if name not in {"crc", "batch_length"}}
    assert row == {
        "base_offset": 11,
        "leader_epoch": 3,
        "magic": 2,
        "attributes": 0x18,
        "last_offset_delta": 3,
        "base_timestamp": 7,
        "max_timestamp": 7,
        "producer_id": 77,
        "producer_epoch": 2,
        "base_sequence": 100,
        "count": 2,
    }
    assert headers.last_offset.tolist() == [10, 14]
    assert headers.transactional.tolist() == [False, True]
    assert headers.log_append.tolist() == [False, True]
    assert headers.control.tolist() == [False, False]


@given(records=record_lists(), cut=st.integers(0, 10_000))
def test_a_buffer_cut_at_any_byte_gives_its_whole_batches_and_a_tail(records: list[Record], cut: int) -> None:
    batch = write_batch(records)
    buffer = (A + batch)[:cut]
    headers = walk(buffer)
    whole = [size for size in (len(A), len(A) + len(batch)) if size <= cut]

    assert len(headers) == len(whole)
    assert headers.end == (whole[-1] if whole else 0)
    assert headers.tail == len(buffer) - headers.end


@pytest.mark.parametrize("kept", [1, 11, 12, 16, 17, 60, 61, len(B) - 1])
def test_a_cut_batch_is_an_error_only_where_the_object_must_be_whole(kept: int) -> None:
    assert walk(A + B[:kept]).tail == kept
    with pytest.raises(TruncatedDataError, match=f"only {kept} bytes") as caught:
        walk(A + B[:kept], whole=True, object_name="x.log")
    assert (caught.value.position, caught.value.object_name) == (len(A), "x.log")


@pytest.mark.parametrize("byte", range(21, len(B)))
def test_a_flipped_bit_anywhere_under_the_checksum_is_found(byte: int) -> None:
    damaged = bytearray(B)
    damaged[byte] ^= 0x10

    with pytest.raises(CorruptDataError, match="checksum") as caught:
        walk(A + bytes(damaged))
    assert (caught.value.offset, caught.value.position) == (11, len(A))


@pytest.mark.parametrize("magic", [3, 17, -1, 127])
def test_an_unknown_magic_is_refused_not_guessed(magic: int) -> None:
    damaged = bytearray(B)
    struct.pack_into(">b", damaged, 16, magic)

    with pytest.raises(UnsupportedFormatError, match=f"magic {magic}") as caught:
        walk(A + bytes(damaged))
    assert (caught.value.offset, caught.value.position) == (11, len(A))


@pytest.mark.parametrize("length", [-1, 0, 48, -(1 << 31)])
def test_an_impossible_length_is_corrupt_and_not_merely_cut(length: int) -> None:
    damaged = bytearray(B)
    struct.pack_into(">i", damaged, 8, length)

    with pytest.raises(CorruptDataError, match=f"impossible length of {length} bytes") as caught:
        walk(A + bytes(damaged))
    assert not isinstance(caught.value, TruncatedDataError)


def test_a_length_over_the_limit_is_corrupt_and_not_merely_cut() -> None:
    damaged = bytearray(B)
    struct.pack_into(">i", damaged, 8, 1 << 30)

    assert walk(A + bytes(damaged)).tail == len(B)
    with pytest.raises(CorruptDataError, match="1073741824 bytes"):
        walk(A + bytes(damaged), batch_bytes_max=1 << 20)


def test_a_batch_may_be_exactly_as_large_as_the_limit() -> None:
    assert len(walk(B, batch_bytes_max=len(B))) == 1
    with pytest.raises(CorruptDataError, match="impossible length"):
        walk(B, batch_bytes_max=len(B) - 1)


@pytest.mark.parametrize("length", [17, 18, 40])
def test_a_tail_of_which_the_magic_can_be_read_must_have_one_that_is_known(length: int) -> None:
    damaged = bytearray(B)
    damaged[16] = 9

    assert walk(A + bytes(damaged[:16])).tail == 16
    with pytest.raises(UnsupportedFormatError, match="magic 9"):
        walk(A + bytes(damaged[:length]))


def test_preallocated_zeros_are_not_taken_for_batches() -> None:
    with pytest.raises(CorruptDataError) as caught:
        walk(A + bytes(200))
    assert caught.value.position == len(A)


def test_unknown_flags_under_a_right_checksum_are_refused() -> None:
    with pytest.raises(UnsupportedFormatError, match="0x0080"):
        walk(write_batch([Record(offset=0, timestamp=0, key=None, value=None)], attributes=0x80))


@pytest.mark.parametrize(
    "fields",
    [
        {"count": 3},
        {"count": -1},
        {"last_offset_delta": -2},
        {"base_offset": -5},
        {"base_offset": 5, "last_offset_delta": -1, "count": 0},
        {"base_offset": (1 << 63) - 1, "last_offset_delta": 7},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(fields: dict[str, int]) -> None:
    record = Record(offset=0, timestamp=0, key=None, value=None)
    fields = {"last_offset_delta": 1, **fields}

    with pytest.raises(CorruptDataError):
        walk(A + write_batch([record], body=b"", **fields))


def test_walking_copies_nothing_of_the_buffer() -> None:
    buffer = np.frombuffer(A + B, np.uint8)

    assert walk(buffer).position.base is not buffer  # the columns are ours
    assert walk(memoryview(A + B)).end == len(A + B)


def test_the_raw_path_does_not_load_numba() -> None:
    """It costs a worker two seconds, and backup and restore of whole batches need none of it."""
    code = (
        "import sys\n"
        "from maxbrod.batch import compression, crc, headers, patch, transactions\n"
        f"headers.walk(bytes.fromhex('{A.hex()}'))\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
