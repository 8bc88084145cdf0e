"""A compaction of a tree of the layout parquet: its names, levels and footers are those of its own tool.

Such a tree has no catalog. A merged segment is complete before anything that it covers is deleted, and readers prefer
the higher level, so every state in between is readable.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.archive.archive import Archive
from maxbrod.archive.selection import select_names
from maxbrod.compact.report import CompactFault, CompactReport, Tally
from maxbrod.compact.waves import compaction_limits, limits_by_topic, spread_over_tasks
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.layouts.foreign import CompactionLimits, WriteOptions
from maxbrod.layouts.kafka.format import Compression, CompressionMode
from maxbrod.layouts.parquet.compaction import DAMAGED, compact_folder, partition_folders, plan_folder
from maxbrod.layouts.parquet.survey import SegmentRange
from maxbrod.storage.interface import HeldObject, Storage
from maxbrod.storage.stores import open_storage
from maxbrod.work.held import find_held
from maxbrod.work.preflight import needs_storage
from maxbrod.work.reach import Place

if TYPE_CHECKING:
    from maxbrod.work.work import Work

_WRITTEN_ANEW: Final = "rows are written anew, with the settings of this release"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeContext:
    """The context that all tasks share. Contains secrets."""

    place: Place
    now_ms: int
    options: WriteOptions
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeItem:
    """A partition's folder."""

    folder: str
    topic: str
    partition: int
    limits: CompactionLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOutcome:
    item: TreeItem
    merges: tuple[Mapping[str, int | None], ...]
    """The figures, as `Tally.add` takes them, of segments that became one."""
    faults: tuple[CompactFault, ...]
    left: Mapping[str, int]
    """The number of segments that stay as they are, by reason."""
    held: tuple[HeldObject, ...] = ()
    """Merged segments that the store does not delete."""


def compact_tree(work: Work, archive: Archive) -> CompactReport:
    """Merge the segments of all chosen topics."""
    options = work.config.compact
    segments = archive.surveyed.segments
    chosen = select_names({segment.where.topic for segment in segments}, options.topics, options.exclude)
    limits = limits_by_topic(options, chosen)
    sizes: Counter[str] = Counter()
    for segment in segments:
        sizes[segment.path.rsplit("/", 2)[0]] += segment.bytes
    items = []
    for folder in partition_folders(segment for segment in segments if segment.where.topic in chosen):
        topic, partition = folder.rsplit("/", 2)[-2:]
        items.append(
            TreeItem(folder=folder, topic=topic, partition=int(partition), limits=compaction_limits(limits[topic]))
        )
    compression = Compression.parse(options.recompress)
    zstd = compression.mode is CompressionMode.ZSTD
    context = TreeContext(
        place=Place(url=archive.url, storage=archive.options),
        now_ms=work.clock_ms,
        options=WriteOptions(codec="zstd" if zstd else None, level=compression.level if zstd else None),
        dry_run=options.dry_run,
    )
    outcomes: list[TreeOutcome] = []
    if options.dry_run:
        outcomes = merge_folders(context, items)
    elif items:
        total = sum(sizes[item.folder] for item in items)
        needs = needs_storage(archive.url, archive.options, writes=True)
        executor, meter = work.workers(needs).for_bytes(total), work.meter("merging", total)
        sized = ((item.topic, sizes[item.folder], item) for item in items)
        tasks = spread_over_tasks(sized, limits, executor.parallelism)
        meter.begin(len(tasks), total)
        name = f"compact-{uuid.uuid4().hex[:12]}"
        try:
            outcomes = executor.run(merge_folders, context, tasks, name=name, meter=meter, stop=work.stop)
        except UnavailableError:
            # Every merge that was complete stays.
            if not work.is_stopped():
                raise
    tally = Tally(work, archive.url, archive.layout, why_larger=_WRITTEN_ANEW)
    for outcome in outcomes:
        tally.leave(outcome.item.topic, outcome.left)
        tally.faults += outcome.faults
        tally.held_objects += outcome.held
        for figures in outcome.merges:
            tally.add(outcome.item.topic, ("", outcome.item.partition), **figures)
    return tally.report()


def merge_folders(context: TreeContext, items: Sequence[TreeItem]) -> list[TreeOutcome]:
    """Merge the segments of partitions, one after the other."""
    storage = open_storage(context.place.url, context.place.storage)
    outcomes = [_merge_folder(storage, context, item) for item in items]
    held = find_held(storage, context.place.url, context.place.storage)
    of_folder = {item.folder: [found for found in held if found.path.startswith(f"{item.folder}/")] for item in items}
    return [replace(outcome, held=tuple(of_folder[outcome.item.folder])) for outcome in outcomes]


def _merge_folder(storage: Storage, context: TreeContext, item: TreeItem) -> TreeOutcome:
    """Merge the segments of one partition. Never raises what concerns it alone."""
    runs: list[tuple[list[SegmentRange], int]] = []
    left: Mapping[str, int] = {}
    failed: dict[int, MaxbrodError] = {}

    def on_damage(run: Sequence[SegmentRange], error: MaxbrodError) -> None:
        failed[run[0].base] = error

    def fault(error: MaxbrodError, base: int, end: int) -> CompactFault:
        return CompactFault.of(error, item.topic, item.partition, base, end)

    try:
        runs, left = plan_folder(storage, item.folder, item.limits, now_ms=context.now_ms)
        merged = (
            []
            if context.dry_run
            else compact_folder(
                storage, item.folder, item.limits, now_ms=context.now_ms, options=context.options, on_damage=on_damage
            )
        )
    except MaxbrodError as error:
        whole = fault(error, runs[0][0][0].base if runs else 0, runs[-1][0][-1].end if runs else 0)
        return TreeOutcome(item=item, merges=(), faults=(whole,), left=left)
    found = {segment.base_offset: segment for segment in merged}
    merges: list[Mapping[str, int | None]] = []
    faults: list[CompactFault] = []
    behind = 0
    for run, size in runs:
        base = run[0].base
        new = found.get(base)
        if base in failed:
            faults.append(fault(failed[base], base, run[-1].end))
        elif failed and new is None:
            behind += len(run)
        else:
            written = {} if new is None else {"new_bytes": new.bytes, "records": new.records}
            merges.append({"merges": 1, "segments": len(run), "new_segments": 1, "bytes": size, **written})
    if behind:
        left = {**left, DAMAGED: behind}
    return TreeOutcome(item=item, merges=tuple(merges), faults=tuple(faults), left=left)
