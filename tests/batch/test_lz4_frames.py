"""Frames of one lz4 block are found by their bytes alone, and nothing else is taken for one."""

from __future__ import annotations

import cramjam
import numpy as np
import pytest

from maxbrod.batch.compression import (
    DECOMPRESSED_BYTES_MAX,
    LZ4_FRAME_START,
    Arena,
    compress,
    compressed_rows,
    find_lz4_blocks,
    unpack,
)
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec
from support.native_logs import data_batch

TEXT = np.frombuffer(b"a quick brown fox and a slow one " * 300, np.uint8)
NOISE = np.random.default_rng(7).integers(0, 256, 500, np.uint8)


def found(*frames: bytes) -> list[bool]:
    """Which of these adjacent frames are one block; such a block must unpack to what its frame holds."""
    data = np.frombuffer(b"".join(frames), np.uint8)
    ends = np.cumsum([len(frame) for frame in frames])
    first, last = find_lz4_blocks(data, ends - [len(frame) for frame in frames], ends)
    return [bool(at >= 0 and end > at) for at, end in zip(first, last, strict=True)]


def test_a_frame_of_one_block_is_found_among_others() -> None:
    alone = compress(Codec.LZ4, TEXT)
    several = compress(Codec.LZ4, np.tile(TEXT, 20))
    linked = bytes(cramjam.lz4.compress(TEXT))
    stored = compress(Codec.LZ4, NOISE)
    assert found(alone, several, linked, stored, alone + alone, alone) == [True, False, False, False, False, True]


@pytest.mark.parametrize("kept", [0, 1, 7, 11, 15, -1, -4])
def test_a_frame_that_is_cut_is_never_taken_for_whole(kept: int) -> None:
    assert found(compress(Codec.LZ4, TEXT)[:kept]) == [False]
    assert found(LZ4_FRAME_START + bytes(8)) == [False]


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD, Codec.NONE])
def test_batches_unpack_to_the_same_whichever_way_they_go(codec: Codec) -> None:
    log = data_batch(0, 400, codec=codec) + data_batch(400, 3, codec=Codec.GZIP) + data_batch(403, 60, codec=codec)
    data = np.frombuffer(log, np.uint8)
    headers = walk(data)
    blocks = [block is not None for _, block in compressed_rows(data, headers, bytes_max=DECOMPRESSED_BYTES_MAX)]
    assert blocks == {Codec.LZ4: [True, False, True], Codec.ZSTD: [False] * 3, Codec.NONE: [False]}[codec]
    assert decode(data).column("offset").to_pylist() == list(range(463))


def test_a_damaged_block_is_named_and_never_half_unpacked() -> None:
    log = bytearray(data_batch(0, 5) + data_batch(5, 400, codec=Codec.LZ4))
    headers = walk(log, check_crc=False)
    log[int(headers.position[1]) + 61 + 11 : int(headers.position[1]) + 61 + 40] = b"\xff" * 29
    arena = Arena(16)
    with pytest.raises(CorruptDataError) as refused:
        unpack(np.frombuffer(log, np.uint8), headers, arena)
    assert (refused.value.offset, arena.size) == (5, 0)
