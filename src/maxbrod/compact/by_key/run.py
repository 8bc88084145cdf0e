"""A compaction by key: plan, compact on Spark, commit. In waves of whole partitions, each of which is one commit.

Rows that are compacted are retired: as of runs before the compaction the archive returns them, until they are pruned. A
partition changes as a whole or not at all, because a tombstone may go only together with the records that it deletes.
If another writer commits in between, the rows and all holds are looked up again, and what still applies is committed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final

from maxbrod.archive.holds import HOLD_COLUMNS, active_holds
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshots import find_moment, find_run, last_snapshot_run, read_snapshot
from maxbrod.archive.upkeep import read_clocks
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, encode_rows, new_run_id, slice_of
from maxbrod.compact.by_key.job import compact_groups
from maxbrod.compact.by_key.plan import PartitionPlan, Policy, hole_offsets_min, plan_partition, policy_of, tile
from maxbrod.compact.by_key.task import ByKeySettings, GroupItem, GroupOutcome
from maxbrod.compact.plan.joining import IDENTITY_COLUMNS
from maxbrod.compact.report import CompactedTopic, CompactFault, CompactReport, why_larger
from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import PartitionId, now_ms
from maxbrod.work.preflight import needs_storage
from maxbrod.work.progress import OnProgress, Progress
from maxbrod.work.session import Session, open_configured, parallelism_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.config import Config

COMMAND: Final = "compact"
_WAVE_ROWS: Final = 100_000
"""Rows of one commit, which are held in memory and travel to workers."""
_TASKS_PER_CORE: Final = 2
_WRITTEN_ANEW: Final = "the records that stay are encoded anew, each batch in the codec of its topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Done:
    """A partition that has been compacted: the rows that go, and those that come."""

    plan: PartitionPlan
    gone: tuple[Segment, ...]
    new: tuple[Segment | Gap, ...]
    kept: int


@dataclass(slots=True, kw_only=True)
class _Figures:
    partitions: int = 0
    segments: int = 0
    bytes: int = 0
    records: int = 0
    new_segments: int = 0
    new_bytes: int = 0
    objects: int = 0
    removed: int = 0
    left: Counter[str] = field(default_factory=Counter)


def compact_by_key(
    archive: Archive,
    config: Config,
    *,
    session: Session | None,
    on_progress: OnProgress,
    stop: threading.Event | None,
) -> CompactReport:
    """Compact the compacted topics of an archive. RefusedError: a named topic is not compacted."""
    return _ByKey(archive, config, on_progress, stop).run(session)


class _ByKey:
    def __init__(self, archive: Archive, config: Config, on_progress: OnProgress, stop: threading.Event | None) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self._archive, self._catalog = archive, archive.catalog
        self._config, self._options = config, config.compact
        self._on_progress, self._stop = on_progress, stop
        Compression.parse(self._options.recompress)
        self._started_at = now_ms()
        self._run_id = ""
        """Each wave is a run of its own."""
        self._figures: dict[str, _Figures] = {}
        self._faults: list[CompactFault] = []
        self._overtaken = self._commits = 0
        self._committed: str | None = None
        self._bytes_done = 0
        self._cut, self._snapshot = self._find_cut()

    def _find_cut(self) -> tuple[Run, Snapshot]:
        runs = self._catalog.runs()
        cut = last_snapshot_run(runs) if self._options.cut is None else find_run(runs, self._options.cut)
        if cut is None:
            raise UsageError(
                "no run of this archive recorded a snapshot", hint="'maxbrod backup' records one with every run"
            )
        return cut, read_snapshot(self._archive.storage, cut)

    def run(self, session: Session | None) -> CompactReport:
        self._on_progress(Progress(phase="planning"))
        policies = self._policies()
        if self._options.dry_run:
            for plan in self._plans(policies):
                self._count(plan, plan.rows)
            return self._report()
        waves = _waves(self._plans(policies), self._options.commit_bytes)
        first = next(waves, None)
        if first is not None:
            with open_configured(
                self._config.spark,
                session,
                needs=needs_storage(self._archive.url, self._config.storage, writes=True),
                jvm_works=True,
                stop=self._stop,
            ) as working:
                wave: list[PartitionPlan] | None = first
                while wave is not None and not self._is_stopped():
                    self._compact(working, wave, policies)
                    wave = next(waves, None)
        return self._report()

    def _is_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _policies(self) -> dict[str, tuple[str, Policy]]:
        """The compacted topics that are chosen: their names and policies, by topic id."""
        moment = find_moment(self._archive.storage, self._catalog.runs(), None, needed=True)
        known = {} if moment.cluster is None else {each.topic_id: each for each in moment.cluster.topics}
        stored = self._catalog.topics()
        names = dict(zip(stored["topic_id"].to_pylist(), stored["topic"].to_pylist(), strict=True))
        chosen = select_names(set(names.values()), self._options.topics, self._options.exclude)
        found: dict[str, tuple[str, Policy]] = {}
        for topic_id, name in sorted(names.items(), key=lambda each: each[1]):
            topic = known.get(topic_id)
            policy = None if topic is None else policy_of(topic.effective, topic.configs)
            if name in chosen and policy is not None and policy.compacted:
                found[topic_id] = name, policy
        compacted = {name for name, _ in found.values()}
        wrong = [name for name in self._options.topics if name in chosen and name not in compacted]
        if wrong or (self._options.topics and not found):
            raise RefusedError(
                f"{wrong[0]} is not a compacted topic" if wrong else "none of these topics is compacted",
                object_name=self._archive.url,
                hint="topics whose archived cleanup.policy includes compact can be compacted by key; "
                "'maxbrod prune' removes old records of others",
            )
        return found

    def _plans(self, policies: Mapping[str, tuple[str, Policy]]) -> Iterator[PartitionPlan]:
        """The partitions that may change, one topic in memory at a time."""
        for topic_id, (topic, _) in policies.items():
            figures = self._figures.setdefault(topic, _Figures())
            table = self._catalog.rows(topic_id=topic_id)
            held = active_holds(self._archive).holders(table.select(HOLD_COLUMNS)) >= 0
            building = self._catalog.generations().get(topic_id)
            targets = {} if building is None or building.building is None else building.building.targets
            rows = [
                (row, is_held)
                for row, is_held in zip(decode_rows(table), held.tolist(), strict=True)
                if not isinstance(row, Run)
            ]
            for partition, group in groupby(rows, key=lambda each: each[0].partition):
                mine = list(group)
                plan = plan_partition(
                    [row for row, _ in mine],
                    end=self._snapshot.ends.get(PartitionId(topic_id=topic_id, partition=partition), 0),
                    held={row.base_offset for row, is_held in mine if is_held},
                    borders=[targets[partition]] if partition in targets else (),
                )
                figures.left.update(plan.left)
                if plan.groups:
                    yield plan

    def _compact(
        self, session: Session, wave: Sequence[PartitionPlan], policies: Mapping[str, tuple[str, Policy]]
    ) -> None:
        self._run_id = new_run_id()
        items = list(self._items(wave, policies))
        size = sum(plan.bytes for plan in wave)
        tasks = max(1, min(len(items), _TASKS_PER_CORE * parallelism_of(self._config.spark.master, session)))

        def on_done(count: int) -> None:
            done = self._bytes_done + size * min(count, 3 * tasks) // (3 * tasks)
            self._on_progress(Progress(phase="compacting", bytes_done=done))

        on_done(0)
        settings = ByKeySettings(
            archive_url=self._archive.url,
            storage=self._archive.options,
            run_id=self._run_id,
            compression=self._options.recompress,
            hole_offsets_min=hole_offsets_min(group for plan in wave for group in plan.groups),
        )
        try:
            found = compact_groups(session, settings, items, tasks=tasks, on_done=on_done, stop=self._stop)
        except UnavailableError:
            if self._is_stopped():
                return
            raise
        self._commit(self._done(wave, found))
        self._bytes_done += size

    def _items(self, wave: Sequence[PartitionPlan], policies: Mapping[str, tuple[str, Policy]]) -> Iterator[GroupItem]:
        number = 0
        # A run whose clock was ahead makes no tombstone older than it is.
        until_ms = min(self._cut.started_at, read_clocks(self._archive, ask_store=True, demand=False).earliest_ms)
        for place, plan in enumerate(wave):
            horizon = until_ms - policies[plan.topic_id][1].delete_retention_ms
            for group in plan.groups:
                yield GroupItem(
                    number=number,
                    place=place,
                    topic=plan.topic,
                    topic_id=plan.topic_id,
                    partition=plan.partition,
                    slices=tuple(slice_of(row) for row in group.rows),
                    last=group.last,
                    tombstones_end=plan.tombstones_end,
                    horizon_ms=horizon,
                )
                number += 1

    def _done(self, wave: Sequence[PartitionPlan], found: Sequence[GroupOutcome]) -> list[_Done]:
        """The partitions that change. Those that cannot be read are reported and left out."""
        outcomes = {each.number: each for each in found}
        number, now = 0, now_ms()
        done: list[_Done] = []
        for plan in wave:
            mine = [outcomes[number + place] for place in range(len(plan.groups))]
            number += len(plan.groups)
            failed = [each for each in mine if each.failure is not None]
            if failed:
                self._faults.append(_fault(plan, failed[0]))
                continue
            changed = [(group, each) for group, each in zip(plan.groups, mine, strict=True) if each.changed]
            if not changed:
                continue
            new = [row for group, each in changed for row in tile(group, each.written, run_id=self._run_id, now_ms=now)]
            done.append(
                _Done(
                    plan=plan,
                    gone=tuple(row for group, _ in changed for row in group.rows),
                    new=tuple(new),
                    kept=sum(each.kept for _, each in changed),
                )
            )
        return done

    def _commit(self, done: list[_Done]) -> None:
        self._on_progress(Progress(phase="committing"))

        def commit(attempt: int) -> None:
            nonlocal done
            kept = self._not_held(self._still_there(done) if attempt else done)
            self._overtaken += len(done) - len(kept)
            done = kept
            if not done:
                return
            self._catalog.commit(
                [*(row for each in done for row in each.new), self._run_row(done)],
                retired=[row for each in done for row in each.gone],
                still_valid=(lambda: len(self._not_held(done)) == len(done)) if attempt else None,
            )
            self._commits += 1
            self._committed = self._run_id
            for each in done:
                self._count(each.plan, each.gone, each)

        commit_with_retries(self._catalog, commit)

    def _not_held(self, done: list[_Done]) -> list[_Done]:
        """Without partitions of which a hold protects a row that would go."""
        holds = active_holds(self._archive)
        if not holds.active:
            return done
        return [each for each in done if not (holds.holders(encode_rows(each.gone).select(HOLD_COLUMNS)) >= 0).any()]

    def _still_there(self, done: Sequence[_Done]) -> list[_Done]:
        """The partitions whose rows no other writer has touched."""
        found: set[tuple[object, ...]] = set()
        for topic_id in {each.plan.topic_id for each in done}:
            rows = self._catalog.rows(topic_id=topic_id, columns=IDENTITY_COLUMNS)
            found.update(zip(*(rows[name].to_pylist() for name in IDENTITY_COLUMNS), strict=True))

        def is_there(row: Segment) -> bool:
            return tuple(getattr(row, name) for name in IDENTITY_COLUMNS) in found

        # All rows that were read count, also those that stay: a tombstone went because of them.
        return [each for each in done if all(map(is_there, each.plan.rows))]

    def _run_row(self, done: Sequence[_Done]) -> Run:
        now = now_ms()
        gone = [row for each in done for row in each.gone]
        return Run(
            run_id=self._run_id,
            started_at=self._started_at,
            finished_at=now,
            snapshot=None,
            statistics={
                "command": COMMAND,
                "by_key": True,
                "exit_code": self._report().exit_code,
                "cut": self._cut.run_id,
                "topics": len({each.plan.topic_id for each in done}),
                "partitions": len(done),
                "records": sum(row.records for row in gone),
                "removed": sum(row.records for row in gone) - sum(each.kept for each in done),
                "bytes": sum(row.bytes for each in done for row in each.new if isinstance(row, Segment)),
            },
            written_at=now,
        )

    def _count(self, plan: PartitionPlan, gone: Sequence[Segment], done: _Done | None = None) -> None:
        figures = self._figures.setdefault(plan.topic, _Figures())
        figures.partitions += 1
        figures.segments += len(gone)
        figures.bytes += sum(row.bytes for row in gone)
        figures.records += sum(row.records for row in gone)
        if done is not None:
            new = [row for row in done.new if isinstance(row, Segment)]
            figures.new_segments += len(new)
            figures.new_bytes += sum(row.bytes for row in new)
            figures.objects += len({row.path for row in new})
            figures.removed += sum(row.records for row in gone) - done.kept

    def _report(self) -> CompactReport:
        dry = self._options.dry_run
        return CompactReport(
            archive=self._archive.url,
            layout=NATIVE,
            run_id=self._committed,
            dry_run=dry,
            started_at_ms=self._started_at,
            finished_at_ms=now_ms(),
            topics=tuple(
                CompactedTopic(
                    topic=topic,
                    partitions=each.partitions,
                    merges=each.objects,
                    segments=each.segments,
                    new_segments=each.new_segments,
                    bytes=each.bytes,
                    new_bytes=None if dry else each.new_bytes,
                    records=each.records,
                    left=dict(each.left),
                    removed=None if dry else each.removed,
                    larger=None
                    if dry
                    else why_larger(each.bytes, each.new_bytes, self._options.recompress, _WRITTEN_ANEW),
                )
                for topic, each in sorted(self._figures.items())
            ),
            faults=tuple(self._faults),
            overtaken=self._overtaken,
            commits=self._commits,
            interrupted=self._is_stopped(),
            cut=self._cut.run_id,
        )


def _waves(plans: Iterator[PartitionPlan], bytes_max: int) -> Iterator[list[PartitionPlan]]:
    wave: list[PartitionPlan] = []
    size = rows = 0
    for plan in plans:
        count = len(plan.rows)
        if wave and (size + plan.bytes > bytes_max or rows + count > _WAVE_ROWS):
            yield wave
            wave, size, rows = [], 0, 0
        wave.append(plan)
        size += plan.bytes
        rows += count
    if wave:
        yield wave


def _fault(plan: PartitionPlan, outcome: GroupOutcome) -> CompactFault:
    failure = outcome.failure
    assert failure is not None  # noqa: S101 - the caller has looked
    return CompactFault(
        topic=plan.topic,
        partition=plan.partition,
        base_offset=plan.rows[0].base_offset,
        end_offset=plan.rows[-1].end_offset,
        message=failure.message,
        object_name=failure.object_name,
        offset=failure.offset,
        damaged=failure.damaged,
        hint=failure.hint,
    )
