"""From what tasks tell to the rows of a run: assembled, proved to tile, and what there is to say about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.backup.notices import storage_failed
from maxbrod.backup.plan.assembly import assemble, check_tiling
from maxbrod.backup.plan.items import FailureKind, RangeItem, Task
from maxbrod.backup.plan.mending import settle, sort_out
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maxbrod.backup.plan.assembly import Assembly
    from maxbrod.backup.plan.items import Outcome
    from maxbrod.backup.plan.mending import Mending
    from maxbrod.backup.plan.states import PartitionBackup
    from maxbrod.backup.plan.tasks import Wave
    from maxbrod.backup.positions import Positions
    from maxbrod.backup.run_state import BackupRun
    from maxbrod.model import PartitionId


def still_to_read(run: BackupRun, positions: Positions, wave: Wave) -> list[Task]:
    """Without partitions that could not be read on; after a batch that reached into this wave, from its end on."""
    tasks = []
    for task in wave:
        items = [_moved(item, positions) for item in task.items if item.id not in run.stopped]
        kept = tuple(item for item in items if item.start < item.end)
        if kept:
            tasks.append(Task(items=kept))
    return tasks


def take(run: BackupRun, positions: Positions, outcomes: Iterable[Outcome]) -> None:
    """Rows of every partition of a wave, proved to tile before any of them may be committed."""
    by_partition: dict[PartitionId, list[Outcome]] = {}
    for outcome in outcomes:
        by_partition.setdefault(outcome.item.id, []).append(outcome)
    assemblies = [_assembled(run, positions, partition, each) for partition, each in by_partition.items()]
    check_tiling(
        [row for each in assemblies for row in each.rows],
        {each.partition: (each.first, each.reached) for each in assemblies},
    )
    for assembly in assemblies:
        _accept(run, positions, assembly)
    for partition, found in by_partition.items():
        _tell_failures(run, partition, found)


def explain_unread(run: BackupRun, positions: Positions, plans: Iterable[PartitionBackup]) -> None:
    """Partitions of which nothing can be read, because retention took all that the archive lacks."""
    for plan in plans:
        if plan.gap is not None and plan.start >= plan.end:
            partition = plan.state.id
            _accept(run, positions, _assembled(run, positions, partition, ()))


def take_mended(run: BackupRun, mending: Mending, outcomes: Iterable[Outcome]) -> None:
    """What a second look has found takes the place of the gap; what it has not found is told again."""
    for retry, found in sort_out(outcomes, mending.retries)[1]:
        state = run.plans[retry.partition].state
        assembly = assemble(
            retry.partition,
            retry.planned,
            found,
            topic=state.topic,
            compacted=state.compacted,
            run_id=run.run_id,
            written_at=now_ms(),
        )
        rows = settle(retry, assembly)
        if rows is not None:
            run.replaced.append(retry.row)
            run.add(rows)
        for finding in assembly.findings:
            run.note(finding)


def _assembled(run: BackupRun, positions: Positions, partition: PartitionId, outcomes: Sequence[Outcome]) -> Assembly:
    plan = run.plans[partition]
    first = positions.end_of(partition)
    end = max((outcome.item.end for outcome in outcomes), default=plan.end)
    return assemble(
        partition,
        (first, end),
        outcomes,
        topic=plan.state.topic,
        compacted=plan.state.compacted,
        run_id=run.run_id,
        written_at=now_ms(),
        log_start=plan.state.log_start,
        first_time=plan.first_time and first == plan.first,
    )


def _accept(run: BackupRun, positions: Positions, assembly: Assembly) -> None:
    run.add(assembly.rows)
    for finding in assembly.findings:
        run.note(finding)
    positions.advance(assembly)


def _tell_failures(run: BackupRun, partition: PartitionId, outcomes: Iterable[Outcome]) -> None:
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if not failures:
        return
    run.stopped.add(partition)
    topic = run.plans[partition].state.topic
    if any(failure.trouble in {FailureKind.DELETED, FailureKind.TRUNCATED} for failure in failures):
        run.again.add(topic)
    for failure in failures:
        if failure.trouble is FailureKind.STORAGE:
            notice = storage_failed(topic, failure)
            if notice not in run.notices:
                run.notices.append(notice)


def _moved(item: RangeItem, positions: Positions) -> RangeItem:
    return replace(item, start=max(item.start, min(positions.end_of(item.id), item.end)))
