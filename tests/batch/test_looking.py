"""Lowest timestamps found without compiled code are those that it finds, or none; and a look comes to an end."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.decode import lowest_timestamps
from maxbrod.batch.headers import walk
from maxbrod.layouts.kafka.described_batches import LOOKED_INTO_BYTES, TimestampScan, look_into
from maxbrod.model import Codec
from support.native_logs import pack
from support.plain_batches import Record

NOW = 1_790_000_000_000
FAR = 2**54


def log_of(batches: list[list[int]], codec: Codec, size: int = 20) -> bytes:
    """Batches of records with these timestamps."""
    offset, log = 0, b""
    for times in batches:
        records = [
            Record(offset=offset + i, timestamp=at, key=None, value=b"v" * random.Random(at).randrange(size))
            for i, at in enumerate(times)
        ]
        log += pack(records, codec)
        offset += len(times)
    return log


@given(
    st.lists(st.lists(st.one_of(st.integers(NOW - 70_000, NOW), st.integers(-FAR, FAR)), min_size=1), min_size=1),
    st.sampled_from([Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY]),
    st.sampled_from([1, 70, 9000]),
)
def test_a_look_never_finds_another_lowest_time_than_there_is(
    batches: list[list[int]], codec: Codec, size: int
) -> None:
    data = np.frombuffer(log_of(batches, codec, size), np.uint8)
    headers = walk(data)
    lowest, sound = TimestampScan(steps=1 << 20, unpacked_bytes=1 << 30).lowest_timestamps(data, headers)
    expected, _ = lowest_timestamps(data, headers)
    assert expected.tolist() == [min(times) for times in batches]
    assert sound.all()
    assert (lowest == expected).all()


def test_deltas_beyond_a_word_are_not_guessed() -> None:
    data = np.frombuffer(log_of([[0, 2**62], [5, 4]], Codec.NONE), np.uint8)
    lowest, sound = TimestampScan().lowest_timestamps(data, walk(data))
    assert sound.tolist() == [False, True]
    assert lowest[1] == 4


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.GZIP])
def test_damaged_records_are_never_sound_by_a_look(codec: Codec) -> None:
    log = log_of([[NOW] * 50, [NOW] * 50], codec)
    first = walk(log)
    sounds = []
    for position in range(61, int(first.size[0]), 7):
        damaged = bytearray(log)
        damaged[position] ^= 0x55
        data = np.frombuffer(damaged, np.uint8)
        headers = walk(data, check_crc=False)
        lowest, sound = TimestampScan().lowest_timestamps(data, headers)
        expected, readable = lowest_timestamps(data, headers)
        assert (lowest == expected)[sound & readable].all()
        assert not (sound & ~readable).any()
        sounds += sound.tolist()
    assert not all(sounds)


def test_a_batch_that_holds_more_than_its_records_is_never_sound_by_a_look() -> None:
    log = bytearray(log_of([[NOW, NOW - 1, NOW - 2]], Codec.NONE))
    log[57:61] = (2).to_bytes(4, "big")
    data = np.frombuffer(log, np.uint8)
    assert TimestampScan().lowest_timestamps(data, walk(data, check_crc=False))[1].tolist() == [False]


def test_a_large_task_is_not_looked_into() -> None:
    assert (look_into(LOOKED_INTO_BYTES) is not None, look_into(LOOKED_INTO_BYTES + 1)) == (True, None)


def test_a_look_ends_when_it_has_cost_enough() -> None:
    def looks(look: TimestampScan, batches: list[list[int]], codec: Codec = Codec.NONE) -> list[bool]:
        data = np.frombuffer(log_of(batches, codec), np.uint8)
        sound: list[bool] = look.lowest_timestamps(data, walk(data))[1].tolist()
        return sound

    steps = TimestampScan(steps=10)
    assert looks(steps, [[NOW] * 6, [NOW] * 4]) == [True, True]
    assert looks(steps, [[NOW] * 5]) == [False]
    assert looks(steps, [[NOW]]) == [False]
    room = TimestampScan(unpacked_bytes=3000)
    assert looks(room, [[NOW] * 40], Codec.LZ4) == [True]
    assert looks(room, [[NOW] * 400], Codec.LZ4) == [False]
    assert looks(room, [[NOW] * 2], Codec.LZ4) == [False]
