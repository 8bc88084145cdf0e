"""Heartbeats: few objects that reach far back, and a lag that never looks better than it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.signs_of_life import HEARTBEATS, thinned
from maxbrod.model import PartitionId
from maxbrod.replicate.heartbeat import (
    Heartbeat,
    Heartbeats,
    decode,
    encode,
    proven_at_ms,
    read_heartbeats,
    write_heartbeat,
)
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from pathlib import Path

ONE = PartitionId(topic_id="a", partition=0)
TWO = PartitionId(topic_id="a", partition=1)


def _beat(at_ms: int, **ends: int) -> Heartbeat:
    partitions = {"one": ONE, "two": TWO}
    return Heartbeat(
        at_ms=at_ms, instance="i", cluster_id="c", ends={partitions[name]: end for name, end in ends.items()}
    )


@given(st.integers(0, 2**40), st.dictionaries(st.integers(0, 9), st.integers(0, 2**62)))
def test_a_heartbeat_is_read_as_it_was_written(at_ms: int, ends: dict[int, int]) -> None:
    beat = Heartbeat(
        at_ms=at_ms,
        instance="i",
        cluster_id="c",
        ends={PartitionId(topic_id="t", partition=number): end for number, end in ends.items()},
    )
    assert decode(encode(beat), "x") == beat


@given(st.lists(st.integers(1, 120_000), min_size=1, max_size=400))
def test_kept_heartbeats_are_few_and_reach_back_to_the_first(steps: list[int]) -> None:
    kept: set[int] = set()
    now = 1_700_000_000_000
    first = now + steps[0]
    for step in steps:
        now += step
        kept = thinned({*kept, now})
        assert now in kept
        assert len(kept) <= 8 + 40
    assert first in kept


def test_the_moment_that_a_destination_has_everything_of_is_proven_by_a_heartbeat() -> None:
    beats = [_beat(300, one=30, two=5), _beat(200, one=20), _beat(100, one=10)]
    assert proven_at_ms(beats, ONE, 30) == 300
    assert proven_at_ms(beats, ONE, 29) == 200
    assert proven_at_ms(beats, ONE, 9) is None
    assert proven_at_ms(beats, TWO, 4) is None, "older heartbeats do not know the partition, and prove nothing"
    assert proven_at_ms([], ONE, 30) is None


def test_a_heartbeat_that_is_half_copied_is_left_out_and_read_later(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for at_ms in (100, 200):
        write_heartbeat(storage, _beat(at_ms, one=at_ms))
    path = tmp_path / HEARTBEATS / f"{200:013d}.json"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    beats = Heartbeats()
    assert [each.at_ms for each in beats.read(storage)] == [100]
    path.write_bytes(whole)
    assert [each.at_ms for each in beats.read(storage)] == [200, 100]
    assert [each.at_ms for each in read_heartbeats(storage)] == [200, 100]
