"""A compaction of a tree of the layout parquet: its names, levels and footers are those of its own tool.

Such a tree has no catalog. A merged segment is complete before anything that it covers is deleted, and readers prefer
the higher level, so every state in between is readable.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Final

from maxbrod.archive.selection import select_names
from maxbrod.compact.job import merge_folders
from maxbrod.compact.report import CompactFault, CompactReport, Figures
from maxbrod.compact.settings import settings_of, tasks_of
from maxbrod.compact.tree import TreeItem, TreeOutcome, merge_folder
from maxbrod.errors import UnavailableError
from maxbrod.layouts.kafka.format import Compression, CompressionMode
from maxbrod.layouts.parquet.compaction import partition_folders
from maxbrod.model import now_ms
from maxbrod.storage.stores import open_storage
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.reach import Place

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.config import Config
    from maxbrod.work.session import Session

_WRITTEN_ANEW: Final = "rows are written anew, with the settings of this release"


def compact_tree(
    archive: Archive,
    config: Config,
    *,
    session: Session | None,
    on_progress: OnProgress,
    stop: threading.Event | None,
    clock_ms: int,
) -> CompactReport:
    """Merge the segments of all chosen topics."""
    assert archive.survey is not None  # noqa: S101 - the caller has looked
    started_at, options = now_ms(), config.compact
    segments = archive.survey.segments
    names = {segment.where.topic for segment in segments}
    chosen = select_names(names, options.topics, options.exclude)
    settings = settings_of(options, chosen)
    sizes: dict[str, int] = {}
    for segment in segments:
        folder = segment.path.rsplit("/", 2)[0]
        sizes[folder] = sizes.get(folder, 0) + segment.bytes
    compression = Compression.parse(options.recompress)
    zstd = compression.mode is CompressionMode.ZSTD
    items = [
        TreeItem(
            folder=folder,
            topic=folder.rsplit("/", 2)[-2],
            partition=int(folder.rsplit("/", 1)[-1]),
            limits=settings[folder.rsplit("/", 2)[-2]].limits,
            now_ms=clock_ms,
            codec="zstd" if zstd else None,
            level=compression.level if zstd else None,
            dry_run=options.dry_run,
        )
        for folder in partition_folders(segment for segment in segments if segment.where.topic in chosen)
    ]
    if options.dry_run:
        storage = open_storage(archive.url, archive.options)
        outcomes = [merge_folder(storage, item) for item in items]
    elif items:
        needs = needs_storage(archive.url, archive.options, writes=True)
        with Workers(config.spark, needs=needs, session=session, on_progress=on_progress, stop=stop) as workers:
            total = sum(sizes[item.folder] for item in items)
            executor = workers.for_bytes(total)
            sized = ((item.topic, sizes[item.folder], item) for item in items)
            tasks = tasks_of(sized, settings, executor.parallelism)
            outcomes = _run_tasks(executor, archive, tasks, total, on_progress=on_progress, stop=stop)
    else:
        outcomes = []
    return _report(archive, outcomes, options.recompress, dry_run=options.dry_run, started_at=started_at, stop=stop)


def _run_tasks(
    executor: Executor,
    archive: Archive,
    tasks: Sequence[Sequence[TreeItem]],
    total: int,
    *,
    on_progress: OnProgress,
    stop: threading.Event | None,
) -> list[TreeOutcome]:
    def on_done(count: int) -> None:
        done = total * min(count, len(tasks)) // len(tasks)
        on_progress(Progress(phase="merging", bytes_done=done, bytes_total=total))

    on_done(0)
    place, name = Place(url=archive.url, storage=archive.options), f"compact-{uuid.uuid4().hex[:12]}"
    try:
        return executor.run(merge_folders, place, tasks, name=name, on_done=on_done, stop=stop)
    except UnavailableError:
        if stop is None or not stop.is_set():
            raise
        return []


def _report(
    archive: Archive,
    outcomes: Sequence[TreeOutcome],
    recompress: str,
    *,
    dry_run: bool,
    started_at: int,
    stop: threading.Event | None,
) -> CompactReport:
    figures = Figures(recompress, _WRITTEN_ANEW)
    faults = []
    left: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        if outcome.left:
            left.setdefault(outcome.topic, Counter()).update(outcome.left)
        for merge in outcome.merges:
            if merge.message is not None:
                faults.append(
                    CompactFault(
                        topic=outcome.topic,
                        partition=outcome.partition,
                        base_offset=merge.base_offset,
                        end_offset=merge.end_offset,
                        message=merge.message,
                        object_name=merge.object_name,
                        offset=merge.offset,
                        damaged=merge.damaged,
                    )
                )
                continue
            figures.of(outcome.topic).add(
                ("", outcome.partition),
                segments=merge.segments,
                new=1,
                size=merge.bytes,
                new_size=merge.merged_bytes,
                records=merge.records,
            )
    return CompactReport(
        archive=archive.url,
        layout="parquet",
        run_id=None,
        dry_run=dry_run,
        started_at_ms=started_at,
        finished_at_ms=now_ms(),
        topics=figures.topics(left),
        faults=tuple(faults),
        interrupted=stop is not None and stop.is_set(),
    )
