"""The report of a prune: neighbouring segments with the same reason together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import Kind
from maxbrod.prune.plan import WORDS, Reason, SegmentPlan, numbers_of, places_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.prune.runs import RunDecision


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Neighbouring segments of one partition that stay or go for the same reason."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int
    segments: int
    records: int
    bytes: int
    keep: bool
    reason: str
    replaced: bool
    """Whether later rows have replaced them: only queries as of an older run return them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    segments: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    archive: str
    layout: str
    items: tuple[Item, ...]
    """Every segment of the archive: neighbours with the same reason together."""
    runs: tuple[RunDecision, ...]
    going: Totals
    kept: Totals
    objects: int
    """Objects that nothing would name any more. A pack stays while one of its slices does."""
    objects_bytes: int
    """The size of the slices in those objects."""
    applied: bool
    run_id: str | None = None
    """The run that `--undo` takes."""
    undo_until_ms: int | None = None
    ages_until_ms: int = 0
    """The time up to which ages count: the earliest of this machine's clock, the store's, and the newest backup."""
    idle_ms: int = 0
    """How long before this machine's clock that is, if it is the newest backup."""

    @property
    def runs_going(self) -> int:
        return sum(not run.keep for run in self.runs)


def items_of(plan: SegmentPlan) -> list[Item]:
    """Every row of a plan, in its order."""
    rows = plan.rows
    if not rows.num_rows:
        return []
    live = int(pc.sum(pc.equal(rows["kind"], Kind.DATA)).as_py())
    _, _, partition = places_of(rows, live)
    holder = np.where(plan.reasons == Reason.HELD, plan.holders, -1)
    changes = (np.diff(partition) != 0) | (np.diff(plan.reasons) != 0) | (np.diff(holder) != 0)
    first = np.flatnonzero(np.append(True, changes))
    last = np.append(first[1:], rows.num_rows) - 1
    heads = rows.select(["topic", "topic_id", "partition", "base_offset"]).take(pa.array(first)).to_pylist()
    ends = rows["end_offset"].to_numpy()[last].tolist()
    sums: dict[str, Any] = {
        name: np.add.reduceat(numbers_of(rows, name), first).tolist() for name in ("records", "bytes")
    }
    return [
        Item(
            topic=head["topic"],
            topic_id=head["topic_id"],
            partition=head["partition"],
            first_offset=head["base_offset"],
            end_offset=ends[number],
            segments=int(last[number] - first[number] + 1),
            records=sums["records"][number],
            bytes=sums["bytes"][number],
            keep=not Reason(int(plan.reasons[first[number]])).goes,
            reason=_words(plan, int(first[number])),
            replaced=bool(first[number] >= live),
        )
        for number, head in enumerate(heads)
    ]


def _words(plan: SegmentPlan, row: int) -> str:
    reason = Reason(int(plan.reasons[row]))
    if reason is Reason.HELD and plan.holders[row] >= 0 and plan.words:
        return plan.words[int(plan.holders[row])]
    return WORDS[reason]


def totals_of(items: Sequence[Item], *, keep: bool) -> Totals:
    chosen = [item for item in items if item.keep == keep]
    return Totals(
        segments=sum(item.segments for item in chosen),
        records=sum(item.records for item in chosen),
        bytes=sum(item.bytes for item in chosen),
    )
