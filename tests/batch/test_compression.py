from __future__ import annotations

import random

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.compression import Arena, compress, decompress
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

RNG = random.Random(1)
# Larger than a block of any framing, and ending inside one; noise does not compress, text does.
NOISE = RNG.randbytes(200_001)
TEXT = b"".join(b"record %d, " % i for i in range(20_000))
COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def array(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("text", [NOISE, TEXT, NOISE + TEXT, b"", b"x", TEXT[: 64 << 10], TEXT[: (64 << 10) + 1]])
def test_every_codec_gives_back_what_it_was_given(codec: Codec, text: bytes) -> None:
    packed = compress(codec, array(text))

    assert decompress(codec, array(packed)).tobytes() == text
    assert len(packed) <= len(text) + len(text) // 1000 + 64


def test_an_lz4_frame_is_of_independent_blocks_of_at_most_64_kib_and_stores_what_does_not_shrink() -> None:
    frame = compress(Codec.LZ4, array(NOISE + TEXT))
    at, blocks, stored = 7, 0, 0
    unpacked = b""
    while size := int.from_bytes(frame[at : at + 4], "little"):
        block = frame[at + 4 : at + 4 + (size & 0x7FFFFFFF)]
        room = min(64 << 10, len(NOISE + TEXT) - len(unpacked))
        # Each block unpacks by itself, so none leans on the one before.
        unpacked += block if size >> 31 else bytes(cramjam.lz4.decompress_block(block, output_len=room))
        at, blocks, stored = at + 4 + len(block), blocks + 1, stored + (size >> 31)

    assert at + 4 == len(frame)
    assert unpacked == NOISE + TEXT
    assert 0 < stored < blocks == -(-len(unpacked) // (64 << 10))
    assert bytes(cramjam.lz4.decompress(frame)) == NOISE + TEXT


def test_snappy_is_framed_in_blocks_of_at_most_32_kib() -> None:
    framed = compress(Codec.SNAPPY, array(TEXT))
    at, blocks = 16, []
    while at < len(framed):
        size = int.from_bytes(framed[at : at + 4], "big")
        blocks.append(bytes(cramjam.snappy.decompress_raw(framed[at + 4 : at + 4 + size])))
        at += 4 + size

    assert framed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    assert b"".join(blocks) == TEXT
    assert max(map(len, blocks)) == 32 << 10


@given(cut=st.integers(17, 10_000))
def test_framed_snappy_is_refused_wherever_it_is_cut_but_between_two_blocks(cut: int) -> None:
    framed = compress(Codec.SNAPPY, array(TEXT[:70_000]))
    ends = [16]
    while ends[-1] < len(framed):
        ends.append(ends[-1] + 4 + int.from_bytes(framed[ends[-1] : ends[-1] + 4], "big"))
    cut = 17 + cut % (len(framed) - 17)
    if cut in ends:
        return
    with pytest.raises(CorruptDataError, match="snappy"):
        decompress(Codec.SNAPPY, array(framed[:cut]))


@pytest.mark.parametrize("codec", list(Codec))
def test_an_arena_grows_as_it_must_and_keeps_what_it_holds(codec: Codec) -> None:
    arena = Arena(0)
    texts = [b"first", TEXT, b"", NOISE, TEXT * 10]
    written = [arena.append(codec, array(compress(codec, array(text)))) for text in texts]

    assert written == [len(text) for text in texts]
    assert arena.data[: arena.size].tobytes() == b"".join(texts)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_limit_counts_one_batch_and_is_met_exactly(codec: Codec) -> None:
    arena = Arena(10)
    packed = array(compress(codec, array(TEXT)))
    for _ in range(3):
        assert arena.append(codec, packed, bytes_max=len(TEXT)) == len(TEXT)

    with pytest.raises(CorruptDataError, match=f"more than {len(TEXT) - 1} bytes"):
        arena.append(codec, packed, bytes_max=len(TEXT) - 1)
    assert arena.data[: arena.size].tobytes() == TEXT * 3


@given(position=st.integers(0), bit=st.integers(0, 7))
def test_a_damaged_lz4_frame_is_refused_or_stays_within_its_block(position: int, bit: int) -> None:
    """Frames carry no checksum of their own: the batch's CRC is what tells. But no damage reads or writes elsewhere."""
    frame = bytearray(compress(Codec.LZ4, array(TEXT)))
    frame[position % len(frame)] ^= 1 << bit
    arena = Arena(len(TEXT) + 100)
    arena.data[:] = 0xEE
    try:
        written = arena.append(Codec.LZ4, array(bytes(frame)))
    except CorruptDataError:
        assert arena.size == 0
    else:
        assert arena.size == written <= len(TEXT) + (64 << 10)


@pytest.mark.parametrize("cut", [1, 4, 6, 7, 8, 11, 12, 100, -5, -4, -1])
def test_an_lz4_frame_that_is_cut_is_refused(cut: int) -> None:
    frame = compress(Codec.LZ4, array(TEXT))

    with pytest.raises(CorruptDataError, match="lz4"):
        decompress(Codec.LZ4, array(frame[:cut]))


def test_lz4_frames_of_other_writers_and_several_in_a_row_are_read_too() -> None:
    ours, theirs = compress(Codec.LZ4, array(TEXT)), bytes(cramjam.lz4.compress(TEXT))

    assert ours[:7] != theirs[:7]
    for frames in (theirs, ours + ours, ours + theirs, theirs + ours):
        alone = decompress(Codec.LZ4, array(frames)).tobytes()
        assert alone == bytes(cramjam.lz4.decompress(frames))
