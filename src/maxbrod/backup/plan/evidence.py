"""What the tasks found of one partition, put in order and weighed: how far it counts, and whether it can be true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.backup.plan.holes import Account, Mark
from maxbrod.backup.plan.items import Failure, FailureKind
from maxbrod.errors import CorruptDataError
from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.backup.plan.items import Outcome
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Offsets [first, reached) are answered for: by slices, which rise and do not overlap, and by the rest."""

    first: int
    reached: int
    slices: tuple[Slice, ...]
    accounts: tuple[Account, ...]
    marks: tuple[Mark, ...]
    failure: Failure | None
    """Why `reached` is less than was planned."""


def collect(
    partition: PartitionId, planned: tuple[int, int], outcomes: Sequence[Outcome], *, log_start: int, first_time: bool
) -> Evidence:
    """See `assembly.assemble`."""
    first, end = planned
    asked_from = min(max(first, log_start), end)
    ordered = sorted(outcomes, key=lambda each: (each.item.start, each.item.end))
    _check_items(partition, ordered)
    deletion = _find_deletion(ordered)
    progress = _follow(ordered, asked_from, deletion)
    slices = _checked_slices(partition, progress.used, 0 if first_time else first)
    marks, reached, failure = list(progress.marks), progress.answered, None
    if reached < end and deletion is not None:
        marks.append(Mark(reached, GapReason.DELETED, deletion.message))
        reached = end
    elif reached < end:
        failure = progress.why_short()
    return Evidence(
        first=min(first, slices[0].base_offset) if slices else first,
        reached=reached,
        slices=slices,
        accounts=(
            Account(first, asked_from, log_start),
            *(
                Account(max(each.item.start, asked_from), max(each.item.end, asked_from), each.log_start_offset)
                for each in progress.used
            ),
        ),
        marks=tuple(sorted(marks, key=lambda mark: mark.offset)),
        failure=failure,
    )


@dataclass(frozen=True, slots=True)
class _Progress:
    """Outcomes that count, and the offset up to which everything is answered for."""

    used: tuple[Outcome, ...]
    answered: int
    marks: tuple[Mark, ...]

    def why_short(self) -> Failure:
        last = self.used[-1] if self.used else None
        if last is None or self.answered >= last.item.end:
            return Failure(trouble=FailureKind.UNAVAILABLE, message="no task has answered for these offsets")
        return last.failure or Failure(
            trouble=FailureKind.UNAVAILABLE,
            message="a task has ended before the end of its range, and says nothing of why",
        )


def _follow(ordered: Sequence[Outcome], answered: int, deletion: Failure | None) -> _Progress:
    """Go along while each outcome begins where all before it is answered for; behind a deletion, to the end."""
    used, marks = [], []
    for outcome in ordered:
        if answered < outcome.item.start:
            if deletion is None:
                break
            marks.append(Mark(answered, GapReason.DELETED, deletion.message))
        used.append(outcome)
        marks += [Mark(each.offset, GapReason.CORRUPT, each.message) for each in outcome.damages]
        read_to = outcome.slices[-1].end_offset if outcome.slices else 0
        answered = max(answered, min(outcome.reached, outcome.item.end), read_to)
    return _Progress(tuple(used), answered, tuple(marks))


def _find_deletion(outcomes: Sequence[Outcome]) -> Failure | None:
    """Where one task met the end of the topic, none of the others can go on later either."""
    failures = (each.failure for each in outcomes)
    return next((each for each in failures if each is not None and each.trouble is FailureKind.DELETED), None)


def _check_items(partition: PartitionId, ordered: Sequence[Outcome]) -> None:
    """The first may begin before what was planned: where the wave before it ended within a batch that was read."""
    position = 0
    for outcome in ordered:
        item = outcome.item
        if (item.topic_id, item.partition) != (partition.topic_id, partition.partition):
            raise impossible(f"a range of {item.topic}-{item.partition} is among them", partition, item.start)
        if item.start < position or item.end <= item.start:
            raise impossible("two ranges cover the same offsets", partition, item.start)
        position = item.end


def _checked_slices(partition: PartitionId, used: Sequence[Outcome], floor: int) -> tuple[Slice, ...]:
    """Only the first range's first slice may begin before its range: with the batch that the range begins within."""
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
        raise impossible(f"{found.records} records stand at offsets up to {found.end_offset}", partition, base)


def impossible(what: str, partition: PartitionId, offset: int) -> CorruptDataError:
    """The tasks contradict each other, or themselves: a mistake of ours that must not reach the catalog."""
    return CorruptDataError(
        f"what the tasks report cannot be: {what}",
        operation="assemble a backup",
        object_name=str(partition),
        offset=offset,
        hint="nothing of this partition was committed; please report this as a bug",
    )
