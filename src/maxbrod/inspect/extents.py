"""The rows of one partition summed up: data, gaps with their reasons, counts; and its offsets as one line. Pure.

The line has a cell for each range of offsets, with a letter and a colour for what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, assert_never

from rich.text import Text

from maxbrod.catalog.rows import Gap, Segment
from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.model import AbortedTransaction, PartitionId


DATA: Final = "data"
HOLE: Final = "hole"
"""Offsets that no row covers, which must not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets [first, end) with the same cover: data, hole, or the reason of a gap."""

    first_offset: int
    end_offset: int
    cover: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """What is archived of one partition. `exact` is false if the last slice reaches beyond the requested end.

    Records and bytes are then those of whole slices, and so upper bounds.
    """

    partition: int
    first_offset: int
    end_offset: int
    exact: bool
    records: int
    segments: int
    bytes: int
    raw_bytes: int
    min_timestamp: int | None
    max_timestamp: int | None
    first_leader_epoch: int | None
    last_leader_epoch: int | None
    spans: tuple[Span, ...]
    aborted: tuple[AbortedTransaction, ...]
    log_start: int | None = None
    """Where the log began at the run whose snapshot was read; None if the snapshot does not have it."""


def measure_partitions(
    partitions: Mapping[PartitionId, Sequence[Segment | Gap]], ends: Mapping[PartitionId, int]
) -> tuple[PartitionExtent, ...]:
    """Measure each partition, whose rows are in order of offsets, up to its end in `ends`, if it has one."""
    return tuple(_measure(each.partition, rows, ends.get(each)) for each, rows in partitions.items())


def _measure(partition: int, rows: Sequence[Segment | Gap], end: int | None) -> PartitionExtent:
    data = [row for row in rows if isinstance(row, Segment)]
    last = max((row.end_offset for row in rows), default=end or 0)
    reached = last if end is None else min(last, end)
    return PartitionExtent(
        partition=partition,
        first_offset=rows[0].base_offset if rows else reached,
        end_offset=reached,
        exact=not any(row.end_offset > reached for row in data),
        records=sum(row.records for row in data),
        segments=len(data),
        bytes=sum(row.bytes for row in data),
        raw_bytes=sum(row.raw_bytes for row in data),
        min_timestamp=min((row.min_timestamp for row in data if row.min_timestamp is not None), default=None),
        max_timestamp=max((row.max_timestamp for row in data if row.max_timestamp is not None), default=None),
        first_leader_epoch=data[0].first_leader_epoch if data else None,
        last_leader_epoch=data[-1].last_leader_epoch if data else None,
        spans=_spans(rows, reached),
        aborted=_aborted(data),
    )


def _spans(rows: Iterable[Segment | Gap], end: int) -> tuple[Span, ...]:
    """Neighbours with the same cover become one span; offsets without a row become a hole."""
    spans: list[Span] = []

    def add(first: int, last: int, cover: str) -> None:
        if spans and spans[-1].cover == cover:
            first = spans.pop().first_offset
        spans.append(Span(first_offset=first, end_offset=last, cover=cover))

    for row in rows:
        reached = spans[-1].end_offset if spans else row.base_offset
        first, last = max(row.base_offset, reached), min(row.end_offset, end)
        if first > reached:
            add(reached, first, HOLE)
        if last > first:
            add(first, last, DATA if isinstance(row, Segment) else str(row.reason))
    return tuple(spans)


def _aborted(data: Iterable[Segment]) -> tuple[AbortedTransaction, ...]:
    """Each transaction once: every slice that it touches names it, and it ends in the last of them."""
    found: dict[tuple[int, int], AbortedTransaction] = {}
    for row in data:
        for each in row.aborted:
            known = found.get((each.producer_id, each.first_offset))
            if known is None or known.last_offset < each.last_offset:
                found[each.producer_id, each.first_offset] = each
    return tuple(sorted(found.values(), key=lambda each: (each.first_offset, each.producer_id)))


def _mark_of(reason: GapReason) -> tuple[str, str]:
    match reason:
        case GapReason.COMPACTED:
            return "c", "cyan"
        case GapReason.RETENTION:
            return "r", "yellow"
        case GapReason.TRUNCATED:
            return "t", "magenta"
        case GapReason.PRUNED:
            return "p", "blue"
        case GapReason.DELETED:
            return "d", "bright_black"
        case GapReason.UNRECORDED:
            return "u", "bright_black"
        case GapReason.CORRUPT:
            return "X", "bold red"
        case GapReason.UNEXPLAINED:
            return "?", "bold red"
        case _:
            assert_never(reason)


MARKS: Final[dict[str, tuple[str, str]]] = {
    DATA: ("=", "green"),
    **{reason: _mark_of(reason) for reason in GapReason},
    HOLE: ("!", "bold white on red"),
}
"""The letter and the style of each cover. Letters differ without colour; neighbours never hide the last three."""
_ALARMING: Final = (GapReason.CORRUPT, GapReason.UNEXPLAINED, HOLE)
_UNKNOWN: Final = ("~", "red")


def coverage_bar(spans: Sequence[Span], width: int) -> Text:
    """Each cell shows what most of its offsets are; but a problem shows even if it is a single offset."""
    bar = Text(no_wrap=True)
    for cover in _cells(spans, width):
        letter, style = MARKS.get(cover, _UNKNOWN)
        bar.append(letter, style)
    return bar


def legend(spans: Iterable[Span]) -> Text:
    """The meaning of the letters that occur."""
    covers = {span.cover for span in spans}
    line = Text()
    for cover, (letter, style) in MARKS.items():
        if cover in covers:
            line.append("  " if line else "").append(letter, style).append(f" {cover}")
    return line


def _cells(spans: Sequence[Span], width: int) -> list[str]:
    if not spans:
        return []
    first, end = spans[0].first_offset, spans[-1].end_offset
    width = min(width, end - first)
    # Integers throughout: offsets have 63 bits, more than a float can hold.
    edges = [first + (end - first) * cell // width for cell in range(width + 1)]
    cells, place = [], 0
    for low, high in pairwise(edges):
        while spans[place].end_offset <= low:
            place += 1
        cells.append(_cover(spans, place, low, high))
    return cells


def _cover(spans: Sequence[Span], place: int, low: int, high: int) -> str:
    counts: dict[str, int] = {}
    while place < len(spans) and spans[place].first_offset < high:
        span = spans[place]
        offsets = min(span.end_offset, high) - max(span.first_offset, low)
        counts[span.cover] = counts.get(span.cover, 0) + offsets
        place += 1
    alarming = [cover for cover in _ALARMING if cover in counts]
    return str(alarming[-1]) if alarming else max(counts, key=lambda cover: counts[cover])
