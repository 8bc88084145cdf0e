"""A partition's offsets as one line: a cell for each stretch of them, a letter and a colour for what it holds. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rich.text import Text

from maxbrod.inspect.extents import DATA, HOLE
from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.inspect.extents import Span

MARKS: Final = {
    DATA: ("=", "green"),
    GapReason.COMPACTED: ("c", "cyan"),
    GapReason.RETENTION: ("r", "yellow"),
    GapReason.TRUNCATED: ("t", "magenta"),
    GapReason.PRUNED: ("p", "blue"),
    GapReason.DELETED: ("d", "bright_black"),
    GapReason.UNRECORDED: ("u", "bright_black"),
    GapReason.CORRUPT: ("X", "bold red"),
    GapReason.UNEXPLAINED: ("?", "bold red"),
    HOLE: ("!", "bold white on red"),
}
"""Letters that can be told apart without colour; the last three are never hidden by what is around them."""
_ALARMING: Final = (GapReason.CORRUPT, GapReason.UNEXPLAINED, HOLE)
_UNKNOWN: Final = ("~", "red")


def coverage_bar(spans: Sequence[Span], width: int) -> Text:
    """Each cell shows what most of its offsets are; but whatever is wrong shows wherever there is one offset of it."""
    bar = Text(no_wrap=True)
    for cover in _cells(spans, width):
        letter, style = MARKS.get(cover, _UNKNOWN)
        bar.append(letter, style)
    return bar


def legend(spans: Iterable[Span]) -> Text:
    """What the letters mean, as far as they occur."""
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
    # Whole numbers throughout: offsets use 63 bits, which no float has.
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
