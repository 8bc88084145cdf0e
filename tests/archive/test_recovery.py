"""What a recovery point is, for one partition and for several."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.snapshots import Reach, behind, move_on, oldest
from maxbrod.model import PartitionId

BEFORE, NOW = 1000, 2000


@pytest.mark.parametrize(
    ("points", "expected"), [([], None), ([5], 5), ([7, 5, 9], 5), ([7, None, 9], None), ([None], None), ([0, 3], 0)]
)
def test_several_partitions_have_the_oldest_and_none_while_one_has_none(
    points: list[int | None], expected: int | None
) -> None:
    assert oldest(points) == expected


@pytest.mark.parametrize(
    ("reach", "expected"),
    [
        (Reach(end=10, archived=10), NOW),
        (Reach(end=10, archived=12), NOW),
        (Reach(end=0, archived=0), NOW),
        (Reach(end=10, archived=9), BEFORE),
        (Reach(end=10, archived=9, put_off=True), BEFORE),
        (Reach(end=None, archived=10), BEFORE),
        (Reach(end=10, archived=10, sound=False), BEFORE),
        (Reach(end=10, archived=10, held_back=True, held_since_ms=1700), 1700),
        (Reach(end=10, archived=10, held_back=True, held_since_ms=500), BEFORE),
        (Reach(end=10, archived=10, held_back=True, held_since_ms=2500), NOW),
        (Reach(end=10, archived=10, held_back=True), BEFORE),
    ],
)
def test_a_point_moves_on_only_with_everything_up_to_the_end_of_the_log(reach: Reach, expected: int) -> None:
    assert move_on(BEFORE, reach, began_at_ms=NOW) == expected
    # Without one before, there is none until all is archived; a transaction's begin is one, too.
    first = move_on(None, reach, began_at_ms=NOW)
    assert first in {None, expected} if expected != BEFORE else first in {None, 500}


@given(st.integers(0, 50), st.integers(0, 50), st.booleans(), st.booleans())
def test_a_partition_is_behind_exactly_where_more_was_to_be_archived(
    end: int, archived: int, sound: bool, put_off: bool
) -> None:
    partition = PartitionId(topic_id="a", partition=0)
    reach = Reach(end=end, archived=archived, sound=sound, put_off=put_off)
    lacking = (archived < end or not sound) and not put_off
    assert behind({partition: reach}) == ({partition: end} if lacking else {})
    assert behind({partition: Reach(end=None, archived=archived)}) == {partition: None}
