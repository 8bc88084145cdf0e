"""What a run does about a partition: go on, begin, explain what retention took, take back what was truncated."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.backup.plan.ranges import (
    PartitionBackup,
    PartitionState,
    RollLimits,
    due,
    plan_partition,
    plan_partitions,
    track_waiting,
)
from maxbrod.backup.plan.starts import AtTime, Earliest, Latest
from maxbrod.backup.truncation import truncated_at
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.model import PartitionId

NOW = 1_700_000_000_000
PARTITION = PartitionId(topic_id="id", partition=2)


class Held(NamedTuple):
    """What the archive holds, and where the last epoch of it ends in the log, if any is known."""

    first: int
    end: int
    epoch_end: int | None = None


def state(log_start: int, end: int, held: Held | None = None, **changes: Any) -> PartitionState:
    values: dict[str, Any] = {"high_watermark": end, "bytes_per_offset": 10.0, "compacted": False, **changes}
    if held is not None:
        epoch = None if held.epoch_end is None else 5
        values["held"] = ArchivedRange(
            topic="orders", first_offset=held.first, end_offset=held.end, last_leader_epoch=epoch
        )
        values["truncated_at"] = truncated_at(
            held.end, common_end=held.epoch_end, high_watermark=values["high_watermark"]
        )
    values.setdefault("held", None)
    return PartitionState(topic="orders", topic_id="id", partition=2, log_start=log_start, end=end, **values)


def plan(log_start: int, end: int, kept: Held | None = None, **changes: Any) -> PartitionBackup:
    return plan_partition(state(log_start, end, kept, **changes), Earliest())


def extent(made: PartitionBackup) -> tuple[int, int, int, int | None]:
    return made.first, made.start, made.end, made.truncated_at


def test_a_partition_that_no_run_has_met_begins_where_it_is_told() -> None:
    assert extent(plan(10, 90)) == (10, 10, 90, None)
    assert plan(10, 90).first_time
    latest = plan_partition(state(10, 90), Latest())
    assert extent(latest) == (90, 90, 90, None)
    assert latest.idle
    assert plan_partition(state(10, 90), AtTime(timestamp_ms=1), offset_for_time=33).start == 33


def test_a_partition_that_appeared_since_the_last_run_is_never_skipped() -> None:
    for appeared, first in (((), 90), ((PARTITION,), 10)):
        made = plan_partitions([state(10, 90)], Latest(), appeared=appeared, offsets_for_time={})
        assert made[PARTITION].first == first


def test_a_run_goes_on_where_the_archive_ends_whatever_start_is_given() -> None:
    made = plan_partition(state(0, 90, Held(0, 60, epoch_end=90)), Latest())
    assert extent(made) == (60, 60, 90, None)
    assert not made.first_time
    assert made.bytes_estimate == 300


def test_a_run_that_began_at_the_end_goes_on_from_there() -> None:
    assert extent(plan(0, 90, Held(60, 60))) == (60, 60, 90, None)


def test_what_retention_took_is_a_gap_up_to_the_start_of_the_log() -> None:
    made = plan(70, 90, Held(0, 60, epoch_end=70))
    assert extent(made) == (60, 70, 90, None)
    assert made.gap == (60, 70)


def test_a_log_that_was_emptied_is_a_gap_and_nothing_to_read() -> None:
    made = plan(90, 90, Held(0, 60, epoch_end=90))
    assert (made.gap, made.start, made.end, made.idle) == ((60, 90), 90, 90, False)


def test_a_truncated_log_is_read_again_from_where_it_was_cut() -> None:
    made = plan(0, 90, Held(0, 60, epoch_end=40))
    assert extent(made) == (40, 40, 90, 40)
    assert not plan(0, 40, Held(0, 60, epoch_end=40)).idle


def test_a_log_that_was_cut_and_emptied_is_a_gap_from_the_cut() -> None:
    assert extent(plan(50, 90, Held(0, 60, epoch_end=40))) == (40, 50, 90, 40)


def test_a_high_watermark_that_lags_is_never_taken_for_a_truncation() -> None:
    made = plan(0, 55, Held(0, 60, epoch_end=60))
    assert made.truncated_at is None
    assert made.idle


def test_an_open_transaction_is_never_taken_for_a_truncation() -> None:
    made = plan(0, 55, Held(0, 60), high_watermark=80)
    assert made.truncated_at is None
    assert made.idle


def test_without_an_epoch_the_end_of_the_log_tells_that_it_was_cut() -> None:
    assert extent(plan(0, 55, Held(0, 60))) == (55, 55, 55, 55)


@given(
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 10),
    st.none() | st.builds(Held, st.integers(0, 40), st.integers(40, 120), st.none() | st.integers(0, 130)),
)
def test_a_plan_never_reads_outside_of_the_log_and_never_leaves_offsets_out(
    log_start: int, length: int, pending: int, kept: Held | None
) -> None:
    end = log_start + length
    made = plan(log_start, end, kept, high_watermark=end + pending)
    assert made.first <= made.start <= made.end
    if made.start < made.end:
        assert log_start <= made.start
        assert made.end == end
    if kept is not None:
        assert made.first == (kept.end if made.truncated_at is None else made.truncated_at)
        assert made.first <= kept.end
        assert made.start in {made.first, log_start}


def due_now(made: PartitionBackup, waited_ms: int, **limits: int) -> bool:
    return due(made, waiting_since_ms=NOW - waited_ms, now_ms=NOW, limits=RollLimits(**limits))


def test_by_default_everything_that_waits_is_read_at_every_interval() -> None:
    assert due_now(plan(0, 1), 0)
    assert due(plan(0, 1), waiting_since_ms=None, now_ms=NOW, limits=RollLimits())
    assert not due_now(plan(0, 0), 1000)


@pytest.mark.parametrize(
    ("offsets", "waited_ms", "expected"),
    [(9, 0, False), (10, 0, True), (9, 4999, False), (1, 5000, True), (0, 9000, False)],
)
def test_a_partition_is_read_when_enough_waits_or_long_enough(offsets: int, waited_ms: int, expected: bool) -> None:
    assert due_now(plan(0, offsets), waited_ms, bytes=100, age_ms=5000) == expected
    assert due_now(plan(0, offsets), waited_ms, records=10, age_ms=5000) == expected


def test_what_the_log_no_longer_has_is_written_down_at_once() -> None:
    limits = RollLimits(records=1000, age_ms=10**9)
    for made in (plan(70, 90, Held(0, 60, epoch_end=70)), plan(0, 40, Held(0, 60, epoch_end=40))):
        assert due(made, waiting_since_ms=NOW, now_ms=NOW, limits=limits)


def test_the_time_of_waiting_is_kept_until_nothing_waits() -> None:
    waiting, quiet = plan(0, 5), plan(0, 0)
    since = track_waiting({}, [waiting], now_ms=NOW)
    assert since == {PARTITION: NOW}
    assert track_waiting(since, [waiting], now_ms=NOW + 60_000) == {PARTITION: NOW}
    assert track_waiting(since, [quiet], now_ms=NOW + 60_000) == {}
