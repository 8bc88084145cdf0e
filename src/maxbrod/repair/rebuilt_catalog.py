"""The rebuilt catalog: evidence is gathered, every object is read once, rows are decided and published."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
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
from maxbrod.repair.examine import RepairContext, RepairWork, examine_objects, salvage_slices, scan_slices
from maxbrod.repair.inventory import FOLDERS, Inventory, take_inventory
from maxbrod.repair.plan.found import Examined, FoundSlice, LostRange
from maxbrod.repair.plan.rebuild import Rebuilt, Remains, lost_notices, rebuild
from maxbrod.repair.report import Action, RepairReport, gaps_by_reason
from maxbrod.work.progress import Meter, OnProgress, Progress
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.catalog.codec import Table
    from maxbrod.storage.interface import Storage
    from maxbrod.work.executor import Executor

_TASKS_PER_CORE: Final = 4
_OBJECT_COST_BYTES: Final = 256 << 10
"""What opening an object costs beside reading it."""


def rebuild_catalog(repair: RepairWork, *, problem: str) -> RepairReport:
    """Make a new catalog of what the objects say; with `apply`, put it in place.

    RefusedError: another writer committed meanwhile, or objects vanish; nothing is changed but for the copy of the old
    catalog. CorruptDataError: an object vanished while the new catalog was put in place.
    """
    with announced(repair.storage, repair.run_id) if repair.options.apply else nullcontext():
        repair.on_progress(Progress(phase="reading snapshots"))
        started_at = now_ms()
        table = readable_table(repair.storage)
        found = take_inventory(repair.storage, table)
        context = replace(repair.context, compacted=frozenset(found.compacted))
        contents = _read_archive(replace(repair, context=context), found)
        runs = _listed_runs(found)
        report = _report(repair, found, contents, runs, problem)
        if repair.options.apply:
            _put_in_place(repair, found, contents.rebuilt, report, runs, started_at, table)
        return report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """The slices that objects hold, and the rows that follow from them."""

    examined: Sequence[Examined]
    rebuilt: Rebuilt
    lost: Sequence[LostRange]
    """The damages that cost the archive something."""
    salvaged: Sequence[FoundSlice]


def _read_archive(repair: RepairWork, found: Inventory) -> _Contents:
    """Read every object once, and decide. With `apply`, copy sound batches of damaged slices, and decide again."""
    executor = repair.workers.for_bytes(sum(item.size for item in found.objects))
    examined = _examine(executor, repair.context, found, repair.on_progress)
    slices = [held for one in examined for held in one.slices]
    lost = [*found.missing, *(damage for one in examined for damage in one.lost)]
    rebuilt = _decide(executor, repair.context, found, slices, lost)
    # Only what is really lost is salvaged: other objects may hold the same offsets.
    needed = needed_losses(rebuilt, lost)
    salvaged = _salvage(executor, repair.context, needed) if repair.options.apply else []
    if salvaged:
        rebuilt = _decide(executor, repair.context, found, [*slices, *salvaged], lost)
        needed = needed_losses(rebuilt, lost)
    return _Contents(examined=examined, rebuilt=rebuilt, lost=needed, salvaged=salvaged)


def _listed_runs(found: Inventory) -> list[Run]:
    known = (*(each.run for each in found.runs), *found.other_runs)
    return [run for run in known if run.run_id not in found.prunes.dropped_runs]


def _report(
    repair: RepairWork, found: Inventory, contents: _Contents, runs: Sequence[Run], problem: str
) -> RepairReport:
    rebuilt, examined, apply = contents.rebuilt, contents.examined, repair.options.apply
    notices = [*found.notices, *_lost_runs(rebuilt, found, repair.run_id), *_unknown_objects(examined)]
    notices += [*lost_notices(contents.lost), *rebuilt.notices]
    return RepairReport(
        archive=repair.storage.url,
        run_id=repair.run_id,
        action=Action.REBUILT,
        applied=apply,
        problem=problem,
        version=_next_version(found) if apply else None,
        topics=len({row.topic_id for row in rebuilt.rows}),
        partitions=len({(row.topic_id, row.partition) for row in rebuilt.rows}),
        rows=len(rebuilt.rows),
        replaced_rows=len(rebuilt.replaced),
        runs=len(runs),
        objects=len(examined),
        bytes=sum(each.bytes for each in examined),
        unnamed_slices=len(rebuilt.unnamed),
        unnamed_bytes=sum(each.slice.bytes for each in rebuilt.unnamed),
        salvaged_records=sum(each.slice.records for each in contents.salvaged),
        gaps=gaps_by_reason(rebuilt.rows),
        kept_aside=f"{ASIDE}/{repair.run_id}" if found.remains.objects else None,
        unknown=tuple(found.unknown),
        notices=tuple(notices),
    )


def _next_version(found: Inventory) -> int:
    return next_version(found.remains.version, found.highest_commit)


def _put_in_place(
    repair: RepairWork,
    found: Inventory,
    rebuilt: Rebuilt,
    report: RepairReport,
    runs: Sequence[Run],
    started_at: int,
    table: Table | None,
) -> None:
    """Keep the old catalog aside and publish the new one. Objects are looked for before and after."""
    storage, version = repair.storage, _next_version(found)
    repair.on_progress(Progress(phase="committing"))
    keep_aside(storage, repair.run_id)
    own = report.run_row(started_at=started_at, commit=version)
    rows = pa.concat_tables([_table(rebuilt, [*runs, own]), _generations(found, repair.run_id)])
    if (gone := _missing(storage, rebuilt)) is not None:
        raise RefusedError(
            "an object was deleted while the archive was read: a rule of the bucket deletes, or somebody does",
            operation="repair",
            object_name=storage.name_of(gone),
            hint="the catalog is as it was; run the command again while nothing is deleted",
        )
    replace_catalog(storage, rows, table=table, version=version, transactions=found.transactions)
    # What was deleted between the look before and the commit is named by the new catalog.
    if (gone := _missing(storage, rebuilt)) is not None:
        raise CorruptDataError(
            "the catalog is rebuilt, but an object was deleted meanwhile",
            operation="repair",
            object_name=storage.name_of(gone),
            hint="run the command again: it makes gaps of such objects, which the next backup reads again",
        )


def _missing(storage: Storage, rebuilt: Rebuilt) -> str | None:
    """An object that rows name and that does not exist (any more)."""
    there = {info.path for folder in FOLDERS for info in storage.list(folder)}
    rows = (*rebuilt.rows, *(row for row, _ in rebuilt.replaced))
    return next((row.path for row in rows if isinstance(row, Segment) and row.path not in there), None)


def _examine(executor: Executor, context: RepairContext, found: Inventory, on_progress: OnProgress) -> list[Examined]:
    total = sum(each.size for each in found.objects)
    sized = [(each.size + _OBJECT_COST_BYTES, each) for each in found.objects]
    tasks = spread(sized, executor.parallelism * _TASKS_PER_CORE)
    meter = Meter(on_progress, "reading", total)
    meter.begin(len(tasks), total)
    return executor.run(examine_objects, context, tasks, name=context.run_id, on_done=meter.tasks_done)


def _decide(
    executor: Executor,
    context: RepairContext,
    found: Inventory,
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


def _lost_runs(rebuilt: Rebuilt, found: Inventory, run_id: str) -> list[Notice]:
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


def _generations(found: Inventory, run_id: str) -> pa.Table:
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
