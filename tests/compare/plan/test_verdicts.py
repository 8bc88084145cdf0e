"""What is said of two logs that hold the same records and do not begin at the same offset."""

from __future__ import annotations

import pytest

from maxbrod.compare.plan import ComparedRange, Match, Pair
from maxbrod.compare.run import _Judging


def judged(log_starts: tuple[int, int] | None) -> tuple[bool, tuple[str, ...]]:
    extent = ComparedRange(topic="t", topic_id="id", partition=0, first=10, end=10)
    pair = Pair(
        source_topic="t",
        target_topic="u",
        partition=0,
        match=Match.EXACT,
        source=extent,
        target=extent,
        log_starts=log_starts,
    )
    (found,) = _Judging([pair], [], []).comparisons()
    return found.equal, found.notes


@pytest.mark.parametrize("log_starts", [None, (10, 10)])
def test_logs_that_begin_alike_or_need_not_are_equal(log_starts: tuple[int, int] | None) -> None:
    assert judged(log_starts) == (True, ())


def test_a_log_that_begins_elsewhere_is_not_equal_though_its_records_are() -> None:
    equal, notes = judged((10, 0))
    assert not equal
    assert notes == ("the log starts at offset 10 in the source, and at 0 in the target",)
