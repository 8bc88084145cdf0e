"""A compaction: plan, merge on Spark, commit. In waves, each of which is committed as a whole.

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
from maxbrod.compact.by_key.run import compact_by_key
from maxbrod.compact.job import MergeContext, merge_groups
from maxbrod.compact.plan.groups import PLAN_COLUMNS, REPLACED_COLUMNS, Group, Plan, join_plans, plan_groups
from maxbrod.compact.plan.joining import IDENTITY_COLUMNS, Merge, Written, still_applies
from maxbrod.compact.report import CompactFault, CompactReport, Figures
from maxbrod.compact.settings import TopicSettings, settings_of, tasks_of
from maxbrod.compact.task import MergeItem, MergeOutcome, Source
from maxbrod.compact.tree_run import compact_tree
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import PartitionId, now_ms
from maxbrod.work.executor import Executor, Workers
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, Progress, silent
from maxbrod.work.reach import Place

if TYPE_CHECKING:
    import threading
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.work.session import Session

COMMAND: Final = "compact"
PARQUET: Final = "parquet"
_WAVE_ROWS: Final = 100_000
"""Rows of one commit, which are held in memory and travel to workers."""
_SOURCE_FIELDS: Final = (
    "path",
    "position",
    "bytes",
    "raw_bytes",
    "base_offset",
    "end_offset",
    "records",
    "codec",
    "digest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """A group that has been merged."""

    merge: Merge
    written: tuple[Written, ...]


def compact_archive(
    config: Config,
    *,
    session: Session | None = None,
    on_progress: OnProgress = silent,
    stop: threading.Event | None = None,
    clock_ms: int | None = None,
) -> CompactReport:
    """Compact an archive as the configuration says. `clock_ms` is the current time, by which ages are judged."""
    if config.archive is None:
        raise UsageError("no archive is named", hint="give --archive URL, or 'archive: URL' in the configuration file")
    options = config.compact
    archive = open_archive(config.archive, config.storage, layout=config.layout, groups=False)
    clock_ms = now_ms() if clock_ms is None else clock_ms
    if options.cut is not None and not options.by_key:
        raise UsageError("--cut is given without --by-key", hint="segments are merged whatever run wrote them")
    if archive.survey is not None:
        if options.by_key:
            raise UsageError(
                f"an archive in the layout {archive.survey.layout} cannot be compacted by key",
                object_name=archive.url,
                hint="'maxbrod convert' makes one of maxbrod's own layout of it",
            )
        if archive.survey.layout != PARQUET:
            raise UsageError(
                f"segments of the layout {archive.survey.layout} cannot be merged",
                object_name=archive.url,
                hint="archives of the layouts kafka and parquet can; 'maxbrod convert' makes one of any other",
            )
        return compact_tree(archive, config, session=session, on_progress=on_progress, stop=stop, clock_ms=clock_ms)
    if not options.dry_run:
        archive = open_for_writing(archive.url, config.storage, single_writer=options.single_writer)
    if options.by_key:
        return compact_by_key(archive, config, session=session, on_progress=on_progress, stop=stop)
    return _Compaction(archive, config, on_progress, stop, clock_ms).run(session)


class _Compaction:
    def __init__(
        self, archive: Archive, config: Config, on_progress: OnProgress, stop: threading.Event | None, clock_ms: int
    ) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self._archive, self._catalog = archive, archive.catalog
        self._config, self._options = config, config.compact
        self._compression = Compression.parse(config.compact.recompress)
        self._on_progress, self._stop = on_progress, stop
        self._clock_ms = clock_ms
        self._started_at = now_ms()
        self._run_id = new_run_id()
        self._figures = Figures(config.compact.recompress)
        self._faults: list[CompactFault] = []
        self._overtaken = self._commits = 0
        self._bytes_done = 0
        self._recorded = False

    def run(self, session: Session | None) -> CompactReport:
        self._on_progress(Progress(phase="planning"))
        named = self._catalog.topics()
        names = dict(zip(named["topic_id"].to_pylist(), named["topic"].to_pylist(), strict=True))
        settings = self._settings(set(names.values()))
        plans = self._plans(names, settings)
        if self._options.dry_run:
            # Counted portion by portion: nothing of the groups is needed afterwards.
            return self._report(join_plans(map(self._estimate, plans)).left)
        plan = join_plans(plans)
        if plan.groups:
            needs = needs_storage(self._archive.url, self._config.storage, writes=True)
            with Workers(
                self._config.spark, needs=needs, session=session, on_progress=self._on_progress, stop=self._stop
            ) as workers:
                self._merge_all(workers, settings, plan)
            if self._commits and not self._recorded:
                self._commit([], last=True)
        return self._report(plan.left)

    def _settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        chosen = select_names(topics, self._options.topics, self._options.exclude)
        return {name: each for name, each in settings_of(self._options, topics).items() if name in chosen}

    def _plans(self, names: Mapping[str, str], settings: Mapping[str, TopicSettings]) -> Iterator[Plan]:
        """What to merge, for one portion of the chosen topics after the other. `names` is by topic id."""
        limits = {name: each.limits for name, each in settings.items()}
        chosen = [topic_id for topic_id, name in names.items() if name in limits]
        ids = None if len(chosen) == len(names) else chosen
        for rows, replaced in self._catalog.portions_with_replaced(PLAN_COLUMNS, topic_ids=ids):
            yield plan_groups(rows, replaced.select(REPLACED_COLUMNS), limits, now_ms=self._clock_ms)

    def _estimate(self, plan: Plan) -> Plan:
        """Count the groups, and return the plan without them."""
        for group in plan.groups:
            self._figures.of(group.topic).add(
                (group.topic_id, group.partition),
                segments=len(group.bases),
                new=len(group.parts),
                size=group.bytes,
                new_size=None,
                records=None,
            )
        return replace(plan, groups=())

    def _replaced(self) -> pa.Table:
        return self._catalog.replaced().select(list(REPLACED_COLUMNS))

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _merge_all(self, workers: Workers, settings: Mapping[str, TopicSettings], plan: Plan) -> None:
        total = sum(group.bytes for group in plan.groups)
        executor = workers.for_bytes(total)
        waves = list(_waves(plan.groups, self._options.commit_bytes))
        for number, wave in enumerate(waves):
            if self._is_stopped():
                return
            try:
                done = self._merge(executor, merges_of(self._catalog, wave), settings, total)
            except UnavailableError:
                if self._is_stopped():
                    return
                raise
            self._commit(done, last=number == len(waves) - 1)
            self._bytes_done += sum(group.bytes for group in wave)

    def _merge(
        self,
        executor: Executor,
        merges: Sequence[Merge],
        settings: Mapping[str, TopicSettings],
        total: int,
    ) -> list[_Done]:
        """Merge the groups of a wave; those that cannot be read are reported and left out."""
        items = [
            (each.group.topic, each.group.bytes, item_of(number, each, self._run_id))
            for number, each in enumerate(merges)
        ]
        tasks = tasks_of(items, settings, executor.parallelism)
        size = sum(merge.group.bytes for merge in merges)

        def on_done(count: int) -> None:
            done = self._bytes_done + size * min(count, len(tasks)) // max(len(tasks), 1)
            self._on_progress(Progress(phase="merging", bytes_done=done, bytes_total=total))

        on_done(0)
        place = Place(url=self._archive.url, storage=self._archive.options)
        context = MergeContext(place=place, compression=self._compression)
        name = f"compact-{uuid.uuid4().hex[:12]}"
        outcomes = executor.run(merge_groups, context, tasks, name=name, on_done=on_done, stop=self._stop)
        self._faults += [
            _fault(merges[outcome.number].group, outcome) for outcome in outcomes if outcome.failure is not None
        ]
        return [
            _Done(merge=merges[outcome.number], written=outcome.written)
            for outcome in outcomes
            if outcome.failure is None
        ]

    def _commit(self, done: list[_Done], *, last: bool) -> None:
        """Replace the merged rows. The last commit also records the run."""
        self._on_progress(Progress(phase="committing"))

        def commit(attempt: int) -> None:
            nonlocal done
            if attempt:
                # A backup has committed meanwhile. Its rows are no concern of ours, unless it replaced some of these.
                kept = self._still_there(done)
                self._overtaken += len(done) - len(kept)
                done = kept
            if done or (last and self._commits):
                self._commit_once(done, last=last, follows=attempt > 0)
                self._count(done)

        commit_with_retries(self._catalog, commit)

    def _commit_once(self, done: Sequence[_Done], *, last: bool, follows: bool) -> None:
        now = now_ms()
        new: list[Segment | Run] = [
            row for each in done for row in each.merge.result(each.written, run_id=self._run_id, now_ms=now)
        ]
        if last and not self._is_stopped():
            new.append(self._run_row(done, now))
        gone = encode_rows(row for each in done for row in each.merge.rows)
        # Merged rows that nobody touches stay true, whatever a backup adds meanwhile.
        self._catalog.commit(new, replaced=gone, still_valid=(lambda: True) if follows else None)
        self._commits += 1
        self._recorded = self._recorded or (last and not self._is_stopped())

    def _run_row(self, done: Sequence[_Done], now: int) -> Run:
        figures = self._report({})
        rows = [row for each in done for row in each.merge.rows]
        written = [each for group in done for each in group.written]
        topics = {topic.topic for topic in figures.topics} | {each.merge.group.topic for each in done}
        return Run(
            run_id=self._run_id,
            started_at=self._started_at,
            finished_at=now,
            snapshot=None,
            statistics={
                "command": COMMAND,
                "exit_code": figures.exit_code,
                "topics": len(topics),
                "records": figures.total("records") + sum(row.records for row in rows),
                "bytes": figures.total("new_bytes") + sum(each.bytes for each in written),
                "merges": figures.total("merges") + len(done),
                "segments_before": figures.total("segments") + len(rows),
                "segments_after": figures.total("new_segments") + len(written),
            },
            written_at=now,
        )

    def _still_there(self, done: Sequence[_Done]) -> list[_Done]:
        """The merges whose rows no other writer has touched."""
        found: set[tuple[object, ...]] = set()
        for topic_id in {each.merge.group.topic_id for each in done}:
            rows = self._catalog.rows(topic_id=topic_id, columns=IDENTITY_COLUMNS)
            found.update(zip(*(rows[name].to_pylist() for name in IDENTITY_COLUMNS), strict=True))
        edges: dict[PartitionId, set[int]] = {}
        replaced = self._replaced()
        for topic_id, partition, base, end in zip(
            *(replaced[name].to_pylist() for name in REPLACED_COLUMNS), strict=True
        ):
            edges.setdefault(PartitionId(topic_id=topic_id, partition=partition), set()).update((base, end))
        return [each for each in done if still_applies(each.merge, found, edges)]

    def _count(self, done: Sequence[_Done]) -> None:
        for each in done:
            group = each.merge.group
            self._figures.of(group.topic).add(
                (group.topic_id, group.partition),
                segments=len(each.merge.rows),
                new=len(each.written),
                size=group.bytes,
                new_size=sum(written.bytes for written in each.written),
                records=sum(row.records for row in each.merge.rows),
            )

    def _report(self, left: Mapping[str, Mapping[str, int]]) -> CompactReport:
        return CompactReport(
            archive=self._archive.url,
            layout=NATIVE,
            run_id=self._run_id if self._commits else None,
            dry_run=self._options.dry_run,
            started_at_ms=self._started_at,
            finished_at_ms=now_ms(),
            topics=self._figures.topics(left),
            faults=tuple(self._faults),
            overtaken=self._overtaken,
            commits=self._commits,
            interrupted=self._is_stopped(),
        )


def _waves(groups: Sequence[Group], bytes_max: int) -> Iterator[list[Group]]:
    wave: list[Group] = []
    size = rows = 0
    for group in groups:
        if wave and (size + group.bytes > bytes_max or rows + len(group.bases) > _WAVE_ROWS):
            yield wave
            wave, size, rows = [], 0, 0
        wave.append(group)
        size += group.bytes
        rows += len(group.bases)
    if wave:
        yield wave


def merges_of(catalog: Catalog, wave: Sequence[Group]) -> list[Merge]:
    """The groups with their rows, which are read from the catalog one topic at a time."""
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


def _fault(group: Group, outcome: MergeOutcome) -> CompactFault:
    failure = outcome.failure
    assert failure is not None  # noqa: S101 - the caller has looked
    return CompactFault(
        topic=group.topic,
        partition=group.partition,
        base_offset=group.base_offset,
        end_offset=group.end_offset,
        message=failure.message,
        object_name=failure.object_name,
        offset=failure.offset,
        damaged=failure.damaged,
        hint=failure.hint,
    )
