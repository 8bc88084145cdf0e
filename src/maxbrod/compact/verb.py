"""Compacts an archive: plan, merge, commit. In waves, each of which is committed as a whole.

Nothing is visible before a commit, and nothing is deleted: rows that were replaced leave the catalog, readers of older
versions go on with the old objects, and `gc` deletes those after its grace time. If another writer commits in between,
the rows that were merged are looked up again. If they are still there, the commit is repeated without merging again.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.archive.selection import select_names
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.rows import Run, Segment, decode_rows, encode_rows, new_run_id, slice_of
from maxbrod.catalog.schema import SCHEMA, Kind
from maxbrod.compact.by_key.verb import compact_by_key
from maxbrod.compact.plan.groups import PLAN_COLUMNS, REPLACED_COLUMNS, Group, Plan, join_plans, plan_groups
from maxbrod.compact.plan.joining import Merge, Written, identities_of, still_applies
from maxbrod.compact.report import CompactFault, CompactReport, Tally
from maxbrod.compact.settings import TopicSettings, settings_of, tasks_of
from maxbrod.compact.task import MergeContext, MergeItem, MergeOutcome, Source, merge_groups
from maxbrod.compact.tree import compact_tree
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import PartitionId, now_ms
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, silent
from maxbrod.work.reach import Place
from maxbrod.work.windows import cut_waves
from maxbrod.work.work import Work

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.work.executor import Executor
    from maxbrod.work.progress import Meter
    from maxbrod.work.session import Session

COMMAND: Final = "compact"
PARQUET: Final = "parquet"
_WAVE_ROWS: Final = 100_000
"""Rows of one commit, which are held in memory and travel to workers."""
_SHARED_FRAMES: Final = "segments that do not shrink share objects in frames"
_SOURCE_FIELDS: Final = (
    *("path", "position", "bytes", "raw_bytes", "base_offset", "end_offset", "records", "codec", "digest"),
)


def compact_archive(
    config: Config,
    *,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    clock_ms: int | None = None,
) -> CompactReport:
    """Compact an archive as the configuration says. `clock_ms` is the current time, by which ages are judged."""
    with Work(config, session=session, on_progress=on_progress, stop=stop, clock_ms=clock_ms) as work:
        return compact(work)


def compact(work: Work) -> CompactReport:
    """Merge small segments into few large ones; with `by_key`, keep only the newest record of each key."""
    config, options = work.config, work.config.compact
    archive = open_archive(work.archive_url, config.storage, layout=config.layout, groups=False)
    if options.cut is not None and not options.by_key:
        raise UsageError("--cut is given without --by-key", hint="segments are merged whatever run wrote them")
    if archive.survey is not None:
        _refuse_layout(archive, archive.survey.layout, by_key=options.by_key)
        return compact_tree(work, archive)
    if not options.dry_run:
        archive = open_for_writing(archive.url, config.storage, single_writer=options.single_writer)
    return compact_by_key(work, archive) if options.by_key else _Merging(work, archive).run()


def _refuse_layout(archive: Archive, layout: str, *, by_key: bool) -> None:
    if by_key:
        raise UsageError(
            f"an archive in the layout {layout} cannot be compacted by key",
            object_name=archive.url,
            hint="'maxbrod convert' makes one of maxbrod's own layout of it",
        )
    if layout != PARQUET:
        raise UsageError(
            f"segments of the layout {layout} cannot be merged",
            object_name=archive.url,
            hint="archives of the layouts kafka and parquet can; 'maxbrod convert' makes one of any other",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merged:
    """A group that has been merged, and is not committed yet."""

    merge: Merge
    written: tuple[Written, ...]


class _Merging:
    def __init__(self, work: Work, archive: Archive) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self._work, self._options = work, work.config.compact
        self._archive, self._catalog = archive, archive.catalog
        self._compression = Compression.parse(self._options.recompress)
        self._run_id = new_run_id()
        self._tally = Tally(work, archive.url, NATIVE, why_larger=_SHARED_FRAMES)
        self._recorded = False
        """The run has its own row in the catalog."""

    def run(self) -> CompactReport:
        self._work.tell("planning")
        named = self._catalog.topics()
        names = dict(zip(named["topic_id"].to_pylist(), named["topic"].to_pylist(), strict=True))
        chosen = select_names(set(names.values()), self._options.topics, self._options.exclude)
        settings = {
            name: limits for name, limits in settings_of(self._options, names.values()).items() if name in chosen
        }
        plans = self._plans(names, settings)
        # A dry run counts portion by portion: nothing of the groups is needed afterwards.
        plan = join_plans(map(self._estimate, plans) if self._options.dry_run else plans)
        if plan.groups:
            self._merge_all(plan.groups, settings)
        for topic, reasons in plan.left.items():
            self._tally.of(topic).left.update(reasons)
        return self._tally.report()

    # Planning

    def _plans(self, names: Mapping[str, str], settings: Mapping[str, TopicSettings]) -> Iterator[Plan]:
        """Yield what to merge, for one portion of the chosen topics after the other. `names` is by topic id."""
        limits = {name: topic.limits for name, topic in settings.items()}
        chosen = [topic_id for topic_id, name in names.items() if name in limits]
        ids = None if len(chosen) == len(names) else chosen
        for rows, replaced in self._catalog.portions_with_replaced(PLAN_COLUMNS, topic_ids=ids):
            yield plan_groups(rows, replaced.select(REPLACED_COLUMNS), limits, now_ms=self._work.clock_ms)

    def _estimate(self, plan: Plan) -> Plan:
        """Count the groups, and return the plan without them."""
        for group in plan.groups:
            self._tally.of(group.topic).add(
                (group.topic_id, group.partition), segments=len(group.bases), new=len(group.parts), size=group.bytes
            )
        return replace(plan, groups=())

    # Merging

    def _merge_all(self, groups: Sequence[Group], settings: Mapping[str, TopicSettings]) -> None:
        total = sum(group.bytes for group in groups)
        needs = needs_storage(self._archive.url, self._work.config.storage, writes=True)
        executor, meter = self._work.workers(needs).for_bytes(total), self._work.meter("merging", total)
        waves = list(
            cut_waves(
                groups,
                bytes_of=lambda group: group.bytes,
                bytes_max=self._options.commit_bytes,
                rows_of=lambda group: len(group.bases),
                rows_max=_WAVE_ROWS,
            )
        )
        for number, wave in enumerate(waves):
            if self._work.is_stopped():
                break
            try:
                merged = self._merge(executor, meter, merges_of(self._catalog, wave), settings)
            except UnavailableError:
                if self._work.is_stopped():
                    break
                raise
            self._commit(merged, last=number == len(waves) - 1)
        if self._tally.commits and not self._recorded:
            self._commit([], last=True)

    def _merge(
        self, executor: Executor, meter: Meter, merges: Sequence[Merge], settings: Mapping[str, TopicSettings]
    ) -> list[_Merged]:
        """Merge the groups of a wave; those that cannot be read are reported and left out."""
        items = [
            (merge.group.topic, merge.group.bytes, item_of(number, merge, self._run_id))
            for number, merge in enumerate(merges)
        ]
        tasks = tasks_of(items, settings, executor.parallelism)
        meter.begin(len(tasks), sum(merge.group.bytes for merge in merges))
        place = Place(url=self._archive.url, storage=self._archive.options)
        outcomes: list[MergeOutcome] = executor.run(
            merge_groups,
            MergeContext(place=place, compression=self._compression),
            tasks,
            name=f"compact-{uuid.uuid4().hex[:12]}",
            on_done=meter.tasks_done,
            stop=self._work.stop,
        )
        merged = []
        for outcome in outcomes:
            merge, group = merges[outcome.number], merges[outcome.number].group
            if outcome.failure is None:
                merged.append(_Merged(merge=merge, written=outcome.written))
                continue
            where = group.topic, group.partition, group.base_offset, group.end_offset
            self._tally.faults.append(CompactFault.of(outcome.failure, *where))
        return merged

    # Committing

    def _commit(self, merged: list[_Merged], *, last: bool) -> None:
        """Replace the merged rows. The last commit also records the run."""
        self._work.tell("committing")

        def commit(attempt: int) -> None:
            nonlocal merged
            if attempt:
                # A backup has committed meanwhile. Its rows are no concern of ours, unless it replaced some of these.
                kept = self._still_there(merged)
                self._tally.overtaken += len(merged) - len(kept)
                merged = kept
            if merged or (last and self._tally.commits):
                self._commit_once(merged, last=last, follows=attempt > 0)

        commit_with_retries(self._catalog, commit)

    def _commit_once(self, merged: Sequence[_Merged], *, last: bool, follows: bool) -> None:
        now = now_ms()
        records_run = last and not self._work.is_stopped()
        new: list[Segment | Run] = [
            row for one in merged for row in one.merge.result(one.written, run_id=self._run_id, now_ms=now)
        ]
        gone = encode_rows(row for one in merged for row in one.merge.rows)
        if records_run:
            new.append(self._run_row(merged, now))
        # Merged rows that nobody touches stay true, whatever a backup adds meanwhile.
        self._catalog.commit(new, replaced=gone, still_valid=(lambda: True) if follows else None)
        self._tally.committed(self._run_id)
        self._recorded = self._recorded or records_run
        for one in merged:
            group = one.merge.group
            self._tally.of(group.topic).add(
                (group.topic_id, group.partition),
                segments=len(one.merge.rows),
                new=len(one.written),
                size=group.bytes,
                new_size=sum(written.bytes for written in one.written),
                records=sum(row.records for row in one.merge.rows),
            )

    def _run_row(self, merged: Sequence[_Merged], now: int) -> Run:
        before = self._tally.report()
        rows = [row for one in merged for row in one.merge.rows]
        written = [part for one in merged for part in one.written]
        topics = {topic.topic for topic in before.topics} | {one.merge.group.topic for one in merged}
        return Run(
            run_id=self._run_id,
            started_at=self._work.started_at_ms,
            finished_at=now,
            snapshot=None,
            statistics={
                "command": COMMAND,
                "exit_code": before.exit_code,
                "topics": len(topics),
                "records": before.total("records") + sum(row.records for row in rows),
                "bytes": before.total("new_bytes") + sum(part.bytes for part in written),
                "merges": before.total("merges") + len(merged),
                "segments_before": before.total("segments") + len(rows),
                "segments_after": before.total("new_segments") + len(written),
            },
            written_at=now,
        )

    def _still_there(self, merged: Sequence[_Merged]) -> list[_Merged]:
        """Return the merges whose rows no other writer has touched."""
        found = identities_of(self._catalog, {one.merge.group.topic_id for one in merged})
        replaced = self._catalog.replaced().select(list(REPLACED_COLUMNS))
        edges: dict[PartitionId, set[int]] = {}
        columns = (replaced[name].to_pylist() for name in REPLACED_COLUMNS)
        for topic_id, partition, base, end in zip(*columns, strict=True):
            edges.setdefault(PartitionId(topic_id=topic_id, partition=partition), set()).update((base, end))
        return [one for one in merged if still_applies(one.merge, found, edges)]


def merges_of(catalog: Catalog, wave: Sequence[Group]) -> list[Merge]:
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


def _rows_of(catalog: Catalog, topic_id: str, groups: Sequence[Group]) -> dict[tuple[int, int], Segment]:
    partitions = pa.array(sorted({group.partition for group in groups}), pa.int32())
    table = catalog.rows(topic_id=topic_id, columns=SCHEMA.names)
    wanted = pc.and_(pc.equal(table["kind"], Kind.DATA), pc.is_in(table["partition"], value_set=partitions))
    bases = pa.array(sorted({base for group in groups for base in group.bases}), pa.int64())
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
        parts=tuple(tuple(_source(row) for row in part) for part in merge.parts),
        slices=tuple(slice_of(row) for row in merge.result(nowhere, run_id=run_id, now_ms=0)),
        run_id=run_id,
        level=group.level,
    )


def _source(row: Segment) -> Source:
    values: dict[str, Any] = {name: getattr(row, name) for name in _SOURCE_FIELDS}
    return Source(**values)
