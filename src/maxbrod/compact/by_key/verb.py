"""A compaction by key: plan, compact on Spark, commit. In waves of whole partitions, each of which is one commit.

Rows that are compacted are retired: as of runs before the compaction the archive returns them, until they are pruned. A
partition changes as a whole or not at all, because a tombstone may go only together with the records that it deletes.
If another writer commits in between, the rows and all holds are looked up again, and what still applies is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from maxbrod.compact.plan.joining import IDENTITY_COLUMNS, identities_of
from maxbrod.compact.report import CompactFault, CompactReport, Tally
from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.registry import NATIVE
from maxbrod.model import PartitionId, now_ms
from maxbrod.work.preflight import needs_storage
from maxbrod.work.session import Session, parallelism_of
from maxbrod.work.windows import cut_waves

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.work.progress import Meter
    from maxbrod.work.work import Work

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


def compact_by_key(work: Work, archive: Archive) -> CompactReport:
    """Compact the compacted topics of an archive. RefusedError: a named topic is not compacted."""
    return _ByKey(work, archive).run()


class _ByKey:
    def __init__(self, work: Work, archive: Archive) -> None:
        assert isinstance(archive.catalog, Catalog)  # noqa: S101 - of our own layout
        self._work, self._options = work, work.config.compact
        self._archive, self._catalog = archive, archive.catalog
        Compression.parse(self._options.recompress)
        self._run_id = ""
        """Each wave is a run of its own."""
        self._tally = Tally(work, archive.url, NATIVE, why_larger=_WRITTEN_ANEW)
        self._cut, self._snapshot = self._find_cut()

    def _find_cut(self) -> tuple[Run, Snapshot]:
        runs = self._catalog.runs()
        cut = last_snapshot_run(runs) if self._options.cut is None else find_run(runs, self._options.cut)
        if cut is None:
            raise UsageError(
                "no run of this archive recorded a snapshot", hint="'maxbrod backup' records one with every run"
            )
        return cut, read_snapshot(self._archive.storage, cut)

    def run(self) -> CompactReport:
        self._work.tell("planning")
        policies = self._policies()
        plans = self._plans(policies)
        if self._options.dry_run:
            for plan in plans:
                self._count(plan, plan.rows)
            return self._report()
        needs = needs_storage(self._archive.url, self._work.config.storage, writes=True)
        workers, meter = self._work.workers(needs, jvm_works=True), self._work.meter("compacting")
        waves = cut_waves(
            plans,
            bytes_of=lambda plan: plan.bytes,
            bytes_max=self._options.commit_bytes,
            rows_of=lambda plan: len(plan.rows),
            rows_max=_WAVE_ROWS,
        )
        for wave in waves:
            if self._work.is_stopped():
                break
            self._compact(workers.session(), meter, wave, policies)
        return self._report()

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
            figures = self._tally.of(topic)
            figures.records = 0
            if not self._options.dry_run:
                figures.new_bytes = figures.removed = 0
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
        self,
        session: Session,
        meter: Meter,
        wave: Sequence[PartitionPlan],
        policies: Mapping[str, tuple[str, Policy]],
    ) -> None:
        self._run_id = new_run_id()
        items = list(self._items(wave, policies))
        tasks = max(1, min(len(items), _TASKS_PER_CORE * parallelism_of(self._work.config.spark.master, session)))
        # Spark counts the tasks of three stages: reading, finding the newest, and writing.
        meter.begin(3 * tasks, sum(plan.bytes for plan in wave))
        settings = ByKeySettings(
            archive_url=self._archive.url,
            storage=self._archive.options,
            run_id=self._run_id,
            compression=self._options.recompress,
            hole_offsets_min=hole_offsets_min(group for plan in wave for group in plan.groups),
        )
        try:
            found = compact_groups(
                session, settings, items, tasks=tasks, on_done=meter.tasks_done, stop=self._work.stop
            )
        except UnavailableError:
            if self._work.is_stopped():
                return
            raise
        self._commit(self._done(wave, found))

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
            failed = next((outcome.failure for outcome in mine if outcome.failure is not None), None)
            if failed is not None:
                where = plan.topic, plan.partition, plan.rows[0].base_offset, plan.rows[-1].end_offset
                self._tally.faults.append(CompactFault.of(failed, *where))
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
        self._work.tell("committing")

        def commit(attempt: int) -> None:
            nonlocal done
            kept = self._not_held(self._still_there(done) if attempt else done)
            self._tally.overtaken += len(done) - len(kept)
            done = kept
            if not done:
                return
            self._catalog.commit(
                [*(row for each in done for row in each.new), self._run_row(done)],
                retired=[row for each in done for row in each.gone],
                still_valid=(lambda: len(self._not_held(done)) == len(done)) if attempt else None,
            )
            self._tally.committed(self._run_id)
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
        found = identities_of(self._catalog, {each.plan.topic_id for each in done})

        def is_there(row: Segment) -> bool:
            return tuple(getattr(row, name) for name in IDENTITY_COLUMNS) in found

        # All rows that were read count, also those that stay: a tombstone went because of them.
        return [each for each in done if all(map(is_there, each.plan.rows))]

    def _run_row(self, done: Sequence[_Done]) -> Run:
        now = now_ms()
        gone = [row for each in done for row in each.gone]
        return Run(
            run_id=self._run_id,
            started_at=self._work.started_at_ms,
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
        """Count a partition; without `done`, as it would be read."""
        new = [] if done is None else [row for row in done.new if isinstance(row, Segment)]
        records = sum(row.records for row in gone)
        self._tally.of(plan.topic).add(
            (plan.topic_id, plan.partition),
            segments=len(gone),
            size=sum(row.bytes for row in gone),
            merges=len({row.path for row in new}),
            new=len(new),
            new_size=None if done is None else sum(row.bytes for row in new),
            records=records,
            removed=None if done is None else records - done.kept,
        )

    def _report(self) -> CompactReport:
        return self._tally.report(cut=self._cut.run_id)
