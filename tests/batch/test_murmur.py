"""Keys go to the partitions that Kafka's Java client sends them to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.batch.hashes import partition_for

if TYPE_CHECKING:
    from support.java_oracle import JavaOracle

INT32_MAX = (1 << 31) - 1
# From the tests of Kafka's own clients: Utils.murmur2 of each, as an int.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KEYS = [bytes((7 * i + 191) % 256 for i in range(length)) for length in range(70)]


def plain_murmur2(key: bytes) -> int:
    """Word by word, in Python's own integers."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        value = value * multiplier & mask ^ word
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * multiplier & mask
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


def test_hashes_that_kafka_publishes() -> None:
    chosen = partition_for(pa.array(list(KNOWN), pa.binary()), INT32_MAX, null_partition=0)

    assert chosen.tolist() == [(value & INT32_MAX) % INT32_MAX for value in KNOWN.values()]


@given(keys=st.lists(st.one_of(st.none(), st.binary(max_size=40))), count=st.integers(1, INT32_MAX))
def test_every_key_has_its_partition_and_null_the_one_given(keys: list[bytes | None], count: int) -> None:
    fallback = count // 2
    expected = [fallback if key is None else (plain_murmur2(key) & INT32_MAX) % count for key in keys]

    assert partition_for(pa.array(keys, pa.binary()), count, null_partition=fallback).tolist() == expected


def test_a_part_of_a_column_hashes_as_the_whole_does() -> None:
    keys = pa.array([b"a", None, b"", b"longer key", b"z"], pa.binary())
    whole = partition_for(keys, 1000, null_partition=7).tolist()

    assert partition_for(keys.slice(1, 3), 1000, null_partition=7).tolist() == whole[1:4]


@pytest.mark.parametrize(("count", "null_partition"), [(0, 0), (3, 3), (3, -1)])
def test_a_partition_that_is_not_there_is_refused(count: int, null_partition: int) -> None:
    with pytest.raises(ValueError, match="no partition"):
        partition_for(pa.array([b"k"], pa.binary()), count, null_partition=null_partition)


@pytest.mark.parametrize("count", [1, 3, 12, 50, 1000])
def test_java_sends_the_same_keys_to_the_same_partitions(java: JavaOracle, count: int) -> None:
    utils = java.jvm.org.apache.kafka.common.utils.Utils
    expected = [utils.toPositive(utils.murmur2(key)) % count for key in KEYS]

    assert partition_for(pa.array(KEYS, pa.binary()), count, null_partition=0).tolist() == expected
