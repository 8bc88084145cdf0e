"""A compaction of a tree of the layout parquet: its names, levels and footers are those of its own tool.

Such a tree has no catalog. A merged segment is complete before anything that it covers is deleted, and readers prefer
the higher level, so every state in between is readable.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import select_names
from maxbrod.compact.report import CompactFault, CompactReport, Tally
from maxbrod.compact.settings import TopicSettings, settings_of, tasks_of
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.kafka.format import Compression, CompressionMode
from maxbrod.layouts.parquet.compaction import DAMAGED, compact_folder, partition_folders, plan_folder
from maxbrod.storage.stores import open_storage
from maxbrod.work.preflight import needs_storage
from maxbrod.work.reach import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.compact.options import CompactOptions
    from maxbrod.layouts.compaction_limits import CompactionLimits
    from maxbrod.layouts.parquet.survey import SegmentRange
    from maxbrod.storage.interface import Storage
    from maxbrod.work.work import Work

_WRITTEN_ANEW: Final = "rows are written anew, with the settings of this release"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeItem:
    """A partition's folder, and what to do with it."""

    folder: str
    topic: str
    partition: int
    limits: CompactionLimits
    now_ms: int
    codec: str | None = None
    level: int | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMerge:
    """Segments that became one, or stayed as they are because of a failure."""

    base_offset: int
    end_offset: int
    segments: int
    bytes: int
    """Those that the segments had before."""
    merged_bytes: int | None = None
    records: int | None = None
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOutcome:
    topic: str
    partition: int
    merges: tuple[TreeMerge, ...]
    left: dict[str, int]
    """The number of segments that stay as they are, by reason."""


def compact_tree(work: Work, archive: Archive) -> CompactReport:
    """Merge the segments of all chosen topics."""
    assert archive.survey is not None  # noqa: S101 - the caller has looked
    options = work.config.compact
    segments = archive.survey.segments
    chosen = select_names({segment.where.topic for segment in segments}, options.topics, options.exclude)
    settings = settings_of(options, chosen)
    sizes: dict[str, int] = {}
    for segment in segments:
        folder = segment.path.rsplit("/", 2)[0]
        sizes[folder] = sizes.get(folder, 0) + segment.bytes
    folders = partition_folders(segment for segment in segments if segment.where.topic in chosen)
    items = list(_items(folders, settings, options, now_ms=work.clock_ms))
    place = Place(url=archive.url, storage=archive.options)
    outcomes: list[TreeOutcome] = []
    if options.dry_run:
        outcomes = merge_folders(place, items)
    elif items:
        total = sum(sizes[item.folder] for item in items)
        needs = needs_storage(archive.url, archive.options, writes=True)
        executor, meter = work.workers(needs).for_bytes(total), work.meter("merging", total)
        sized = ((item.topic, sizes[item.folder], item) for item in items)
        tasks = tasks_of(sized, settings, executor.parallelism)
        meter.begin(len(tasks), total)
        name = f"compact-{uuid.uuid4().hex[:12]}"
        try:
            outcomes = executor.run(merge_folders, place, tasks, name=name, on_done=meter.tasks_done, stop=work.stop)
        except UnavailableError:
            # Every merge that was complete stays.
            if not work.is_stopped():
                raise
    tally = Tally(work, archive.url, archive.survey.layout, why_larger=_WRITTEN_ANEW)
    for outcome in outcomes:
        _count(tally, outcome)
    return tally.report()


def _items(
    folders: Iterable[str], settings: Mapping[str, TopicSettings], options: CompactOptions, *, now_ms: int
) -> Iterator[TreeItem]:
    compression = Compression.parse(options.recompress)
    zstd = compression.mode is CompressionMode.ZSTD
    for folder in folders:
        topic, partition = folder.rsplit("/", 2)[-2:]
        yield TreeItem(
            folder=folder,
            topic=topic,
            partition=int(partition),
            limits=settings[topic].limits,
            now_ms=now_ms,
            codec="zstd" if zstd else None,
            level=compression.level if zstd else None,
            dry_run=options.dry_run,
        )


def _count(tally: Tally, outcome: TreeOutcome) -> None:
    if outcome.left:
        tally.of(outcome.topic).left.update(outcome.left)
    for merge in outcome.merges:
        if merge.failure is not None:
            where = outcome.topic, outcome.partition, merge.base_offset, merge.end_offset
            tally.faults.append(CompactFault.of(merge.failure, *where))
            continue
        tally.of(outcome.topic).add(
            ("", outcome.partition),
            segments=merge.segments,
            new=1,
            size=merge.bytes,
            new_size=merge.merged_bytes,
            records=merge.records,
        )


def merge_folders(place: Place, items: Sequence[TreeItem]) -> list[TreeOutcome]:
    """Merge the segments of partitions, one after the other."""
    storage = open_storage(place.url, place.storage)
    return [merge_folder(storage, item) for item in items]


def merge_folder(storage: Storage, item: TreeItem) -> TreeOutcome:
    """Merge the segments of one partition. Never raises what concerns it alone."""
    limits, now_ms = item.limits, item.now_ms
    runs: list[tuple[list[SegmentRange], int]] = []
    left: Mapping[str, int] = {}
    failed: dict[int, MaxbrodError] = {}

    def on_damage(run: Sequence[SegmentRange], error: MaxbrodError) -> None:
        failed[run[0].base] = error

    try:
        runs, left = plan_folder(storage, item.folder, limits, now_ms=now_ms)
        options = WriteOptions(codec=item.codec, level=item.level)
        merged = (
            []
            if item.dry_run
            else compact_folder(storage, item.folder, limits, now_ms=now_ms, options=options, on_damage=on_damage)
        )
    except MaxbrodError as error:
        whole = TreeMerge(
            base_offset=runs[0][0][0].base if runs else 0,
            end_offset=runs[-1][0][-1].end if runs else 0,
            segments=sum(len(run) for run, _ in runs),
            bytes=sum(size for _, size in runs),
            failure=error,
        )
        return TreeOutcome(topic=item.topic, partition=item.partition, merges=(whole,), left=dict(left))
    found = {each.base_offset: each for each in merged}
    merges = []
    behind = 0
    for run, size in runs:
        base, error_here, new = run[0].base, failed.get(run[0].base), found.get(run[0].base)
        if failed and error_here is None and new is None:
            behind += len(run)
            continue
        merges.append(
            TreeMerge(
                base_offset=base,
                end_offset=run[-1].end,
                segments=len(run),
                bytes=size,
                merged_bytes=None if new is None else new.bytes,
                records=None if new is None else new.records,
                failure=error_here,
            )
        )
    return TreeOutcome(
        topic=item.topic,
        partition=item.partition,
        merges=tuple(merges),
        left={**left, **({DAMAGED: behind} if behind else {})},
    )
