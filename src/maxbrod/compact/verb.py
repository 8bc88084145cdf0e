"""Compacts an archive: plan, merge, commit. `waves` has the steps; this module merges segments, in order of offsets."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, encode_rows, slice_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.compact.by_key.verb import ByKey
from maxbrod.compact.plan import PLAN_COLUMNS, REPLACED_COLUMNS, Merge, MergeGroup, Written, plan_groups
from maxbrod.compact.report import CompactFault, CompactReport
from maxbrod.compact.task import MergeContext, MergeItem, merge_groups
from maxbrod.compact.tree import compact_tree
from maxbrod.compact.waves import Compaction, RowChange, compaction_limits, limits_by_topic, spread_over_tasks
from maxbrod.config import Config, StorageConfig, config_with
from maxbrod.errors import UsageError
from maxbrod.model import now_ms
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.reach import Place
from maxbrod.work.session import Session
from maxbrod.work.work import Work

if TYPE_CHECKING:
    from maxbrod.keywords import CompactKeywords

_PARQUET: Final = "parquet"
_SHARED_FRAMES: Final = "segments that do not shrink share objects in frames"


def compact_archive(work: Work) -> CompactReport:
    """Merge small segments into few large ones; with `by_key`, keep only the newest record of each key."""
    config, options = work.config, work.config.compact
    with work.looking("reading the archive"):
        archive = open_archive(config.archive_url, config.storage, layout=config.layout, groups=False, records=True)
    if options.cut is not None and not options.by_key:
        raise UsageError("--cut is given without --by-key", hint="segments are merged whatever run wrote them")
    if not archive.is_native:
        _refuse_layout(archive, by_key=options.by_key)
        return compact_tree(work, archive)
    if not options.dry_run:
        archive = open_for_writing(archive.url, config.storage, single_writer=options.single_writer)
    return ByKey(work, archive).run() if options.by_key else Merging(work, archive).run()


def _refuse_layout(archive: Archive, *, by_key: bool) -> None:
    if by_key:
        raise UsageError(
            f"an archive in the layout {archive.layout} cannot be compacted by key",
            object_name=archive.url,
            hint="'maxbrod convert' makes one of maxbrod's own layout of it",
        )
    if archive.layout != _PARQUET:
        raise UsageError(
            f"segments of the layout {archive.layout} cannot be merged",
            object_name=archive.url,
            hint="archives of the layouts kafka and parquet can; 'maxbrod convert' makes one of any other",
        )


class Merging(Compaction[MergeGroup]):
    """Merges groups of segments into one object each. All waves are one run, whose row the last commit has."""

    def __init__(self, work: Work, archive: Archive) -> None:
        super().__init__(work, archive, why_larger=_SHARED_FRAMES)
        self._names, chosen = self.topic_names()
        self._limits = {
            name: limits
            for name, limits in limits_by_topic(self.options, self._names.values()).items()
            if name in chosen
        }

    def plan(self) -> Iterable[MergeGroup]:
        # A dry run counts portion by portion: nothing of the groups is needed afterwards.
        if self.options.dry_run:
            return self._groups()
        groups = list(self._groups())
        self._total = sum(group.bytes for group in groups)
        self._last = groups[-1] if groups else None
        self._meter = self.work.meter("merging", self._total)
        return groups

    def _groups(self) -> Iterator[MergeGroup]:
        limits = {name: compaction_limits(topic) for name, topic in self._limits.items()}
        chosen = [topic_id for topic_id, name in self._names.items() if name in limits]
        ids = None if len(chosen) == len(self._names) else chosen
        for rows, replaced in self.catalog.portions_with_replaced(PLAN_COLUMNS, topic_ids=ids):
            plan = plan_groups(rows, replaced.select(REPLACED_COLUMNS), limits, now_ms=self.work.clock_ms)
            for topic, reasons in plan.left.items():
                self.tally.leave(topic, reasons)
            yield from plan.groups

    def count(self, plan: MergeGroup) -> None:
        where = plan.topic_id, plan.partition
        new = len(plan.parts)
        self.tally.add(plan.topic, where, merges=1, segments=plan.row_count, new_segments=new, bytes=plan.bytes)

    def compact(self, wave: Sequence[MergeGroup]) -> list[RowChange]:
        merges = merges_of(self.catalog, wave)
        items = [
            (merge.group.topic, merge.group.bytes, item_of(number, merge, self.run_id))
            for number, merge in enumerate(merges)
        ]
        executor = self.workers.for_bytes(self._total)
        tasks = spread_over_tasks(items, self._limits, executor.parallelism)
        self._meter.begin(len(tasks), sum(merge.group.bytes for merge in merges))
        place = Place(url=self.archive.url, storage=self.archive.options)
        outcomes = executor.run(
            merge_groups,
            MergeContext(place=place, compression=self.compression),
            tasks,
            name=f"compact-{uuid.uuid4().hex[:12]}",
            meter=self._meter,
            stop=self.work.stop,
            gentle=True,
        )
        changes = []
        now = now_ms()
        for outcome in outcomes:
            merge, group = merges[outcome.number], merges[outcome.number].group
            if outcome.failure is not None:
                if self.work.is_stopped() and outcome.failure.retryable:
                    continue
                where = group.topic, group.partition, group.base_offset, group.end_offset
                self.tally.faults.append(CompactFault.of(outcome.failure, *where))
                continue
            new = merge.result(outcome.written, run_id=self.run_id, now_ms=now)
            changes.append(RowChange(topic=group.topic, read=merge.rows, gone=merge.rows, new=new, joints=merge.joints))
        return changes

    def records_run(self, wave: Sequence[MergeGroup], changes: Sequence[RowChange]) -> bool:
        ends = self.work.is_stopped() or wave[-1] is self._last
        return ends and bool(changes or self.tally.commits)

    def commit(self, rows: Sequence[Segment | Gap | Run], changes: Sequence[RowChange], *, again: bool) -> None:
        gone = encode_rows(row for change in changes for row in change.gone)
        # Merged rows that nobody touches stay true, whatever a backup adds meanwhile.
        self.catalog.commit(rows, replaced=gone, still_valid=(lambda: True) if again else None)

    def statistics(self, changes: Sequence[RowChange]) -> dict[str, Any]:
        before = self.tally.report()
        gone = [row for change in changes for row in change.gone]
        new = [row for change in changes for row in change.new if isinstance(row, Segment)]
        topics = {topic.topic for topic in before.topics if topic.merges} | {change.topic for change in changes}
        return {
            "topics": len(topics),
            "records": before.total("records") + sum(row.records for row in gone),
            "bytes": before.total("new_bytes") + sum(row.bytes for row in new),
            "merges": before.total("merges") + len(changes),
            "segments_before": before.total("segments") + len(gone),
            "segments_after": before.total("new_segments") + len(new),
        }


def merges_of(catalog: Catalog, wave: Sequence[MergeGroup]) -> list[Merge]:
    """Return the groups with their rows, which are read from the catalog one topic at a time."""
    found: list[Merge] = []
    for topic_id in dict.fromkeys(group.topic_id for group in wave):
        mine = [group for group in wave if group.topic_id == topic_id]
        rows = _rows_of(catalog, topic_id, mine)
        for group in mine:
            segments = tuple(rows[group.partition, base] for base in group.bases if (group.partition, base) in rows)
            if len(segments) == len(group.bases):
                found.append(Merge(group=group, rows=segments))
    return found


def _rows_of(catalog: Catalog, topic_id: str, groups: Sequence[MergeGroup]) -> dict[tuple[int, int], Segment]:
    partitions = pa.array(sorted({group.partition for group in groups}), pa.int32())
    bases = pa.array(sorted({base for group in groups for base in group.bases}), pa.int64())
    table = catalog.rows(topic_id=topic_id, columns=SCHEMA.names)
    wanted = pc.and_(pc.equal(table["kind"], Kind.DATA), pc.is_in(table["partition"], value_set=partitions))
    wanted = pc.and_(wanted, pc.is_in(table["base_offset"], value_set=bases))
    rows = decode_rows(table.filter(wanted))
    return {(row.partition, row.base_offset): row for row in rows if isinstance(row, Segment)}


def item_of(number: int, merge: Merge, run_id: str) -> MergeItem:
    """Return a merge as a task gets it."""
    group = merge.group
    nowhere = [Written(path="", position=0, bytes=0, raw_bytes=0, digest="")] * len(merge.parts)
    return MergeItem(
        number=number,
        topic=group.topic,
        topic_id=group.topic_id,
        partition=group.partition,
        parts=tuple(tuple(slice_of(row) for row in part) for part in merge.parts),
        slices=tuple(slice_of(row) for row in merge.result(nowhere, run_id=run_id, now_ms=0)),
        run_id=run_id,
        level=group.level,
    )


def compact(
    *,
    archive: str | Path | None = None,
    config: Config | Path | str | None = None,
    storage: StorageConfig | None = None,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    **options: Unpack[CompactKeywords],
) -> CompactReport:
    """Merge small segments of an archive into large ones. No record and no offset changes.

    With `by_key=True`: keep only the newest record of each key of compacted topics.

    Args:
        archive: a folder or a URL, in maxbrod's own layout or in the layout parquet.
        config: a configuration, or the path of a configuration file. All other arguments override it.
        storage: how to reach the archive, beyond its URL.
        session: a Spark session to use. It stays open.
        on_progress: called with each step.
        options: the options of `maxbrod compact`, such as `topics` or `min_segment_size`; docs/reference has them all.

    Returns:
        The report. Check `.exit_code`: damaged segments are reported in `.faults`, not raised.

    Raises:
        MaxbrodError: nothing could be compacted.
    """
    whole = config_with(config, "compact", options, archive=archive, storage=storage)
    with Work(whole, session=session, on_progress=on_progress) as work:
        return compact_archive(work)
