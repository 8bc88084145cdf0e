"""From the outcomes of tasks to rows that may be committed: assembled, and proved to cover every offset once. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

from maxbrod.backup.plan.assembly import Assembly, assemble, check_tiling
from maxbrod.backup.plan.ranges import (
    FailureKind,
    Held,
    Outcome,
    PartitionBackup,
    Plans,
    RangeItem,
    Task,
    Wave,
    outcomes_by_partition,
)
from maxbrod.backup.report import storage_failed
from maxbrod.catalog.rows import Gap, Segment
from maxbrod.model import MENDABLE, PartitionId, now_ms
from maxbrod.notices import Notice

if TYPE_CHECKING:
    from maxbrod.catalog.queries import ArchivedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """Rows that the next commit may contain, and what follows from them."""

    rows: tuple[Segment | Gap, ...] = ()
    replaced: tuple[Gap, ...] = ()
    """Gaps that the rows replace."""
    held: Held = field(default_factory=dict)
    """The ranges that the archive holds of these partitions, once the rows are committed."""
    notices: tuple[Notice, ...] = ()
    stopped: frozenset[PartitionId] = frozenset()
    """Partitions that could not be read to the end; later waves leave them out."""
    halted: bool = False
    """A stop ended tasks before their end."""
    again: frozenset[str] = frozenset()
    """Topics to plan again in the same run, because they were deleted or truncated while they were read."""


def still_to_read(wave: Wave, held: Held, stopped: Collection[PartitionId]) -> list[Task]:
    """The tasks of a wave without stopped partitions.

    A batch of the previous wave may reach into this one: its partition is then read from the end of that batch.
    """

    def moved(item: RangeItem) -> RangeItem:
        return replace(item, start=max(item.start, min(held[item.id].end_offset, item.end)))

    kept = [[moved(item) for item in task.items if item.id not in stopped] for task in wave]
    tasks = [Task(items=tuple(item for item in items if item.start < item.end)) for items in kept]
    return [task for task in tasks if task.items]


def prove(outcomes: Iterable[Outcome], plans: Plans, held: Held, *, run_id: str) -> Proved:
    """Return the rows of every partition of a wave. CorruptDataError if they do not cover every offset exactly once."""
    by_partition = outcomes_by_partition(outcomes)
    assemblies = [
        _assemble(plans[partition], held[partition], found, run_id) for partition, found in by_partition.items()
    ]
    rows = tuple(row for assembly in assemblies for row in assembly.rows)
    check_tiling(rows, {assembly.partition: (assembly.first, assembly.reached) for assembly in assemblies})
    failures = [
        (plans[outcome.item.id].state, outcome.failure)
        for outcome in chain.from_iterable(by_partition.values())
        if outcome.failure is not None
    ]
    storage = [
        storage_failed(state.topic, failure) for state, failure in failures if failure.kind is FailureKind.STORAGE
    ]
    return Proved(
        rows=rows,
        held={assembly.partition: _advanced(held[assembly.partition], assembly) for assembly in assemblies},
        # One notice, however many partitions of a topic met the same error of the store.
        notices=(*(notice for assembly in assemblies for notice in assembly.notices), *dict.fromkeys(storage)),
        stopped=frozenset(state.id for state, _ in failures),
        halted=any(failure.kind is FailureKind.STOPPED for _, failure in failures),
        again=frozenset(
            state.topic for state, failure in failures if failure.kind in {FailureKind.DELETED, FailureKind.TRUNCATED}
        ),
    )


def prove_unread(plans: Iterable[PartitionBackup], held: Held, *, run_id: str) -> Proved:
    """Gaps of the partitions with nothing to read, because retention deleted everything that the archive lacks."""
    unread = [plan for plan in plans if plan.gap is not None and plan.start >= plan.end]
    assemblies = [_assemble(plan, held[plan.state.id], (), run_id) for plan in unread]
    return Proved(
        rows=tuple(row for assembly in assemblies for row in assembly.rows),
        held={assembly.partition: _advanced(held[assembly.partition], assembly) for assembly in assemblies},
        notices=tuple(notice for assembly in assemblies for notice in assembly.notices),
    )


def prove_mended(outcomes: Iterable[Outcome], retries: Sequence[Retry], plans: Plans, *, run_id: str) -> Proved:
    """Rows that replace gaps, for those that could be read this time. The others are reported again."""
    rows: list[Segment | Gap] = []
    replaced: list[Gap] = []
    notices: list[Notice] = []
    for retry, found in outcomes_by_retry(outcomes, retries):
        state = plans[retry.partition].state
        assembly = assemble(
            retry.partition,
            retry.planned,
            found,
            topic=state.topic,
            compacted=state.compacted,
            run_id=run_id,
            written_at=now_ms(),
        )
        better = settle(retry, assembly)
        if better is not None:
            replaced.append(retry.row)
            rows += better
        notices += assembly.notices
    return Proved(rows=tuple(rows), replaced=tuple(replaced), notices=tuple(notices))


def _assemble(plan: PartitionBackup, held: ArchivedRange, outcomes: Sequence[Outcome], run_id: str) -> Assembly:
    state, first = plan.state, held.end_offset
    return assemble(
        state.id,
        (first, max((outcome.item.end for outcome in outcomes), default=plan.end)),
        outcomes,
        topic=state.topic,
        compacted=state.compacted,
        run_id=run_id,
        written_at=now_ms(),
        log_start=state.log_start,
        first_time=plan.first_time and first == plan.first,
    )


def _advanced(held: ArchivedRange, assembly: Assembly) -> ArchivedRange:
    epochs = [row.last_leader_epoch for row in assembly.rows if isinstance(row, Segment)]
    known = [epoch for epoch in (held.last_leader_epoch, *epochs) if epoch is not None]
    return replace(
        held,
        first_offset=min(held.first_offset, assembly.first),
        end_offset=assembly.reached,
        last_leader_epoch=max(known, default=None),
    )


# Gaps that a later run may still read: a damaged batch may be intact on the replica that leads today


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Read `range` again: the part of the row's offsets that the log still has."""

    row: Gap
    range: RangeItem

    @property
    def partition(self) -> PartitionId:
        return self.range.id

    @property
    def planned(self) -> tuple[int, int]:
        """The offsets to assemble."""
        return self.range.start, self.range.end


