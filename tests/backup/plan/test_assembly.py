"""Rows tile, whatever the tasks met: against a model that looks at every single offset."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.backup.plan.assembly import Assembly, assemble, check_tiling
from maxbrod.backup.plan.ranges import Damage, FailureKind, Outcome
from maxbrod.catalog.rows import Segment
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, CorruptDataError
from maxbrod.model import PartitionId
from maxbrod.notices import worst_exit_code
from support.backup_plans import PARTITION, TOPIC, Batch, item, logs, outcome, part, read, read_until

HUGE = 2**63 - 1 - 200
PASSING = [FailureKind.UNAVAILABLE, FailureKind.TRUNCATED, FailureKind.DENIED, FailureKind.UNSUPPORTED]


def put_together(
    planned: tuple[int, int],
    *outcomes: Outcome,
    compacted: bool = False,
    log_start: int = 0,
    first_time: bool = False,
) -> Assembly:
    made = assemble(
        PARTITION,
        planned,
        outcomes,
        topic=TOPIC,
        compacted=compacted,
        run_id="run-1",
        written_at=7,
        log_start=log_start,
        first_time=first_time,
    )
    check_tiling(made.rows, {PARTITION: (made.first, made.reached)})
    return made


def shape(made: Assembly) -> list[tuple[int, int, str]]:
    return [
        (row.base_offset, row.end_offset, f"{'data ' * isinstance(row, Segment)}{row.reason or ''}".strip())
        for row in made.rows
    ]


def covered(made: Assembly) -> dict[int, str]:
    """What the rows say of each offset."""
    return {
        offset: "data" if isinstance(row, Segment) else str(row.reason)
        for row in made.rows
        for offset in range(row.base_offset, row.end_offset)
    }


def kinds(made: Assembly) -> list[str]:
    return [str(each.kind) for each in made.notices]


@dataclass(frozen=True)
class Reading:
    """What tasks found that had split a log anywhere, in any order."""

    log: list[Batch]
    planned: tuple[int, int]
    log_start: int
    outcomes: list[Outcome]

    def sound(self) -> list[Batch]:
        return [each for each in self.log if each.base >= self.log_start and not each.damaged]

    def broken_off(self, whole: Outcome, data: st.DataObject, kind: FailureKind) -> Outcome:
        borders = [each.base for each in self.log if whole.item.start < each.base < whole.item.end]
        return read_until(self.log, whole, data.draw(st.sampled_from([whole.item.start, *borders])), kind)


@st.composite
def readings(draw: st.DrawFn, hole_offsets_min: int | None = None) -> Reading:
    first = draw(st.sampled_from([0, 0, HUGE]))
    log, end = draw(logs(first=first))
    log_start = draw(st.sampled_from([first, *(each.base for each in log), end]))
    cuts = sorted(set(draw(st.lists(st.integers(first, end), max_size=4))) | {first, end})
    width = hole_offsets_min or draw(st.sampled_from([1, 4, 1000]))
    spans = [(max(a, log_start), b) for a, b in itertools.pairwise(cuts) if b > log_start]
    outcomes = [read(log, a, b, log_start=log_start, hole_offsets_min=width) for a, b in spans]
    return Reading(log, (first, end), log_start, draw(st.permutations(outcomes)))


@given(readings(), st.booleans())
def test_rows_tile_what_was_planned_and_hold_exactly_the_sound_batches(reading: Reading, compacted: bool) -> None:
    made = put_together(reading.planned, *reading.outcomes, compacted=compacted, log_start=reading.log_start)
    assert (made.first, made.reached) == reading.planned
    said = covered(made)
    for batch in reading.log:
        expected = "retention" if batch.base < reading.log_start else "corrupt" if batch.damaged else "data"
        assert {said[offset] for offset in range(batch.base, batch.end)} == {expected}
    segments = [row for row in made.rows if isinstance(row, Segment)]
    assert sum(row.records for row in segments) == sum(each.records for each in reading.sound())
    for row in segments:
        assert (row.reason is None) == (row.records == row.end_offset - row.base_offset)


@given(readings(), st.booleans())
def test_the_exit_code_is_done_only_where_every_offset_is_archived_or_explained(
    reading: Reading, compacted: bool
) -> None:
    made = put_together(reading.planned, *reading.outcomes, compacted=compacted, log_start=reading.log_start)
    log = [each for each in reading.log if each.base >= reading.log_start]
    begin = max(reading.planned[0], reading.log_start)
    present = {offset for each in log for offset in range(each.base, each.end)}
    missing = len(present) < reading.planned[1] - begin or any(each.records < each.end - each.base for each in log)
    if any(each.damaged for each in log):
        assert worst_exit_code(made.notices) == EXIT_CORRUPT
    elif missing and not compacted:
        assert worst_exit_code(made.notices) == EXIT_INCOMPLETE
    else:
        assert worst_exit_code(made.notices) == EXIT_DONE


@given(readings(hole_offsets_min=1), st.booleans())
def test_a_split_reading_says_the_same_of_every_offset_as_a_sequential_one(reading: Reading, compacted: bool) -> None:
    begin, end = max(reading.planned[0], reading.log_start), reading.planned[1]
    whole = [read(reading.log, begin, end, log_start=reading.log_start)] if begin < end else []
    split = put_together(reading.planned, *reading.outcomes, compacted=compacted, log_start=reading.log_start)
    sequential = put_together(reading.planned, *whole, compacted=compacted, log_start=reading.log_start)
    assert covered(split) == covered(sequential)
    assert worst_exit_code(split.notices) == worst_exit_code(sequential.notices)


@given(readings(), st.data())
def test_after_a_failure_rows_end_there_and_the_next_run_completes_them(reading: Reading, data: st.DataObject) -> None:
    """However the first run ends, both together are what one good run would have been."""
    outcomes = list(reading.outcomes)
    for number in range(len(outcomes)):
        if data.draw(st.booleans()):
            continue
        outcomes[number] = reading.broken_off(outcomes[number], data, data.draw(st.sampled_from(PASSING)))
    lost = data.draw(st.integers(0, len(outcomes)))
    made = put_together(reading.planned, *outcomes[lost:], log_start=reading.log_start)
    assert made.first == reading.planned[0]
    if made.reached < reading.planned[1]:
        assert kinds(made)[-1] == "failed"
        assert worst_exit_code(made.notices) >= EXIT_INCOMPLETE

    position = max(made.reached, reading.log_start)
    rest = read(reading.log, position, reading.planned[1], log_start=reading.log_start)
    again = put_together(
        (made.reached, max(reading.planned[1], made.reached)),
        *([rest] if position < reading.planned[1] else []),
        log_start=reading.log_start,
    )
    check_tiling([*made.rows, *again.rows], {PARTITION: reading.planned})
    said = covered(made) | covered(again)
    for batch in reading.sound():
        assert {said[offset] for offset in range(batch.base, batch.end)} == {"data"}


@given(readings(hole_offsets_min=1), st.data())
def test_of_a_deleted_topic_everything_is_kept_that_was_read(reading: Reading, data: st.DataObject) -> None:
    outcomes = list(reading.outcomes)
    for number in range(len(outcomes)):
        kind = data.draw(st.sampled_from([None, FailureKind.DELETED, FailureKind.UNAVAILABLE]))
        if kind is not None:
            outcomes[number] = reading.broken_off(outcomes[number], data, kind)
    if not any(each.failure is not None and each.failure.kind is FailureKind.DELETED for each in outcomes):
        return
    made = put_together(reading.planned, *outcomes, log_start=reading.log_start)
    assert (made.first, made.reached) == reading.planned
    slices = {(each.base_offset, each.end_offset) for one in outcomes for each in one.slices}
    assert {(row.base_offset, row.end_offset) for row in made.rows if isinstance(row, Segment)} == slices
    assert "failed" not in kinds(made)
    said = covered(made)
    unread = {each.base: each for each in reading.sound()}.keys() - {
        offset for base, end in slices for offset in range(base, end)
    }
    assert {said[offset] for offset in unread} <= {"deleted"}


@given(readings(), st.data())
def test_slices_that_cannot_be_are_never_turned_into_rows(reading: Reading, data: st.DataObject) -> None:
    places = [(one, each) for one, found in enumerate(reading.outcomes) for each in range(len(found.slices))]
    if not places:
        return
    one, each = data.draw(st.sampled_from(places))
    victim = reading.outcomes[one].slices[each]
    wrong = data.draw(
        st.sampled_from(
            [
                replace(victim, end_offset=victim.base_offset),
                replace(victim, records=victim.end_offset - victim.base_offset + 1),
                replace(victim, records=-1),
                replace(victim, base_offset=reading.outcomes[one].item.end),
                replace(victim, base_offset=reading.planned[0] - 1),
            ]
        )
    )
    outcomes = list(reading.outcomes)
    slices = list(outcomes[one].slices)
    slices[each] = wrong
    outcomes[one] = replace(outcomes[one], slices=tuple(slices))
    with pytest.raises(CorruptDataError):
        put_together(reading.planned, *outcomes, log_start=reading.log_start)


def test_a_batch_may_reach_beyond_its_range_and_even_over_the_next_one() -> None:
    made = put_together(
        (0, 30), outcome(0, 10, part(0, 23)), outcome(10, 20), outcome(20, 30, part(23, 30)), compacted=False
    )
    assert shape(made) == [(0, 23, "data"), (23, 30, "data")]
    assert made.notices == ()


def test_a_wave_begins_where_the_batches_of_the_one_before_it_ended() -> None:
    made = put_together((13, 30), outcome(10, 30, part(13, 31)))
    assert shape(made) == [(13, 31, "data")]
    assert made.reached == 31


def test_a_hole_is_part_retention_part_something_else() -> None:
    holed = replace(
        outcome(0, 40, part(0, 5), part(30, 40), log_start=12),
        damages=(Damage(offset=20, message="CRC"),),
    )
    made = put_together((0, 40), holed)
    assert shape(made) == [
        (0, 5, "data"),
        (5, 12, "retention"),
        (12, 20, "unexplained"),
        (20, 30, "corrupt"),
        (30, 40, "data"),
    ]
    assert kinds(made) == ["retention", "unexplained", "corrupt"]
    assert made.notices[2].message == "CRC"


def test_retention_that_was_heard_later_does_not_explain_what_an_earlier_range_missed() -> None:
    made = put_together((0, 30), outcome(0, 10, part(0, 5)), outcome(10, 30, part(20, 30), log_start=20))
    assert shape(made)[1:3] == [(5, 10, "unexplained"), (10, 20, "retention")]


def test_damage_at_the_end_of_a_range_explains_the_hole_up_to_the_next_batch() -> None:
    damaged = replace(outcome(0, 10, part(0, 8)), damages=(Damage(offset=8, message="CRC"),))
    made = put_together((0, 20), damaged, outcome(10, 20, part(14, 20)), compacted=True)
    assert shape(made) == [(0, 8, "data"), (8, 14, "corrupt"), (14, 20, "data")]


def test_damage_within_a_slice_is_the_reason_of_its_row() -> None:
    damaged = replace(outcome(0, 10, part(0, 10, 7)), damages=(Damage(offset=4, message="CRC"),))
    made = put_together((0, 10), damaged, compacted=True)
    assert shape(made) == [(0, 10, "data corrupt")]
    assert worst_exit_code(made.notices) == EXIT_CORRUPT


def test_what_retention_took_before_the_plan_is_a_gap_even_if_nobody_read() -> None:
    made = put_together((5, 20), log_start=20)
    assert shape(made) == [(5, 20, "retention")]
    assert worst_exit_code(made.notices) == EXIT_DONE


def test_a_batch_that_the_log_begins_within_is_archived_whole() -> None:
    """Records were deleted up to an offset within a batch, which the broker delivers as it is."""
    found = outcome(15, 30, part(10, 30), log_start=15)
    assert shape(put_together((8, 30), found, log_start=15)) == [(8, 10, "retention"), (10, 30, "data")]
    made = put_together((15, 30), found, log_start=15, first_time=True)
    assert (made.first, shape(made)) == (10, [(10, 30, "data")])
    with pytest.raises(CorruptDataError, match="overlap"):
        put_together((15, 30), found, log_start=15)


def test_a_range_that_nobody_answered_for_is_never_passed_over() -> None:
    made = put_together((0, 30), outcome(0, 10, part(0, 10)), outcome(20, 30, part(20, 30)))
    assert (made.reached, shape(made), kinds(made)) == (10, [(0, 10, "data")], ["failed"])
    assert put_together((0, 30)).reached == 0


def test_what_nobody_can_read_any_more_is_deleted_up_to_the_next_batch_and_to_the_end() -> None:
    log = [Batch(base=0, end=5, records=5), Batch(base=5, end=12, records=7), Batch(base=12, end=20, records=8)]
    gone = read_until(log, outcome(0, 10), 5, FailureKind.DELETED)
    assert shape(put_together((0, 30), gone, outcome(10, 20, part(12, 20)))) == [
        (0, 5, "data"),
        (5, 12, "deleted"),
        (12, 20, "data"),
        (20, 30, "deleted"),
    ]
    made = put_together((0, 30), gone)
    assert shape(made) == [(0, 5, "data"), (5, 30, "deleted")]
    assert worst_exit_code(made.notices) == EXIT_DONE


def test_a_slice_outside_of_its_range_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="after the range"):
        put_together((0, 20), outcome(0, 10, part(0, 5), part(12, 15)), outcome(10, 20, part(15, 20)))
    with pytest.raises(CorruptDataError, match="overlap"):
        put_together((0, 20), outcome(0, 10, part(0, 5)), outcome(10, 20, part(7, 20)))


def test_ranges_that_overlap_or_are_of_another_partition_are_refused() -> None:
    with pytest.raises(CorruptDataError, match="same offsets"):
        put_together((0, 20), outcome(0, 12), outcome(10, 20))
    stranger = replace(outcome(0, 10), item=replace(item(0, 10), partition=9))
    with pytest.raises(CorruptDataError, match="orders-9"):
        put_together((0, 10), stranger)


@pytest.mark.parametrize("expected", [(0, 11), (0, 9), (1, 10)])
def test_rows_that_do_not_cover_exactly_what_is_expected_never_pass(expected: tuple[int, int]) -> None:
    rows = put_together((0, 10), outcome(0, 10, part(0, 10))).rows
    check_tiling(rows, {PARTITION: (0, 10)})
    for wrong, wanted in (
        (rows, {PARTITION: expected}),
        (rows, {}),
        ([*rows, *rows], {PARTITION: (0, 10)}),
        (rows, {PARTITION: (0, 10), PartitionId(topic_id="other", partition=0): (0, 1)}),
    ):
        with pytest.raises(CorruptDataError):
            check_tiling(wrong, wanted)
