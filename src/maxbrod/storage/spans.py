"""Joins ranges of bytes that lie close together, so that one request fetches them all, and cuts the answers up again.

obstore can do this itself, but panics where an object is shorter than it should be: the very case to be reported.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from maxbrod.storage.interface import ByteRange

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP_BYTES_MAX: Final = 1024 * 1024
"""Reading this much for nothing takes about as long as asking once more."""


def join(ranges: Sequence[ByteRange]) -> list[ByteRange]:
    """Spans that cover every range that is not empty, in ascending order, further apart than the gap."""
    spans: list[ByteRange] = []
    for each in sorted((each for each in ranges if each.size), key=lambda each: each.start):
        end = each.start + each.size
        if spans and each.start - (spans[-1].start + spans[-1].size) <= GAP_BYTES_MAX:
            last = spans.pop()
            each = ByteRange(start=last.start, size=max(end, last.start + last.size) - last.start)  # noqa: PLW2901
        spans.append(each)
    return spans


def cut(ranges: Sequence[ByteRange], spans: Sequence[ByteRange], answers: Sequence[memoryview]) -> list[memoryview]:
    """The bytes of each range, out of the answers for the spans that `join` made of them."""
    starts = [span.start for span in spans]
    pieces: list[memoryview] = []
    for each in ranges:
        if not each.size:
            pieces.append(memoryview(b""))
            continue
        span = bisect_right(starts, each.start) - 1
        position = each.start - starts[span]
        pieces.append(answers[span][position : position + each.size])
    return pieces