def plan_mending(rows: Iterable[Gap], plans: Mapping[PartitionId, PartitionBackup]) -> tuple[Retry, ...]:
    """Gaps of other reasons are ignored, as are gaps that the log no longer has.

    A partition without a plan is deleted, or not among this run's topics. Gaps that the run replaces anyway because the
    log was truncated, and gaps that the last stable offset has not reached again, are left to a later run.
    """
    retries = []
    for row in rows:
        plan = plans.get(row.id)
        if row.reason not in MENDABLE or plan is None:
            continue
        start = max(row.base_offset, plan.state.log_start)
        if start < row.end_offset <= min(plan.first, plan.state.end):
            item = RangeItem(
                topic=row.topic,
                topic_id=row.topic_id,
                partition=row.partition,
                start=start,
                end=row.end_offset,
                bytes_per_offset=plan.state.bytes_per_offset,
            )
            retries.append(Retry(row=row, range=item))
    return tuple(retries)


def outcomes_by_retry(outcomes: Iterable[Outcome], retries: Sequence[Retry]) -> list[tuple[Retry, list[Outcome]]]:
    """Each retry with its outcomes. Retries of one partition do not overlap."""
    matched: list[tuple[Retry, list[Outcome]]] = [(retry, []) for retry in retries]
    places: dict[PartitionId, list[tuple[Retry, list[Outcome]]]] = {}
    for entry in matched:
        places.setdefault(entry[0].partition, []).append(entry)
    for outcome in outcomes:
        for retry, found in places.get(outcome.item.id, ()):
            if retry.range.start <= outcome.item.start < retry.range.end:
                found.append(outcome)
    return matched


def settle(retry: Retry, assembly: Assembly) -> list[Segment | Gap] | None:
    """The rows that replace the retry's row; None if the second reading found nothing new, or did not end."""
    if (assembly.first, assembly.reached) != retry.planned:
        return None
    if all(isinstance(row, Gap) and row.reason is retry.row.reason for row in assembly.rows):
        return None
    # Offsets that have left the log meanwhile keep their reason.
    head = [replace(retry.row, end_offset=retry.range.start)] if retry.row.base_offset < retry.range.start else []
    return [*head, *assembly.rows]
