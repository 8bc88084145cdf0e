"""The waits for a late segment double and add up exactly, and jitter is added to a wait instead of replacing it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import UsageError
from maxbrod.replicate.seed.run import doubling_waits, jittered

SECOND = 1_000_000_000


@given(st.integers(1, 50), st.integers(0, 1 << 62))
def test_waits_double_and_their_sum_is_exact(count: int, more: int) -> None:
    total = (1 << count) - 1 + more
    waits = doubling_waits(total, count)
    assert sum(waits) == total
    assert len(waits) == count
    assert all(after == 2 * before for before, after in pairwise(waits[:-1]))
    assert waits[-1] >= waits[-2] * 2 if count > 1 else waits[-1] == total


def test_the_waits_of_the_documented_example() -> None:
    waits = doubling_waits(3600 * SECOND, 5)
    assert [round(each / SECOND, 1) for each in waits] == [116.1, 232.3, 464.5, 929.0, 1858.1]


def test_the_default_waits_begin_with_about_a_second_and_end_with_half_a_day() -> None:
    waits = doubling_waits(24 * 3600 * SECOND, 16)
    assert round(waits[0] / SECOND, 3) == 1.318
    assert round(waits[-1] / SECOND / 3600) == 12


@pytest.mark.parametrize(("total", "count"), [(1, 2), (100, 0), (100, 51), ((1 << 16) - 2, 16)])
def test_waits_that_round_to_nothing_are_refused(total: int, count: int) -> None:
    with pytest.raises(UsageError):
        doubling_waits(total, count)


def test_a_jittered_wait_is_close_to_the_wait() -> None:
    """The original waits for the jitter alone: half of its waits take no time."""
    draw = random.Random(1)
    waits = [jittered(10 * SECOND, draw.uniform) for _ in range(1000)]
    assert min(waits) >= 7.5 * SECOND
    assert max(waits) <= 12.5 * SECOND
    assert len(set(waits)) > 900
