"""Why offsets hold nothing: what was heard of the log's start and of damage, applied to one hole at a time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Account:
    """Offsets [first, end) were asked for, and the log began at `log_start` when the last of them were answered.

    Each range has its own: that the log's start moved later does not explain what an earlier reader missed.
    """

    first: int
    end: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Mark:
    """From this offset to the next batch, nothing can be had, and this is why."""

    offset: int
    reason: GapReason
    message: str


@dataclass(frozen=True, slots=True)
class Explained:
    first: int
    end: int
    reason: GapReason
    message: str


_MESSAGES: Final = {
    GapReason.RETENTION: "retention deleted these offsets before they were read",
    GapReason.COMPACTED: "compaction left nothing of these offsets",
    GapReason.UNEXPLAINED: "the log has no batch for these offsets, and nothing says why",
}


def explain(
    first: int, end: int, accounts: Sequence[Account], marks: Sequence[Mark], *, otherwise: GapReason
) -> list[Explained]:
    """The hole [first, end) in parts, each with one reason. Accounts and marks are in order of offset.

    Below the start of the log it is retention, from a mark on what the mark says, and `otherwise` in between.
    """
    parts: list[Explained] = []
    for part in _marked(first, end, marks, otherwise):
        for piece in _retained(part, accounts):
            if parts and parts[-1].end == piece.first and parts[-1].reason is piece.reason:
                parts[-1] = Explained(parts[-1].first, piece.end, piece.reason, parts[-1].message)
            else:
                parts.append(piece)
    return parts


def _marked(first: int, end: int, marks: Sequence[Mark], otherwise: GapReason) -> Iterator[Explained]:
    reason, message = otherwise, _MESSAGES[otherwise]
    for mark in marks_within(first, end, marks):
        if first < mark.offset:
            yield Explained(first, mark.offset, reason, message)
        first, reason, message = mark.offset, mark.reason, mark.message
    yield Explained(first, end, reason, message)


def _retained(part: Explained, accounts: Sequence[Account]) -> Iterator[Explained]:
    """Cut at the borders of accounts, and at the start of the log within each."""
    first = part.first
    place = max(0, bisect_right(accounts, first, key=lambda each: each.first) - 1)
    for account in accounts[place:]:
        if account.first >= part.end:
            break
        until = min(account.end, part.end)
        gone = min(account.log_start, until)
        if first < gone:
            yield Explained(first, gone, GapReason.RETENTION, _MESSAGES[GapReason.RETENTION])
            first = gone
        if first < until:
            yield Explained(first, until, part.reason, part.message)
            first = until
    if first < part.end:
        yield Explained(first, part.end, part.reason, part.message)


def marks_within(first: int, end: int, marks: Sequence[Mark]) -> Sequence[Mark]:
    place = bisect_right(marks, first - 1, key=lambda each: each.offset)
    return marks[place : bisect_right(marks, end - 1, key=lambda each: each.offset)]
