"""A plan as a person reads it: neighbouring segments with the same reason together. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import Kind
from maxbrod.prune.plan import WORDS, Reason, SegmentPlan, numbers_of, places_of


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
