"""The tasks' reports about one partition, ordered and checked: how far they count, and why offsets hold no data."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from maxbrod.backup.plan.items import Failure, FailureKind, Outcome
from maxbrod.errors import CorruptDataError
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.layouts.kafka.format import Slice

DefaultReason: TypeAlias = Literal[GapReason.COMPACTED, GapReason.UNEXPLAINED]
"""The reason for offsets that neither retention nor a mark explains."""

_RETENTION: Final = "retention deleted these offsets before they were read"
_DEFAULTS: Final[dict[DefaultReason, str]] = {
    GapReason.COMPACTED: "compaction removed these offsets",
    GapReason.UNEXPLAINED: "the log has no batch for these offsets, and nothing says why",
}


@dataclass(frozen=True, slots=True)
class Account:
    """A task read offsets [first, end); the log began at `log_start` when it read the last of them.

    Each range keeps its own log start: retention that moved the start later does not explain what an earlier reader
    missed.
    """

    first: int
    end: int
    log_start: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Nothing can be read from this offset up to the next batch, for this reason."""

    offset: int
    reason: GapReason
    message: str


@dataclass(frozen=True, slots=True)
class Explained:
    """Offsets [first, end) without data, and the reason."""

    first: int
    end: int
    reason: GapReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Offsets [first, reached) are accounted for: by slices, which ascend without overlap, and by reasons."""

    first: int
    reached: int
    slices: tuple[Slice, ...]
    accounts: tuple[Account, ...]
    marks: tuple[Mark, ...]
    failure: Failure | None
    """Why `reached` is less than was planned."""

    def marks_within(self, first: int, end: int) -> Sequence[Mark]:
        place = bisect_right(self.marks, first - 1, key=lambda each: each.offset)
        return self.marks[place : bisect_right(self.marks, end - 1, key=lambda each: each.offset)]

    def explain(self, first: int, end: int, *, default: DefaultReason) -> list[Explained]:
        """The hole [first, end) in parts with one reason each.

        Below the start of the log the reason is retention, from a mark on it is the mark's, and elsewhere `default`.
        """
        parts: list[Explained] = []
        for marked in self._split_at_marks(first, end, default):
            for part in self._split_at_log_starts(marked):
                if parts and parts[-1].end == part.first and parts[-1].reason is part.reason:
                    parts[-1] = replace(parts[-1], end=part.end)
                else:
                    parts.append(part)
        return parts

    def _split_at_marks(self, first: int, end: int, default: DefaultReason) -> Iterator[Explained]:
        reason: GapReason = default
        message = _DEFAULTS[default]
        for mark in self.marks_within(first, end):
            if first < mark.offset:
                yield Explained(first, mark.offset, reason, message)
            first, reason, message = mark.offset, mark.reason, mark.message
        yield Explained(first, end, reason, message)

    def _split_at_log_starts(self, part: Explained) -> Iterator[Explained]:
        """Cut at the borders of accounts, and at the start of the log within each."""
        first = part.first
        place = max(0, bisect_right(self.accounts, first, key=lambda each: each.first) - 1)
        for account in self.accounts[place:]:
            if account.first >= part.end:
                break
            until = min(account.end, part.end)
            deleted_to = min(account.log_start, until)
            if first < deleted_to:
                yield Explained(first, deleted_to, GapReason.RETENTION, _RETENTION)
                first = deleted_to
            if first < until:
                yield replace(part, first=first, end=until)
                first = until
        if first < part.end:
            yield replace(part, first=first)


def collect(
    partition: PartitionId, planned: tuple[int, int], outcomes: Sequence[Outcome], *, log_start: int, first_time: bool
) -> Evidence:
    """See `assembly.assemble`."""
    first, end = planned
    read_from = min(max(first, log_start), end)
    ordered = sorted(outcomes, key=lambda each: (each.item.start, each.item.end))
    _check_items(partition, ordered)
    deletion = _find_deletion(ordered)
    progress = _follow(ordered, read_from, deletion)
    slices = _checked_slices(partition, progress.used, 0 if first_time else first)
    marks, reached, failure = list(progress.marks), progress.answered, None
    if reached < end and deletion is not None:
        # The topic no longer exists, so no later run can read the rest.
        marks.append(Mark(reached, GapReason.DELETED, deletion.message))
        reached = end
    elif reached < end:
        failure = progress.why_short()
    return Evidence(
        first=min(first, slices[0].base_offset) if slices else first,
        reached=reached,
        slices=slices,
        accounts=(
            Account(first, read_from, log_start),
            *(
                Account(max(each.item.start, read_from), max(each.item.end, read_from), each.log_start_offset)
                for each in progress.used
            ),
        ),
        marks=tuple(sorted(marks, key=lambda mark: mark.offset)),
        failure=failure,
    )


@dataclass(frozen=True, slots=True)
class _Progress:
    """The outcomes that count, and the offset up to which everything is accounted for."""

    used: tuple[Outcome, ...]
    answered: int
    marks: tuple[Mark, ...]

    def why_short(self) -> Failure:
        last = self.used[-1] if self.used else None
        if last is None or self.answered >= last.item.end:
            return Failure(kind=FailureKind.UNAVAILABLE, message="no task has read these offsets")
        return last.failure or Failure(
            kind=FailureKind.UNAVAILABLE, message="a task ended before the end of its range and gave no reason"
        )


def _follow(ordered: Sequence[Outcome], answered: int, deletion: Failure | None) -> _Progress:
    """Use outcomes while each begins where everything before it is accounted for; after a deletion, use all."""
    used, marks = [], []
    for outcome in ordered:
        if answered < outcome.item.start:
            if deletion is None:
                break
            marks.append(Mark(answered, GapReason.DELETED, deletion.message))
        used.append(outcome)
        marks += [Mark(damage.offset, GapReason.CORRUPT, damage.message) for damage in outcome.damages]
        read_to = outcome.slices[-1].end_offset if outcome.slices else 0
        answered = max(answered, min(outcome.reached, outcome.item.end), read_to)
    return _Progress(tuple(used), answered, tuple(marks))


def _find_deletion(outcomes: Sequence[Outcome]) -> Failure | None:
    """If one task found the topic deleted, no other range of it can be read later either."""
    failures = (outcome.failure for outcome in outcomes)
    return next((failure for failure in failures if failure is not None and failure.kind is FailureKind.DELETED), None)


def _check_items(partition: PartitionId, ordered: Sequence[Outcome]) -> None:
    """The first item may begin before the planned range if a batch of the previous wave reached into it."""
    position = 0
    for outcome in ordered:
        item = outcome.item
        if item.id != partition:
            raise impossible(f"a range of {item.topic}-{item.partition} is among them", partition, item.start)
        if item.start < position or item.end <= item.start:
            raise impossible("two ranges cover the same offsets", partition, item.start)
        position = item.end


def _checked_slices(partition: PartitionId, used: Sequence[Outcome], floor: int) -> tuple[Slice, ...]:
    """Only the first slice of the first range may begin before its range: with the batch that contains its start."""
    slices: list[Slice] = []
    for outcome in used:
        for found in outcome.slices:
            lowest = slices[-1].end_offset if slices else floor
            if slices or outcome is not used[0]:
                lowest = max(lowest, outcome.item.start)
            _check_slice(partition, found, lowest, outcome.item.end)
            slices.append(found)
    return tuple(slices)


def _check_slice(partition: PartitionId, found: Slice, lowest: int, end: int) -> None:
    base = found.base_offset
    if base < lowest:
        raise impossible("slices overlap or go backwards", partition, base)
    if base >= end:
        raise impossible("a slice begins after the range that it belongs to", partition, base)
    if not 0 <= found.records <= found.end_offset - base or found.end_offset <= base:
        raise impossible(f"a slice up to offset {found.end_offset} has {found.records} records", partition, base)


def impossible(what: str, partition: PartitionId, offset: int) -> CorruptDataError:
    """The tasks contradict each other or themselves: a bug of ours that must not reach the catalog."""
    return CorruptDataError(
        f"the reports of the tasks are inconsistent: {what}",
        operation="assemble a backup",
        object_name=str(partition),
        offset=offset,
        hint="nothing of this partition was committed; please report this as a bug",
    )
