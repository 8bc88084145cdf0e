"""The rebuilt catalog: evidence is gathered, every object is read once, rows are decided and published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.archive.upkeep import announced
from maxbrod.catalog.codec import Table
from maxbrod.catalog.generations import decode_generations, encode_generations
from maxbrod.catalog.remains import ASIDE, keep_aside, readable_table, replace_catalog
from maxbrod.catalog.replaced import as_replaced
from maxbrod.catalog.rows import Gap, Run, Segment, encode_rows
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, CorruptDataError, RefusedError
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.notices import Notice
from maxbrod.repair.examine import (
    Examined,
    ObjectToExamine,
    RepairContext,
    RepairWork,
    examine_objects,
    salvage_slices,
    scan_slices,
)
from maxbrod.repair.inventory import FOLDERS, Inventory, take_inventory
from maxbrod.repair.plan.rebuild import Rebuilt, RepairEvidence, lost_notices, rebuild
from maxbrod.repair.plan.slices import FoundSlice, LostRange, place_of
from maxbrod.repair.report import Action, RepairReport, gaps_by_reason
from maxbrod.storage.interface import Storage
from maxbrod.work.executor import Executor
from maxbrod.work.windows import spread
from maxbrod.work.work import Work

if TYPE_CHECKING:
    import threading


_TASKS_PER_CORE: Final = 4
_OBJECT_COST_BYTES: Final = 256 << 10
"""The cost of opening an object, beside reading it."""


def rebuild_catalog(repair: RepairWork, *, problem: str) -> RepairReport:
    """Make a new catalog of what the objects say; with `apply`, put it in place.

    RefusedError: another writer committed meanwhile, or objects vanish; nothing is changed but for the copy of the old
    catalog. CorruptDataError: an object vanished while the new catalog was put in place.
    """
    storage, run_id, apply = repair.storage, repair.context.run_id, repair.work.config.repair.apply
    with announced(storage, run_id) if apply else nullcontext():
        with repair.work.looking("reading snapshots"):
            table = readable_table(storage)
            found = take_inventory(storage, table)
        context = replace(repair.context, compacted=found.evidence.compacted)
        executor = repair.workers.for_bytes(sum(item.size for item in found.objects))
        examined = _examine(repair.work, executor, context, found.objects)
        evidence = replace(
            found.evidence,
            slices=[held for one in examined for held in one.slices],
            lost=[*found.evidence.lost, *(damage for one in examined for damage in one.lost)],
        )
        stop = repair.work.stop
        rebuilt = _decide(executor, context, evidence, stop)
        # Only what is really lost is salvaged: other objects may hold the same offsets.
        lost = needed_losses(rebuilt, evidence.lost)
        salvaged = _salvage(executor, context, lost, stop) if apply else []
        if salvaged:
            rebuilt = _decide(executor, context, replace(evidence, slices=[*evidence.slices, *salvaged]), stop)
            lost = needed_losses(rebuilt, evidence.lost)
        runs = [run for run in found.known_runs if run.run_id not in found.dropped_runs]
        notices = [*found.notices, *_lost_runs(rebuilt, found, run_id), *_unknown_objects(examined)]
        report = RepairReport(
            archive=storage.url,
            run_id=run_id,
            action=Action.REBUILT,
            applied=apply,
            problem=problem,
            version=found.version if apply else None,
            topics=len({row.topic_id for row in rebuilt.rows}),
            partitions=len({(row.topic_id, row.partition) for row in rebuilt.rows}),
            rows=len(rebuilt.rows),
            replaced_rows=len(rebuilt.replaced),
            runs=len(runs),
            objects=len(examined),
            bytes=sum(one.bytes for one in examined),
            unnamed_slices=len(rebuilt.unnamed),
            unnamed_bytes=sum(unnamed.slice.bytes for unnamed in rebuilt.unnamed),
            salvaged_records=sum(copy.slice.records for copy in salvaged),
            gaps=gaps_by_reason(rebuilt.rows),
            kept_aside=f"{ASIDE}/{run_id}" if found.has_old_catalog else None,
            unknown=tuple(found.unknown),
            notices=(*notices, *lost_notices(lost), *rebuilt.notices),
        )
        if apply:
            own = report.run_row(started_at=repair.work.started_at_ms, commit=found.version)
            _put_in_place(repair, found, rebuilt, [*runs, own], table)
        return report


def _put_in_place(
    repair: RepairWork, found: Inventory, rebuilt: Rebuilt, runs: Sequence[Run], table: Table | None
) -> None:
    """Keep the old catalog aside and publish the new one. Objects are looked for before and after."""
    storage, run_id = repair.storage, repair.context.run_id
    repair.work.tell("committing")
    keep_aside(storage, run_id)
    before = as_replaced(encode_rows([row for row, _ in rebuilt.replaced]), [number for _, number in rebuilt.replaced])
    rows = pa.concat_tables([encode_rows([*rebuilt.rows, *runs]), before, _generations(found, run_id)])
    if (gone := _missing(storage, rebuilt)) is not None:
        raise RefusedError(
            "an object was deleted while the archive was read: a rule of the bucket deletes, or somebody does",
            operation="repair",
            object_name=storage.name_of(gone),
            hint="the catalog is as it was; run the command again while nothing is deleted",
        )
    replace_catalog(storage, rows, table=table, version=found.version, transactions=found.transactions)
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


def _examine(
    work: Work, executor: Executor, context: RepairContext, objects: Sequence[ObjectToExamine]
) -> list[Examined]:
    total = sum(item.size for item in objects)
    sized = [(item.size + _OBJECT_COST_BYTES, item) for item in objects]
    tasks = spread(sized, executor.parallelism * _TASKS_PER_CORE)
    meter = work.meter("reading", total, tasks=len(tasks))
    return executor.run(examine_objects, context, tasks, name=context.run_id, meter=meter, stop=work.stop)


def _decide(executor: Executor, context: RepairContext, evidence: RepairEvidence, stop: threading.Event) -> Rebuilt:
    """Decide about all rows, and read the transactions of slices for that, if they must be known."""
    while True:
        rebuilt = rebuild(evidence, run_id=context.run_id, now_ms=now_ms())
        if not rebuilt.unscanned:
            return rebuilt
        unscanned = [[stored] for stored in rebuilt.unscanned]
        scanned = executor.run(scan_slices, context, unscanned, name=context.run_id, stop=stop)
        places = [(found.slice.path, found.slice.position) for found in rebuilt.unscanned]
        known = dict(zip(places, scanned, strict=True))
        slices = [
            replace(found, transactions=known.get((found.slice.path, found.slice.position), found.transactions))
            for found in evidence.slices
        ]
        evidence = replace(evidence, slices=slices)


def needed_losses(rebuilt: Rebuilt, lost: Sequence[LostRange]) -> list[LostRange]:
    """The damages that cost the archive something: other objects may hold the same offsets."""
    gone: dict[tuple[str, int], list[Gap]] = {}
    for row in rebuilt.rows:
        if isinstance(row, Gap) and row.reason is GapReason.CORRUPT:
            gone.setdefault((row.topic_id, row.partition), []).append(row)
    return [
        range_
        for range_ in lost
        if any(
            row.base_offset < (row.end_offset if range_.end is None else range_.end) and range_.base < row.end_offset
            for row in gone.get((range_.topic_id, range_.partition), ())
        )
    ]


def _salvage(
    executor: Executor, context: RepairContext, lost: Sequence[LostRange], stop: threading.Event
) -> list[FoundSlice]:
    damaged = [range_ for range_ in lost if range_.slice is not None]
    tasks = [[damage] for damage in damaged]
    copies = executor.run(salvage_slices, context, tasks, name=context.run_id, stop=stop)
    return [
        FoundSlice(
            **place_of(range_),
            slice=copy,
            epochs=((copy.base_offset, copy.first_leader_epoch), (copy.end_offset - 1, copy.last_leader_epoch)),
            modified_ms=now_ms(),
            run_id=context.run_id,
        )
        for range_, copy in zip(damaged, copies, strict=True)
        if copy is not None
    ]


def _lost_runs(rebuilt: Rebuilt, found: Inventory, run_id: str) -> list[Notice]:
    """Runs that wrote behind the newest snapshot: such as share an earlier one are recorded by their rows alone."""
    known, runs = {run.run_id for run in found.known_runs}, found.evidence.runs
    ends = runs[-1].snapshot.ends if runs else {}
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
            message=f"{result.path} is not in the new catalog: {result.unknown}",
            hint="its offsets are gaps; the next backup reads them again, if the log still has them",
            exit_code=EXIT_CORRUPT,
        )
        for result in examined
        if result.unknown is not None
    ]


def _generations(found: Inventory, run_id: str) -> pa.Table:
    """The generations that the ledger records. Those under construction are dropped: the next backup begins another."""
    at = now_ms()
    topics = decode_generations(found.generations).values()
    kept = [
        topic if topic.building is None else topic.without_building(at, "the catalog was rebuilt") for topic in topics
    ]
    return encode_generations(kept, run_id=run_id, written_at=at)
