"""Damaged and hostile segments: refused by name, never a crash, never memory without bound."""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, UnsupportedFormatError
from maxbrod.layouts.kbs.survey import LAYOUT
from support import plain_kbs as plain
from support.plain_batches import Record, varint
from support.tool_backups import KBS, segment_of, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def test_a_damaged_batch_keeps_none_of_those_before_it_back(storage: Storage) -> None:
    records = some(0, 9)
    stored = bytearray(plain.segment_of(records))
    stored[-20] ^= 1
    storage.put("s", stored)
    batches = LAYOUT.read(storage, segment_of("s", records))

    assert [next(batches).num_rows, next(batches).num_rows] == [3, 3]
    with pytest.raises(CorruptDataError, match="checksum is wrong") as caught:
        next(batches)
    assert caught.value.offset == 6


@pytest.mark.parametrize(
    ("forced", "kind", "complaint"),
    [
        ({"magic": b"KBS2"}, UnsupportedFormatError, "not a segment"),
        ({"version": 2}, UnsupportedFormatError, "version 2"),
        ({"flags": 1}, UnsupportedFormatError, "flags 1"),
        ({"codec": 3}, UnsupportedFormatError, "codec 3"),
        ({"first": -1}, CorruptDataError, "begin with offset -1"),
        ({"first": 1}, CorruptDataError, "the manifest says"),
        ({"count": 4}, CorruptDataError, "the manifest says"),
        ({"checksum": 7}, CorruptDataError, "checksum of the batches is"),
        ({"footer_count": 4}, CorruptDataError, "the footer says 4"),
        ({"codec": 1}, CorruptDataError, "decompressed"),
        ({"codec": 2}, CorruptDataError, "decompressed"),
    ],
)
def test_a_segment_that_lies_with_right_checksums_is_refused(
    storage: Storage, forced: dict[str, Any], kind: type[MaxbrodError], complaint: str
) -> None:
    records = some(0, 3)
    stored = plain.write_segment([plain.write_batch(records)], **{"first": 0, "count": 3, **forced})
    error = KBS.refused(storage, stored, records)

    assert type(error) is kind
    assert complaint in error.message


@pytest.mark.parametrize(
    ("forced", "complaint"),
    [
        ({"base": -1}, "from -1 on"),
        ({"base": 1}, "does not begin where it should"),
        ({"count": 2}, "more bytes than its records"),
        ({"count": 4}, "runs over the end"),
        ({"count": 0xFFFFFFFF}, "claims to have 4294967295 records"),
        ({"stored_bytes": 0xFFFFFFFF}, "is cut"),
        ({"block_bytes": 0xFFFFFFFF}, "claims to unpack"),
        ({"block_bytes": 1000}, "not 1000"),
        ({"block_bytes": 20}, "more than 20 bytes"),
        ({"block": b"\x80" * 40}, "runs over the end"),
        ({"block": varint(0) * 2 + varint(1 << 40) + bytes(20)}, "impossible length"),
        ({"block": varint(0) * 2 + varint(-2) + bytes(20)}, "impossible length"),
        ({"block": varint(1) + bytes(20)}, "offset does not rise"),
        ({"block": varint(-1) + bytes(20)}, "offset does not rise"),
        ({"block": varint(0) * 4 + varint(9) + bytes(10)}, "header has an impossible length"),
        ({"block": varint(0) * 4 + varint(-9) + bytes(10)}, "header has an impossible length"),
    ],
)
def test_a_batch_that_lies_with_right_checksums_is_refused(
    storage: Storage, forced: dict[str, Any], complaint: str
) -> None:
    records = some(0, 3)
    stored = plain.write_segment([plain.write_batch(records, **forced)], first=0, count=3)
    error = KBS.refused(storage, stored, records)

    assert isinstance(error, CorruptDataError)
    assert complaint in error.message
    assert error.position is not None


def test_batches_that_go_back_are_refused(storage: Storage) -> None:
    records = some(0, 4)
    batches = [plain.write_batch(records[:2]), plain.write_batch(records[1:3])]
    error = KBS.refused(storage, plain.write_segment(batches, first=0, count=4), records)

    assert "does not begin where it should" in error.message


def test_offsets_never_go_over_the_end_of_64_bits(storage: Storage) -> None:
    top = Record(offset=(1 << 63) - 2, timestamp=0, key=None, value=None)
    block = varint(0) + varint(0) * 5 + varint(5) + varint(0) * 4
    stored = plain.write_segment([plain.write_batch([top], block=block, count=2)], first=top.offset, count=2)

    assert "does not rise" in KBS.refused(storage, stored, [top], records=2).message


def test_a_cut_batch_is_told_as_cut(storage: Storage) -> None:
    records = some(0, 9)
    stored = plain.segment_of(records)
    error = KBS.refused(storage, stored[:-60] + stored[-16:], records)

    assert isinstance(error, TruncatedDataError)


@pytest.mark.parametrize("codec", range(3))
def test_hostile_records_under_right_checksums_never_crash(storage: Storage, codec: int) -> None:
    rng = random.Random(codec)
    records = some(0, 4)
    block = plain.write_block(records)
    for _ in range(400):
        damaged = bytearray(block)
        for _ in range(rng.choice([1, 1, 2, 4])):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.choice([0, 1, 1, 1, 4])] = rng.choice(
                [b"\0", b"\xff", b"\x7f", rng.randbytes(1), varint(1 << 62), varint(-2), rng.randbytes(4)]
            )
        batch = plain.write_batch(records, codec, block=bytes(damaged))
        storage.replace("s", plain.write_segment([batch], first=0, count=4, codec=codec))
        try:
            found = KBS.read(storage, segment_of("s", records))
        except MaxbrodError as error:
            assert isinstance(error, CorruptDataError)  # noqa: PT017 - either answer is right
        else:
            assert len(found) == 4


@pytest.mark.parametrize("codec", [1, 2])
def test_a_bomb_takes_no_more_memory_than_its_batch_may(storage: Storage, codec: int) -> None:
    records = some(0, 1)
    packed = plain.pack(codec, bytes(64 << 20))
    for block_bytes in (10_000, len(packed) * 900):
        batch = plain.write_batch(records, codec, packed=packed, block=b"", block_bytes=block_bytes)
        body = plain.write_segment([batch], first=0, count=1, codec=codec)
        tracemalloc.start()
        error = KBS.refused(storage, body, records)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert isinstance(error, CorruptDataError)
        assert peak < max(64 << 20, 2 * block_bytes + 4 * len(packed))
