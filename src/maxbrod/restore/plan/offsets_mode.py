"""Exact or append, per partition: whether restored records can stand at their own offsets, and what that costs.

The rates were measured on Kafka 4.3.1, one broker on two cores. An estimate knows compaction, gaps and aborted
transactions; of the markers of committed transactions the catalog says nothing, so it is the least that it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.restore.plan.request import OffsetsMode

if TYPE_CHECKING:
    from maxbrod.restore.plan.sources import Source
    from maxbrod.restore.plan.targets import LogExtent

FILLERS_PER_S: Final = 7_000_000
"""Batches of null records, which are deleted afterwards: only before the first record."""
MARKERS_PER_S: Final = 18_000
"""`WriteTxnMarkers` in bulk; needs ClusterAction."""
EMPTY_TRANSACTIONS_PER_S: Final = 200
EXACT_SECONDS_MAX: Final = 60.0
"""What `auto` spends on one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillCost:
    """Offsets that hold no record, and what it takes to make the target's log pass over them."""

    leading: int
    """Before the first record."""
    holes: int
    """After it: known, or feared because of aborted transactions."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsPlan:
    """`mode` is exact or append. `obstacle` is set where exact was demanded and cannot be."""

    mode: OffsetsMode
    why: str
    cost: FillCost
    """Of exact, whichever it is."""
    obstacle: str | None = None


def plan_offsets(
    wanted: OffsetsMode,
    source: Source,
    extent: LogExtent | None,
    *,
    repartitioned: bool,
    markers_allowed: bool | None,
    exact_seconds_max: float = EXACT_SECONDS_MAX,
) -> OffsetsPlan:
    """`extent` is the target partition's log; None where the topic is to be created."""
    cost = estimate_fill(source, 0 if extent is None else extent.end, markers_allowed=markers_allowed)
    impossible = _impossible(source, extent, repartitioned=repartitioned)
    if wanted is OffsetsMode.APPEND:
        return OffsetsPlan(mode=OffsetsMode.APPEND, why="as asked for", cost=cost)
    if wanted is OffsetsMode.EXACT:
        return OffsetsPlan(mode=OffsetsMode.EXACT, why="as asked for", cost=cost, obstacle=impossible)
    if impossible is not None:
        return OffsetsPlan(mode=OffsetsMode.APPEND, why=impossible, cost=cost)
    if cost.seconds > exact_seconds_max:
        why = f"to fill {cost.leading} offsets before and {cost.holes} between takes about {cost.seconds:.0f} s"
        return OffsetsPlan(mode=OffsetsMode.APPEND, why=why, cost=cost)
    why = "the target is empty" if not cost.leading + cost.holes else f"filling takes about {cost.seconds:.1f} s"
    return OffsetsPlan(mode=OffsetsMode.EXACT, why=why, cost=cost)


def estimate_fill(source: Source, log_end: int, *, markers_allowed: bool | None) -> FillCost:
    """From a log that ends at `log_end`. Where nobody knows whether markers are allowed, as if they were not."""
    leading = max(source.first_offset - log_end, 0)
    holes = min(source.holes + source.aborted, source.asked_end - source.first_offset)
    rate = MARKERS_PER_S if markers_allowed else EMPTY_TRANSACTIONS_PER_S
    return FillCost(leading=leading, holes=holes, seconds=leading / FILLERS_PER_S + holes / rate)


def _impossible(source: Source, extent: LogExtent | None, *, repartitioned: bool) -> str | None:
    if repartitioned:
        return "records change their partition"
    if extent is None:
        return None
    if not extent.empty:
        return f"the target holds offsets {extent.start} to {extent.end}"
    if extent.end > source.first_offset:
        return f"the target is empty, but its next offset is {extent.end}, after {source.first_offset}"
    return None
