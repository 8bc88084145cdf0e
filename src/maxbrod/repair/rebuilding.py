"""Rebuilds the catalog: gathers evidence, reads every object once on Spark, decides, and publishes."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.archive.upkeep import announced
from maxbrod.catalog.generations import decode_generations, encode_generations
from maxbrod.catalog.remains import ASIDE, keep_aside, next_version, readable_table, replace_catalog
from maxbrod.catalog.replaced import as_replaced, revisions_of
from maxbrod.catalog.rows import Gap, Run, Segment, encode_rows
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, CorruptDataError, RefusedError
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.notices import Notice
from maxbrod.repair.gathering import FOLDERS, Gathered, gather
from maxbrod.repair.job import RepairContext, examine_objects, salvage_slices, scan_slices
from maxbrod.repair.plan.found import Examined, FoundSlice, LostRange
from maxbrod.repair.plan.rebuild import Rebuilt, Remains, lost_notices, rebuild
from maxbrod.repair.report import Action, RepairReport
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.storage.interface import Storage
    from maxbrod.work.executor import Executor, Workers

_TASKS_PER_CORE: Final = 4
_OBJECT_COST_BYTES: Final = 256 << 10
"""What opening an object costs beside reading it."""


def rebuild_catalog(
    storage: Storage, workers: Workers, context: RepairContext, *, problem: str, apply: bool, on_progress: OnProgress
) -> RepairReport:
    """Make a new catalog of what the objects say; with `apply`, put it in place.

    RefusedError: another writer committed meanwhile, or objects vanish; nothing is changed but for the copy of the old
    catalog. CorruptDataError: an object vanished while the new catalog was put in place.
    """
    with announced(storage, context.run_id) if apply else nullcontext():
        return _rebuild(storage, workers, context, problem=problem, apply=apply, on_progress=on_progress)


def _rebuild(
    storage: Storage, workers: Workers, context: RepairContext, *, problem: str, apply: bool, on_progress: OnProgress
) -> RepairReport:
    run_id = context.run_id
    on_progress(Progress(phase="reading snapshots"))
    started_at = now_ms()
    table = readable_table(storage)
    found = gather(storage, table)
    executor = workers.for_bytes(sum(item.size for item in found.objects))
    context = replace(context, compacted=frozenset(found.compacted))
    examined = _examine(executor, context, found, on_progress)
    slices = [each for one in examined for each in one.slices]
    lost = [*found.missing, *(each for one in examined for each in one.lost)]
    rebuilt = _decide(executor, context, found, slices, lost)
    needed = needed_losses(rebuilt, lost)
    salvaged = _salvage(executor, context, needed) if apply else []
    if salvaged:
        rebuilt = _decide(executor, context, found, [*slices, *salvaged], lost)
        needed = needed_losses(rebuilt, lost)
    version = next_version(found.remains.version, found.highest_commit)
    notices = [*found.notices, *_lost_runs(rebuilt, found, run_id), *_unknown_objects(examined)]
    notices += [*lost_notices(needed), *rebuilt.notices]
    known = (*(each.run for each in found.runs), *found.other_runs)
    runs = [run for run in known if run.run_id not in found.prunes.dropped_runs]
    report = RepairReport(
        archive=storage.url,
        run_id=run_id,
        action=Action.REBUILT,
        applied=apply,
        problem=problem,
        version=version if apply else None,
        topics=len({row.topic_id for row in rebuilt.rows}),
        partitions=len({(row.topic_id, row.partition) for row in rebuilt.rows}),
        rows=len(rebuilt.rows),
        replaced_rows=len(rebuilt.replaced),
        runs=len(runs),
        objects=len(examined),
        bytes=sum(each.bytes for each in examined),
        unnamed_slices=len(rebuilt.unnamed),
        unnamed_bytes=sum(each.slice.bytes for each in rebuilt.unnamed),
        salvaged_records=sum(each.slice.records for each in salvaged),
        gaps=gaps_by_reason(rebuilt.rows),
        kept_aside=f"{ASIDE}/{run_id}" if found.remains.objects else None,
        unknown=tuple(found.unknown),
        notices=tuple(notices),
    )
    if apply:
        on_progress(Progress(phase="committing"))
        keep_aside(storage, run_id)
        own = Run(
            run_id=run_id,
            started_at=started_at,
            finished_at=now_ms(),
            snapshot=None,
            statistics=statistics_of(report),
            written_at=now_ms(),
            commit=version,
        )
        rows = pa.concat_tables([_table(rebuilt, [*runs, own]), _generations(found, run_id)])
        if (gone := _missing(storage, rebuilt)) is not None:
            raise RefusedError(
                "an object was deleted while the archive was read: a rule of the bucket deletes, or somebody does",
                operation="repair",
                object_name=storage.name_of(gone),
                hint="the catalog is as it was; run the command again while nothing is deleted",
            )
        replace_catalog(storage, rows, table=table, version=version, transactions=found.transactions)
        if (gone := _missing(storage, rebuilt)) is not None:
            raise CorruptDataError(
                "the catalog is rebuilt, but an object was deleted meanwhile",
                operation="repair",
                object_name=storage.name_of(gone),
                hint="run the command again: it makes gaps of such objects, which the next backup reads again",
            )
    return report


def _missing(storage: Storage, rebuilt: Rebuilt) -> str | None:
    """An object that rows name and that does not exist (any more)."""
    there = {info.path for folder in FOLDERS for info in storage.list(folder)}
    rows = (*rebuilt.rows, *(row for row, _ in rebuilt.replaced))
    return next((row.path for row in rows if isinstance(row, Segment) and row.path not in there), None)


def statistics_of(report: RepairReport) -> dict[str, object]:
    """The details of the repair's own row."""
    return {
        "command": "repair",
        "action": str(report.action),
        "topics": report.topics,
        "partitions": report.partitions,
        "objects": report.objects,
        "exit_code": report.exit_code,
        "findings": [str(notice) for notice in report.notices if notice.exit_code][:1000],
    }


