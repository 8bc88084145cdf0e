"""Rows tile, whatever the tasks met: against a model that looks at every single offset."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.catalog.rows import Gap, PartitionId, Segment
from maxbrod.catalog.schema import GapReason
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, CorruptDataError
from maxbrod.planning.assembly import Assembly, assemble, check_tiling
from maxbrod.planning.findings import FindingKind, worst_exit_code
from maxbrod.planning.items import Damage, Outcome, Trouble
from planning.examples import PARTITION, TOPIC, TOPIC_ID, Batch, failed, item, logs, outcome, part, read

if TYPE_CHECKING:
    from collections.abc import Sequence

HUGE = 2**63 - 1 - 200


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
    return [(row.base_offset, row.end_offset, str(row.reason or "data")) for row in made.rows]


def covered(made: Assembly) -> dict[int, str]:
    """For each offset what the rows say of it."""
    return {
        offset: "data" if isinstance(row, Segment) else str(row.reason)
        for row in made.rows
        for offset in range(row.base_offset, row.end_offset)
    }


def kinds(made: Assembly) -> list[str]:
    return [str(each.kind) for each in made.findings]


@st.composite
def readings(draw: st.DrawFn) -> tuple[list[Batch], tuple[int, int], list[Outcome], int]:
    """A log, what was planned of it, and what tasks found that split it anywhere; and the log's start."""
    shift = draw(st.sampled_from([0, 0, HUGE]))
    log, end = draw(logs(first=shift))
    log_start = draw(st.sampled_from([shift, *(each.base for each in log), end]))
    cuts = sorted(set(draw(st.lists(st.integers(shift, max(shift, end)), max_size=4))) | {shift, end})
    width = draw(st.sampled_from([1, 4, 1000]))
    starts = [(max(a, log_start), b) for a, b in zip(cuts, cuts[1:], strict=False) if b > log_start]
    outcomes = [read(log, a, b, log_start=log_start, hole_offsets_min=width) for a, b in starts if a < b]
    return log, (shift, end), draw(st.permutations(outcomes)), log_start


@given(readings(), st.booleans())
def test_rows_tile_what_was_planned_and_hold_exactly_the_sound_batches(
    reading: tuple[list[Batch], tuple[int, int], list[Outcome], int], compacted: bool
) -> None:
    log, planned, outcomes, log_start = reading
    made = put_together(planned, *outcomes, compacted=compacted, log_start=log_start)
    assert (made.first, made.reached) == planned
    said = covered(made)
    for batch in log:
        expected = "retention" if batch.base < log_start else "corrupt" if batch.damaged else "data"
        assert {said[offset] for offset in range(batch.base, batch.end)} == {expected}
    records = sum(row.records for row in made.rows if isinstance(row, Segment))
    assert records == sum(each.records for each in log if each.base >= log_start and not each.damaged)
    if any(each.damaged and each.base >= log_start for each in log):
        assert worst_exit_code(made.findings) == EXIT_CORRUPT


@given(readings(), st.booleans())
def test_a_split_reading_covers_the_same_offsets_as_a_sequential_one(
    reading: tuple[list[Batch], tuple[int, int], list[Outcome], int], compacted: bool
) -> None:
    log, planned, outcomes, log_start = reading
    begin = max(planned[0], log_start)
    whole = [read(log, begin, planned[1], log_start=log_start)] if begin < planned[1] else []
    split = put_together(planned, *outcomes, compacted=compacted, log_start=log_start)
    at_once = put_together(planned, *whole, compacted=compacted, log_start=log_start)
    gaps = {each: reason for each, reason in covered(at_once).items() if reason not in {"data", "unexplained"}}
    assert {each: reason for each, reason in covered(split).items() if each in gaps} == gaps | {
        each: "data" for each in gaps if covered(split)[each] == "data"
    }
    assert worst_exit_code(split.findings) == worst_exit_code(at_once.findings)
