"""From the tasks' reports about one partition to rows that tile its offsets: each row is data, or a gap with a reason.

`Evidence` is the reports, ordered and checked: how far they count, and why offsets hold no data.

Rows follow the slices, not the borders of the ranges: a batch belongs to the range that contains its base offset, so
the last batch of a range may reach into the next one. The rows of a partition end with the first range that was not
read to its end. The next run reads what later ranges hold, and their objects become garbage. A deleted topic cannot be
read again: everything that was read of it is kept, and the rest becomes a gap `deleted`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

from maxbrod.backup.plan.ranges import Failure, FailureKind, Outcome
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment
from maxbrod.catalog.schema import Kind
from maxbrod.catalog.tiling import Overlap, UncoveredRange, find_tiling_faults
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, CorruptDataError
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import GapReason, PartitionId, TopicPartition
from maxbrod.notices import Notice
from maxbrod.work.report import about

_HINTS: Final = {
    GapReason.CORRUPT: "a later run reads these offsets again, from an intact replica if one leads by then",
    GapReason.UNEXPLAINED: "a later run reads these offsets again; compare with kafka-dump-log on the leader",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """Rows that tile [first, reached), in order, and the notices about them."""

    partition: PartitionId
    first: int
    reached: int
    rows: tuple[Segment | Gap, ...]
    notices: tuple[Notice, ...]


def assemble(
    partition: PartitionId,
    planned: tuple[int, int],
    outcomes: Sequence[Outcome],
    *,
    topic: str,
    compacted: bool,
    run_id: str,
    written_at: int,
    log_start: int = 0,
    first_time: bool = False,
) -> Assembly:
    """The rows of one partition for the planned offsets [first, end).

    No task was given offsets below `log_start`, the start of the log at planning. On the first run of a partition its
    first batch may begin before the first requested offset: the rows then begin with that batch.
    CorruptDataError: the tasks' reports are inconsistent, and nothing of them may be committed.
    """
    evidence = collect(partition, planned, outcomes, log_start=log_start, first_time=first_time)
    default: DefaultReason = GapReason.COMPACTED if compacted else GapReason.UNEXPLAINED
    missing = sum(found.end_offset - found.base_offset - found.records for found in evidence.slices)
    erased = 0 < missing <= sum(outcome.erased for outcome in outcomes)
    author = _Author(topic, partition, run_id, written_at, evidence, default, erased)
    cursor = evidence.first
    for found in evidence.slices:
        author.add_gaps(cursor, found.base_offset)
        author.add_segment(found)
        cursor = found.end_offset
    author.add_gaps(cursor, evidence.reached)
    failure = evidence.failure
    # What a stop has left is said once, of the whole run.
    if failure is not None and failure.kind is not FailureKind.STOPPED:
        author.notify("failed", evidence.reached, planned[1], failure.message, failure.hint, EXIT_INCOMPLETE)
    return Assembly(
        partition=partition,
        first=evidence.first,
        reached=evidence.reached,
        rows=tuple(author.rows),
        notices=tuple(author.notices),
    )


def check_tiling(rows: Sequence[Segment | Gap], expected: Mapping[PartitionId, tuple[int, int]]) -> None:
    """Prove that the rows of any number of partitions cover exactly the expected offsets [first, end), each once.

    This is the last check before a commit. CorruptDataError names the first offset where it fails.
    """
    tiling = find_tiling_faults(_tiling_table(rows), expected)
    faults: tuple[UncoveredRange | Overlap, ...] = (*tiling.holes, *tiling.overlaps)
    for fault in faults:
        what = f"offsets {fault.first_offset} to {fault.end_offset} are not covered exactly once"
        raise impossible(what, fault.partition, fault.first_offset)
    for row in rows:
        partition = PartitionId(topic_id=row.topic_id, partition=row.partition)
        first, end = expected.get(partition, (0, 0))
        if row.base_offset < first or row.end_offset > end:
            what = f"a row from {row.base_offset} to {row.end_offset} is outside of {first} to {end}"
            raise impossible(what, partition, row.base_offset)


def _tiling_table(rows: Sequence[Segment | Gap]) -> pa.Table:
    return pa.table(
        {
            "topic_id": pa.array([row.topic_id for row in rows], pa.string()),
            "partition": pa.array([row.partition for row in rows], pa.int32()),
            "base_offset": pa.array([row.base_offset for row in rows], pa.int64()),
            "end_offset": pa.array([row.end_offset for row in rows], pa.int64()),
            "kind": pa.array([str(Kind.DATA if isinstance(row, Segment) else Kind.GAP) for row in rows], pa.string()),
        }
    )


def _exit_code(reason: GapReason) -> int:
    """The exit code of a run that reports such offsets. A new reason fails at type checking: it must be put here."""
    match reason:
        case GapReason.CORRUPT:
            return EXIT_CORRUPT
        case GapReason.UNEXPLAINED:
            return EXIT_INCOMPLETE
        case (
            GapReason.COMPACTED
            | GapReason.RETENTION
            | GapReason.TRUNCATED
            | GapReason.PRUNED
            | GapReason.DELETED
            | GapReason.ERASED
            | GapReason.UNRECORDED
        ):
            return EXIT_DONE


@dataclass(slots=True)
class _Author:
    """Writes the rows of one partition and the notices about them."""

    topic: str
    partition: PartitionId
    run_id: str
    written_at: int
    evidence: Evidence
    default: DefaultReason
    erased: bool = False
    """True if all records that slices lack were erased from the archive, and so not read into it again."""
    rows: list[Segment | Gap] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)

    def add_gaps(self, first: int, end: int) -> None:
        if first >= end:
            return
        for part in self.evidence.explain(first, end, default=self.default):
            self.rows.append(Gap(**self._shared(), base_offset=part.first, end_offset=part.end, reason=part.reason))
            if part.reason is not GapReason.COMPACTED:
                self._notify_reason(part.reason, part.first, part.end, part.message)

    def add_segment(self, found: Slice) -> None:
        """A slice with fewer records than offsets has a reason, as a gap has."""
        first, end = found.base_offset, found.end_offset
        missing = end - first - found.records
        damages = [mark for mark in self.evidence.marks_within(first, end) if mark.reason is GapReason.CORRUPT]
        lacks: GapReason = GapReason.ERASED if self.erased else self.default
        reason = None if not missing else GapReason.CORRUPT if damages else lacks
        values = {name: getattr(found, name) for name in SLICE_FIELDS}
        self.rows.append(Segment(**self._shared(), **values, reason=reason))
        if reason is GapReason.CORRUPT:
            for damage in damages:
                self._notify_reason(reason, damage.offset, end, damage.message)
        elif reason is GapReason.UNEXPLAINED:
            self._notify_reason(reason, first, end, f"{missing} of these offsets have no record, and nothing says why")

    def notify(self, kind: str, first: int, end: int, message: str, hint: str | None, exit_code: int) -> None:
        where = TopicPartition(topic=self.topic, partition=self.partition.partition)
        self.notices.append(about(where, kind, message, (first, end), hint=hint, exit_code=exit_code))

    def _notify_reason(self, reason: GapReason, first: int, end: int, message: str) -> None:
        self.notify(str(reason), first, end, message, _HINTS.get(reason), _exit_code(reason))

    def _shared(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.partition.topic_id,
            "partition": self.partition.partition,
            "run_id": self.run_id,
            "written_at": self.written_at,
        }


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
    """The reason why `reached` is less than was planned."""

    def marks_within(self, first: int, end: int) -> Sequence[Mark]:
        place = bisect_right(self.marks, first - 1, key=lambda mark: mark.offset)
        return self.marks[place : bisect_right(self.marks, end - 1, key=lambda mark: mark.offset)]

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
        place = max(0, bisect_right(self.accounts, first, key=lambda account: account.first) - 1)
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
    ordered = sorted(outcomes, key=lambda outcome: (outcome.item.start, outcome.item.end))
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
                Account(max(outcome.item.start, read_from), max(outcome.item.end, read_from), outcome.log_start_offset)
                for outcome in progress.used
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
