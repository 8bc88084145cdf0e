"""When a compacted topic is read afresh, how much of it at once, and when that is given up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maxbrod.backup.plan.generations import (
    DAYS,
    HOURS,
    GenerationPolicy,
    PartitionView,
    TopicView,
    begin,
    budget,
    bytes_left,
    first_generation,
    is_due,
    parse_length,
    plan_shares,
    raise_targets,
    why_drop,
    why_late,
)
from maxbrod.backup.plan.ranges import PartitionState
from maxbrod.catalog.generations import ENDED_KEPT, Generation, GenerationStage, TopicGenerations
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.errors import UsageError

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def part(number: int = 0, *, first: int = 0, end: int = 1000, read_to: int = 0, **state: Any) -> PartitionView:
    held = ArchivedRange(topic="t", first_offset=first, end_offset=end, last_leader_epoch=0)
    values: dict[str, Any] = {
        "log_start": 0,
        "end": end,
        "high_watermark": end,
        "bytes_per_offset": 100.0,
        "compacted": True,
    }
    return PartitionView(
        state=PartitionState(topic="t", topic_id="id", partition=number, held=held, **{**values, **state}),
        held=held,
        read_to=read_to,
    )


def topic(*parts: PartitionView, **changes: Any) -> TopicView:
    values: dict[str, Any] = {"compacted": True, "tombstones_ms": DAY_MS, "complete": True}
    return TopicView(topic="t", topic_id="id", partitions=parts or (part(),), **{**values, **changes})


def active(**changes: Any) -> Generation:
    return replace(Generation(number=1, stage=GenerationStage.ACTIVE, began_at=0), **changes)


def building(**changes: Any) -> Generation:
    return replace(Generation(number=2, stage=GenerationStage.BUILDING, began_at=0, targets={0: 1000}), **changes)


def known(*generations: Generation) -> TopicGenerations:
    return TopicGenerations(topic="t", topic_id="id", generations=generations)


MONTHLY = GenerationPolicy(every_ms=30 * DAY_MS)


def test_what_the_archive_holds_is_the_first_generation_once_it_is_complete() -> None:
    assert first_generation(topic(complete=False), began_at=1, now_ms=2) is None
    assert first_generation(topic(compacted=False), began_at=1, now_ms=2) is None
    assert first_generation(topic(compacted=None), began_at=1, now_ms=2) is None
    found = first_generation(topic(part(end=7), part(1, end=9)), began_at=1, now_ms=2)
    assert found is not None
    assert (found.active, found.building) == (
        Generation(number=1, stage=GenerationStage.ACTIVE, began_at=1, activated_at=2, log_ends={0: 7, 1: 9}),
        None,
    )


@pytest.mark.parametrize(
    ("generations", "now_ms", "due"),
    [
        ((active(),), 30 * DAY_MS - 1, False),
        ((active(),), 30 * DAY_MS, True),
        ((active(), building()), 90 * DAY_MS, False),
        ((), 90 * DAY_MS, False),
        # One that was dropped is not begun again at once: it would fail for the same reason, at the same cost.
        ((active(), building(stage=GenerationStage.DROPPED, ended_at=31 * DAY_MS)), 32 * DAY_MS, False),
        ((active(), building(stage=GenerationStage.DROPPED, ended_at=31 * DAY_MS)), 34 * DAY_MS, True),
        ((building(stage=GenerationStage.DROPPED, ended_at=31 * DAY_MS), active(number=3)), 32 * DAY_MS, True),
    ],
)
def test_a_generation_is_due_after_its_time(generations: tuple[Generation, ...], now_ms: int, due: bool) -> None:
    assert is_due(known(*generations), MONTHLY, now_ms=now_ms) is due


def test_a_generation_reads_what_the_archive_holds_when_it_begins() -> None:
    begun = begin(known(active()), topic(part(end=10), part(1, first=5, end=5)), now_ms=3)
    assert begun is not None
    assert begun.building == Generation(number=2, stage=GenerationStage.BUILDING, began_at=3, targets={0: 10, 1: 5})
    assert begun.active == active()
    assert begin(known(active()), topic(part(first=5, end=5)), now_ms=3) is None


@pytest.mark.parametrize(
    ("view", "present", "now_ms", "why"),
    [
        (topic(), True, 1, None),
        (None, True, 90 * DAY_MS, None),
        (None, False, 1, "deleted"),
        (topic(compacted=False), True, 1, "no longer compacted"),
        (topic(compacted=None), True, 1, None),
        (topic(part(truncated_at=999)), True, 1, "truncated at offset 999"),
        (topic(part(truncated_at=1000, end=2000)), True, 1, None),
        (topic(), True, DAY_MS, "delete.retention.ms"),
        # It had been read in time, and only waits for the archive.
        (topic(part(read_to=1000)), True, 90 * DAY_MS, None),
    ],
)
def test_a_generation_that_cannot_be_completed_is_dropped_for_a_reason(
    view: TopicView | None, present: bool, now_ms: int, why: str | None
) -> None:
    found = why_drop(view, known(active(), building()), present=present, now_ms=now_ms)
    assert found is None if why is None else why in str(found)
    assert why_drop(view, known(active()), present=present, now_ms=now_ms) is None


def test_a_generation_whose_last_offset_was_read_too_late_is_not_trusted() -> None:
    assert why_late(building(), topic(), now_ms=DAY_MS - 1) is None
    assert why_late(building(), topic(), now_ms=DAY_MS) is not None


def test_a_generation_is_not_trusted_if_the_clock_was_set_back_since_it_began() -> None:
    assert why_late(building(), topic(), now_ms=-60_000) is None
    assert "set back" in (why_late(building(), topic(), now_ms=-DAY_MS) or "")


def test_a_single_run_reads_all_and_an_interval_reads_its_share() -> None:
    view = topic()
    assert bytes_left(view, building()) == 100_000
    assert budget(view, building(), MONTHLY, room=1, now_ms=0) == 100_000
    often = replace(MONTHLY, interval_ms=60_000, bytes_max=5000)
    assert budget(view, building(), often, room=5000, now_ms=0) == 5000
    # Half of the tombstones' time has 12 intervals of an hour: each must read a twelfth.
    hourly = replace(often, interval_ms=HOUR_MS)
    assert budget(view, building(), hourly, room=0, now_ms=0) == -(-100_000 // 12)
    assert budget(view, building(), hourly, room=0, now_ms=12 * HOUR_MS) == 100_000


@example(sizes=[0, 1, 1], log_starts=[0, 0, 1, 0], bytes_max=0, interval_ms=DAY_MS)
@given(
    sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=4),
    log_starts=st.lists(st.integers(0, 2000), min_size=4, max_size=4),
    bytes_max=st.integers(0, 50_000),
    interval_ms=st.integers(1, DAY_MS),
)
def test_shares_follow_each_other_and_reach_the_targets_in_time(
    sizes: list[int], log_starts: list[int], bytes_max: int, interval_ms: int
) -> None:
    generation = building(targets=dict(enumerate(sizes)))
    policy = replace(MONTHLY, interval_ms=interval_ms, bytes_max=bytes_max)
    views = [part(number, end=size, log_start=log_starts[number]) for number, size in enumerate(sizes)]
    now_ms = 0
    while topic(*views).left(generation):
        view = topic(*views)
        assert now_ms < DAY_MS
        shares = plan_shares(view, generation, budget(view, generation, policy, room=bytes_max, now_ms=now_ms))
        assert shares
        for share in shares:
            plan = share.plan
            number = plan.state.partition
            assert plan.first == views[number].read_to <= plan.start <= plan.end <= sizes[number]
            assert plan.first_time == (plan.first == 0)
            assert plan.end > plan.first
            views[number] = replace(views[number], read_to=plan.end)
        now_ms += interval_ms


def test_whole_rows_are_retired() -> None:
    rows = [(0, 0, 600), (0, 600, 1000), (0, 1000, 1400), (1, 0, 5000)]
    assert raise_targets(building(), {0: 1000}, rows).targets == {0: 1000}
    # A batch that was read reaches beyond the target, or compaction of segments has joined rows.
    assert raise_targets(building(), {0: 1001}, rows).targets == {0: 1400}
    assert raise_targets(building(), {0: 1000}, [(0, 0, 1400)]).targets == {0: 1400}


def test_a_switch_changes_both_generations_and_forgets_the_oldest_in_the_end() -> None:
    topics = known(active())
    for turn in range(40):
        begun = begin(topics, topic(), now_ms=10 * turn)
        assert begun is not None
        topics = begun.activated(10 * turn + 5, {0: turn}) if turn % 2 else begun.without_building(10 * turn, "why")
        stages = [each.stage for each in topics.generations]
        assert (stages.count(GenerationStage.ACTIVE), stages.count(GenerationStage.BUILDING)) == (1, 0)
        assert len(stages) <= ENDED_KEPT + 1
    assert topics.active == replace(
        building(), number=41, stage=GenerationStage.ACTIVE, began_at=390, activated_at=395, log_ends={0: 39}
    )


def test_the_original_names_of_the_option_are_accepted_and_only_one_of_them() -> None:
    assert parse_length(None, {}) is None
    assert parse_length(90.0, {"schema": "full"}) == 90.0
    assert parse_length(None, {DAYS: "30"}) == 30 * 86_400
    assert parse_length(None, {HOURS: "6"}) == 6 * 3600
    for given_, options in ((1.0, {DAYS: "1"}), (None, {DAYS: "1", HOURS: "24"})):
        with pytest.raises(UsageError, match="twice"):
            parse_length(given_, options)
    for odd in ("", "x", "0", "-1", "nan", "inf"):
        with pytest.raises(UsageError, match="cannot be"):
            parse_length(None, {HOURS: odd})
