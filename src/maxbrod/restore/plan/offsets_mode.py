"""Exact or append, for each partition: whether restored records can keep their offsets, and what that costs.

A broker assigns the next free offset to each batch, so offsets without a record must be filled: fillers before the
first record, transaction markers after it. The rates were measured on Kafka 4.3.1, one broker on two cores. An estimate
counts compaction, gaps and aborted transactions. The catalog does not record the markers of committed transactions, so
the estimate is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.restore.plan.request import OffsetsMode

if TYPE_CHECKING:
    from maxbrod.restore.plan.sources import Source
    from maxbrod.restore.plan.targets import LogExtent

FILLERS_PER_S: Final = 7_000_000
"""Batches of null records, which are deleted afterwards; possible only before the first record."""
MARKERS_PER_S: Final = 18_000
"""`WriteTxnMarkers` in bulk; needs ClusterAction."""
EMPTY_TRANSACTIONS_PER_S: Final = 200
EXACT_SECONDS_MAX: Final = 60.0
"""The most that `auto` spends on one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillCost:
    """The number of offsets without a record, and the time to fill them."""

    leading: int
    """Before the first record."""
    holes: int
    """After the first record: known holes, and offsets of aborted transactions."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsPlan:
    """`mode` is exact or append. `obstacle` is set if exact was requested and is impossible."""

    mode: OffsetsMode
    why: str
    cost: FillCost
    """The cost of exact, whatever the mode is."""
    obstacle: str | None = None


def plan_offsets(
    requested: OffsetsMode,
    source: Source,
    extent: LogExtent | None,
    *,
    repartitioned: bool,
    markers_allowed: bool | None,
    exact_seconds_max: float = EXACT_SECONDS_MAX,
) -> OffsetsPlan:
    """`extent` is the log of the target partition; None if the restore creates the topic."""
    cost = estimate_fill(source, 0 if extent is None else extent.end, markers_allowed=markers_allowed)
    impossible = _impossible(source, extent, repartitioned=repartitioned)
    if requested is OffsetsMode.APPEND:
        return OffsetsPlan(mode=OffsetsMode.APPEND, why="as requested", cost=cost)
    if requested is OffsetsMode.EXACT:
        return OffsetsPlan(mode=OffsetsMode.EXACT, why="as requested", cost=cost, obstacle=impossible)
    if impossible is not None:
        return OffsetsPlan(mode=OffsetsMode.APPEND, why=impossible, cost=cost)
    if cost.seconds > exact_seconds_max:
        why = f"filling {cost.leading} offsets before and {cost.holes} between takes about {cost.seconds:.0f} s"
        return OffsetsPlan(mode=OffsetsMode.APPEND, why=why, cost=cost)
    why = "the target is empty" if not cost.leading + cost.holes else f"filling takes about {cost.seconds:.1f} s"
    return OffsetsPlan(mode=OffsetsMode.EXACT, why=why, cost=cost)


def estimate_fill(source: Source, log_end: int, *, markers_allowed: bool | None) -> FillCost:
    """The cost for a log that ends at `log_end`. If it is unknown whether markers are allowed, as if they were not."""
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