def gaps_by_reason(rows: Sequence[Segment | Gap]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for row in rows:
        if isinstance(row, Gap):
            counted[str(row.reason)] += row.end_offset - row.base_offset
    return dict(counted)


def _examine(executor: Executor, context: RepairContext, found: Gathered, on_progress: OnProgress) -> list[Examined]:
    total = sum(each.size for each in found.objects)
    sized = [(each.size + _OBJECT_COST_BYTES, each) for each in found.objects]
    tasks = spread(sized, executor.parallelism * _TASKS_PER_CORE)

    def done(count: int) -> None:
        at = total * min(count, len(tasks)) // max(len(tasks), 1)
        on_progress(Progress(phase="reading", bytes_done=at, bytes_total=total))

    done(0)
    return executor.run(examine_objects, context, tasks, name=context.run_id, on_done=done)


def _decide(
    executor: Executor,
    context: RepairContext,
    found: Gathered,
    slices: Sequence[FoundSlice],
    lost: Sequence[LostRange],
) -> Rebuilt:
    while True:
        remains = Remains(
            slices=slices,
            lost=lost,
            runs=found.runs,
            gaps=found.gaps,
            revisions=found.revisions,
            compacted=found.compacted,
            pruned=found.prunes.ranges,
            pruned_slices=found.prunes.slices,
            sure=found.ledger.complete,
            settled=found.ledger.present,
            replaced=list(zip(found.ledger.before, revisions_of(found.ledger.replaced), strict=True)),
            retired=found.ledger.retired | found.remains.retired,
        )
        rebuilt = rebuild(remains, run_id=context.run_id, now_ms=now_ms())
        if not rebuilt.unscanned:
            return rebuilt
        unscanned = [[stored] for stored in rebuilt.unscanned]
        scanned = executor.run(scan_slices, context, unscanned, name=context.run_id)
        known = {
            (each.slice.path, each.slice.position): one for each, one in zip(rebuilt.unscanned, scanned, strict=True)
        }
        slices = [
            replace(each, transactions=known.get((each.slice.path, each.slice.position), each.transactions))
            for each in slices
        ]


def needed_losses(rebuilt: Rebuilt, lost: Sequence[LostRange]) -> list[LostRange]:
    """The damages that cost the archive something: other objects may hold the same offsets."""
    gone: dict[tuple[str, int], list[Gap]] = {}
    for row in rebuilt.rows:
        if isinstance(row, Gap) and row.reason is GapReason.CORRUPT:
            gone.setdefault((row.topic_id, row.partition), []).append(row)
    return [
        each
        for each in lost
        if any(
            row.base_offset < (row.end_offset if each.end is None else each.end) and each.base < row.end_offset
            for row in gone.get((each.topic_id, each.partition), ())
        )
    ]


def _salvage(executor: Executor, context: RepairContext, lost: Sequence[LostRange]) -> list[FoundSlice]:
    damaged = [each for each in lost if each.slice is not None]
    copies = executor.run(salvage_slices, context, [[damage] for damage in damaged], name=context.run_id)
    return [
        FoundSlice(
            topic=each.topic,
            topic_id=each.topic_id,
            partition=each.partition,
            slice=copy,
            epochs=((copy.base_offset, copy.first_leader_epoch), (copy.end_offset - 1, copy.last_leader_epoch)),
            modified_ms=now_ms(),
            run_id=context.run_id,
        )
        for each, copy in zip(damaged, copies, strict=True)
        if copy is not None
    ]


def _lost_runs(rebuilt: Rebuilt, found: Gathered, run_id: str) -> list[Notice]:
    """Runs that wrote behind the newest snapshot: such as share an earlier one are recorded by their rows alone."""
    known = {run.run.run_id for run in found.runs} | {run.run_id for run in found.other_runs}
    ends = found.runs[-1].snapshot.ends if found.runs else {}
    behind = Counter(
        row.run_id
        for row in rebuilt.rows
        if isinstance(row, Segment)
        and row.run_id not in known
        and row.end_offset > ends.get(PartitionId(topic_id=row.topic_id, partition=row.partition), 0)
    )
    return [
        Notice(
            kind="run",
            message=f"{'a run' if name == run_id else f'run {name}'} is lost: what it wrote is in the archive "
            f"({count:,} slices), but it is not listed, and what it recorded of the cluster is not known",
            hint="the next backup records the cluster as it is; '--as-of' finds the other runs",
            exit_code=EXIT_INCOMPLETE,
        )
        for name, count in sorted(behind.items())
    ]


def _unknown_objects(examined: Sequence[Examined]) -> list[Notice]:
    return [
        Notice(
            kind="unknown object",
            message=f"{each.path} is not in the new catalog: {each.unknown}",
            hint="its offsets are gaps; the next backup reads them again, if the log still has them",
            exit_code=EXIT_CORRUPT,
        )
        for each in examined
        if each.unknown is not None
    ]


def _generations(found: Gathered, run_id: str) -> pa.Table:
    """What the ledger says of generations. Those under construction are dropped: the next backup begins another."""
    at = now_ms()
    topics = decode_generations(found.ledger.generations).values()
    kept = [
        topic if topic.building is None else topic.without_building(at, "the catalog was rebuilt") for topic in topics
    ]
    return encode_generations(kept, run_id=run_id, written_at=at)


def _table(rebuilt: Rebuilt, runs: Sequence[Run]) -> pa.Table:
    before = as_replaced(encode_rows([row for row, _ in rebuilt.replaced]), [number for _, number in rebuilt.replaced])
    return pa.concat_tables([encode_rows([*rebuilt.rows, *runs]), before])
