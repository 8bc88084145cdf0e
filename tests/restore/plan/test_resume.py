"""A restore that was killed at any instant goes on without loss or duplicate, or is refused; it never guesses."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog.examples import TOPIC_ID, gap, segment
from maxbrod.errors import RefusedError, TopicGoneError
from maxbrod.restore.plan.mapping import build_map
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.resume import Next, check_finished, check_topic, resume_partition, resume_shared
from maxbrod.restore.plan.targets import LogExtent
from restore.plan.examples import plan, target, topic

if TYPE_CHECKING:
    from maxbrod.restore.plan.plan import TopicPlan

FILLER = -1
HOLE = -2


@lru_cache
def topic_plan(first: int, end: int, mode: str, extent: tuple[int, int] | None = None, **changes: Any) -> TopicPlan:
    rows = ([gap(0, first)] if first else []) + ([segment(first, end)] if first < end else [])
    state = target() if extent is None else target(topic(), ends={"orders": [extent]})
    (made,) = plan(rows, RestoreRequest(offsets=OffsetsMode(mode), **changes), into=state).topics
    return made


def resume(made: TopicPlan, start: int, end: int, **changes: Any) -> Next:
    return resume_partition(made.partitions[0], made.target, LogExtent(start=start, end=end), **changes)


@dataclass
class Target:
    """A partition's log: source offsets, fillers and holes, at their offsets from 0 on."""

    log: list[int] = field(default_factory=list)
    start: int = 0


@dataclass
class Budget:
    """Appends until the kill; each append is one offset."""

    left: int

    def spend(self) -> bool:
        self.left -= 1
        return self.left >= 0


def run_exact(made: TopicPlan, records: set[int], into: Target, budget: Budget, acknowledged: int) -> None:
    """What a restore does with the answer; stops anywhere."""
    source = made.partitions[0].source
    step = resume(made, into.start, len(into.log), acknowledged=acknowledged)
    while step.fill_to is not None and len(into.log) < step.fill_to:
        if not budget.spend():
            return
        into.log.append(FILLER)
    if step.delete_before is not None:
        if not budget.spend():
            return
        into.start = step.delete_before
    for offset in range(step.source_offset, source.asked_end):
        if not budget.spend():
            return
        into.log.append(offset if offset in records else HOLE)


@settings(max_examples=200)
@given(
    st.integers(0, 12), st.sets(st.integers(0, 9)), st.lists(st.integers(0, 15), max_size=6), st.sampled_from([0, 1, 3])
)
def test_exact_goes_on_after_any_kill_with_every_record_at_its_offset(
    first: int, present: set[int], kills: list[int], base: int
) -> None:
    base = min(base, first)
    end, records = first + 10, {first + each for each in present}
    made = topic_plan(first, end, "exact", (base, base))
    into = Target([FILLER] * base, base)
    for budget in [*kills, 100]:
        run_exact(made, records, into, Budget(budget), len(into.log))
    assert into.log == [FILLER] * first + [each if each in records else HOLE for each in range(first, end)]
    assert into.start == first
    check_finished(made.target, 0, LogExtent(start=into.start, end=len(into.log)), target_end=end)


@settings(max_examples=200)
@given(
    st.integers(0, 12),
    st.sets(st.integers(0, 9)),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6),
    st.sampled_from([0, 5]),
)
def test_append_goes_on_after_any_kill_without_loss_or_duplicate(
    first: int, present: set[int], kills: list[tuple[int, bool]], base: int
) -> None:
    records = sorted(first + each for each in present)
    made = topic_plan(first, first + 10, "append", (0, base))
    log: list[int] = []
    noted = None
    for budget, note in [*kills, (100, True)]:
        step = resume(made, 0, base + len(log), done=noted, acknowledged=base + len(log))
        rest = [each for each in records if each >= step.source_offset][step.skip_records :]
        assert step.target_offset == base + len(log)
        log += rest[:budget]
        if note:
            noted = build_map(log, [1] * len(log), range(base, base + len(log)), base=base)
    assert log == records


def test_a_target_that_is_shorter_than_what_was_acknowledged_is_refused() -> None:
    for mode in ("exact", "append"):
        made = topic_plan(0, 10, mode)
        with pytest.raises(RefusedError, match="lost records"):
            resume(made, 0, 4, acknowledged=5)
    with pytest.raises(RefusedError, match="lost records"):
        resume(made, 0, 4, done=build_map([0], [5], [0], base=0))
    with pytest.raises(RefusedError, match="lost records"):
        resume(topic_plan(0, 10, "append", (0, 7)), 0, 6)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_a_foreign_write_that_makes_the_log_too_long_is_refused(mode: str) -> None:
    made = topic_plan(0, 10, mode)
    assert resume(made, 0, 10).target_offset == 10
    with pytest.raises(RefusedError, match="somebody else"):
        resume(made, 0, 11)
    with pytest.raises(RefusedError, match="somebody else"):
        check_finished(made.target, 0, LogExtent(start=0, end=11), target_end=10)
    with pytest.raises(RefusedError, match="lost records"):
        check_finished(made.target, 0, LogExtent(start=0, end=9), target_end=10)


@pytest.mark.parametrize("mode", ["exact", "append"])
def test_restored_records_that_were_deleted_meanwhile_are_noticed(mode: str) -> None:
    with pytest.raises(RefusedError, match="deleted"):
        resume(topic_plan(0, 10, mode), 3, 8)


def test_a_partition_without_records_is_filled_to_its_end() -> None:
    made = topic_plan(50, 50, "exact")
    assert resume(made, 0, 0) == Next(fill_to=50, delete_before=50, source_offset=50, skip_records=0, target_offset=50)
    assert resume(made, 0, 50).delete_before == 50
    assert resume(made, 50, 50).delete_before is None


def test_a_repartitioned_partition_tells_how_many_records_it_has() -> None:
    made = topic_plan(0, 10, "append", (0, 4), partition_count=1)
    base = made.target.bases[0]
    assert resume_shared("orders-0", base, LogExtent(start=0, end=9)) == 5
    for start, end in ((0, 3), (5, 9)):
        with pytest.raises(RefusedError):
            resume_shared("orders-0", base, LogExtent(start=start, end=end))


def test_a_topic_is_gone_on_with_only_if_it_is_the_same() -> None:
    new, existing = topic_plan(0, 10, "exact").target, topic_plan(0, 10, "exact", (0, 0)).target
    mine, other = topic(), topic(topic_id="another")
    assert not check_topic(new, None, None, empty=True)
    assert check_topic(new, mine, TOPIC_ID, empty=False)
    assert check_topic(new, mine, None, empty=True), "killed between creating it and noting its id"
    assert check_topic(existing, mine, None, empty=False)
    assert not check_topic(new, None, TOPIC_ID, empty=True), "what this restore made and somebody deleted is made again"
    for planned, present, created in ((existing, None, None), (new, other, TOPIC_ID), (existing, other, None)):
        with pytest.raises(TopicGoneError):
            check_topic(planned, present, created, empty=True)
    with pytest.raises(RefusedError, match="somebody else"):
        check_topic(new, mine, None, empty=False)
    with pytest.raises(RefusedError, match="partitions"):
        check_topic(new, topic(partitions=2), TOPIC_ID, empty=True)
