"""The offsets of a partition as one line: a cell for each range, with a letter and a colour for what it holds. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, assert_never

from rich.text import Text

from maxbrod.inspect.extents import DATA, HOLE, Span
from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
