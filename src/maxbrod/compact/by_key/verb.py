"""A compaction by key: of each key only the newest record stays. Spark finds those; the rest is as in every compaction.

Rows that are compacted are retired: as of runs before the compaction the archive returns them, until they are pruned. A
partition changes as a whole or not at all, because a tombstone may go only together with the records that it deletes.
If another writer commits in between, all holds are looked up again as well. Each wave is a run of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.archive import Archive
from maxbrod.archive.holds import HOLD_COLUMNS, active_holds
from maxbrod.archive.snapshots import find_moment, find_run, last_snapshot_run, read_snapshot
from maxbrod.archive.upkeep import read_clocks
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, encode_rows, new_run_id
from maxbrod.compact.by_key.job import compact_groups
from maxbrod.compact.by_key.plan import PartitionPlan, hole_offsets_min, plan_partition, policy_of, tile
from maxbrod.compact.by_key.task import ByKeySettings, GroupItem, GroupOutcome
from maxbrod.compact.report import CompactedTopic, CompactFault
from maxbrod.compact.waves import Compaction, RowChange
from maxbrod.errors import RefusedError, UsageError
from maxbrod.model import PartitionId, now_ms
from maxbrod.work.session import parallelism_of

if TYPE_CHECKING:
    from maxbrod.work.work import Work

_TASKS_PER_CORE: Final = 2
_WRITTEN_ANEW: Final = "the records that stay are encoded anew, each batch in the codec of its topic"


class ByKey(Compaction[PartitionPlan]):
    """Compacts the compacted topics of an archive up to a run, the cut."""

    def __init__(self, work: Work, archive: Archive) -> None:
        wanted, runs = work.config.compact.cut, archive.catalog.runs()
        cut = last_snapshot_run(runs) if wanted is None else find_run(runs, wanted)
        if cut is None:
            raise UsageError(
                "no run of this archive recorded a snapshot", hint="'maxbrod backup' records one with every run"
            )
        super().__init__(work, archive, why_larger=_WRITTEN_ANEW, cut=cut.run_id, jvm_works=True)
        self._cut, self._snapshot = cut, read_snapshot(archive.storage, cut)
        self._retention_ms: dict[str, int] = {}
        """The delete.retention.ms of each topic, by id."""
        self._meter = work.meter("compacting")

    def plan(self) -> Iterator[PartitionPlan]:
        """Return the partitions that may change, one topic in memory at a time."""
        for topic_id, topic in self._compacted_topics().items():
            written = None if self.options.dry_run else 0
            self.tally.begin(CompactedTopic(topic=topic, records=0, new_bytes=written, removed=written))
            table = self.catalog.rows(topic_id=topic_id)
            held = active_holds(self.archive).holders(table.select(HOLD_COLUMNS)) >= 0
            building = self.catalog.generations().get(topic_id)
            targets = {} if building is None or building.building is None else building.building.targets
            rows = [
                (row, is_held)
                for row, is_held in zip(decode_rows(table), held.tolist(), strict=True)
                if not isinstance(row, Run)
            ]
            for partition, group in groupby(rows, key=lambda row: row[0].partition):
                mine = list(group)
                plan = plan_partition(
                    [row for row, _ in mine],
                    end=self._snapshot.ends.get(PartitionId(topic_id=topic_id, partition=partition), 0),
                    held={row.base_offset for row, is_held in mine if is_held},
                    borders=[targets[partition]] if partition in targets else (),
                )
                self.tally.leave(topic, plan.left)
                if plan.groups:
                    yield plan

    def _compacted_topics(self) -> dict[str, str]:
        """Return the compacted topics that are chosen: their names, by id. RefusedError: a named one is not."""
        moment = find_moment(self.archive.storage, self.catalog.runs(), None, needed=True)
        known = {} if moment.cluster is None else {topic.topic_id: topic for topic in moment.cluster.topics}
        names, chosen = self.topic_names()
        found: dict[str, str] = {}
        for topic_id, name in sorted(names.items(), key=lambda item: item[1]):
            topic = known.get(topic_id)
            policy = None if topic is None else policy_of(topic.effective, topic.configs)
            if name in chosen and policy is not None and policy.compacted:
                found[topic_id], self._retention_ms[topic_id] = name, policy.delete_retention_ms
        wrong = [name for name in self.options.topics if name in chosen and name not in found.values()]
        if wrong or (self.options.topics and not found):
            raise RefusedError(
                f"{wrong[0]} is not a compacted topic" if wrong else "none of these topics is compacted",
                object_name=self.archive.url,
                hint="topics whose archived cleanup.policy includes compact can be compacted by key; "
                "'maxbrod prune' removes old records of others",
            )
        return found

    def count(self, plan: PartitionPlan) -> None:
        self.tally.add(
            plan.topic,
            (plan.topic_id, plan.partition),
            segments=plan.row_count,
            bytes=plan.bytes,
            records=sum(row.records for row in plan.rows),
        )

    def compact(self, wave: Sequence[PartitionPlan]) -> list[RowChange]:
        self.run_id = new_run_id()
        items = list(self._items(wave))
        session = self.workers.session()
        tasks = max(1, min(len(items), _TASKS_PER_CORE * parallelism_of(self.work.config.spark.master, session)))
        # Spark counts the tasks of three stages: reading, finding the newest, and writing.
        self._meter.begin(3 * tasks, sum(plan.bytes for plan in wave))
        settings = ByKeySettings(
            archive_url=self.archive.url,
            storage=self.archive.options,
            run_id=self.run_id,
            compression=self.compression,
            hole_offsets_min=hole_offsets_min(group for plan in wave for group in plan.groups),
        )
        found = compact_groups(session, settings, items, tasks=tasks, meter=self._meter, stop=self.work.stop)
        outcomes, numbers = {outcome.number: outcome for outcome in found}, count()
        changes = (self._change(plan, [outcomes[next(numbers)] for _ in plan.groups]) for plan in wave)
        return [change for change in changes if change is not None]

    def _items(self, wave: Sequence[PartitionPlan]) -> Iterator[GroupItem]:
        number, erasures = 0, self.archive.erasures()
        # A run whose clock was ahead makes no tombstone older than it is.
        until_ms = min(self._cut.started_at, read_clocks(self.archive, ask_store=True, demand=False).earliest_ms)
        for place, plan in enumerate(wave):
            for group in plan.groups:
                yield GroupItem(
                    number=number,
                    place=place,
                    topic=plan.topic,
                    topic_id=plan.topic_id,
                    partition=plan.partition,
                    slices=tuple(erasures.slice_of(row) for row in group.rows),
                    last=group.last,
                    tombstones_end=plan.tombstones_end,
                    horizon_ms=until_ms - self._retention_ms[plan.topic_id],
                )
                number += 1

    def _change(self, plan: PartitionPlan, outcomes: Sequence[GroupOutcome]) -> RowChange | None:
        """Return the change of a partition; None if nothing of it changes, or if it cannot be read."""
        failed = next((outcome.failure for outcome in outcomes if outcome.failure is not None), None)
        if failed is not None:
            where = plan.topic, plan.partition, plan.rows[0].base_offset, plan.rows[-1].end_offset
            self.tally.faults.append(CompactFault.of(failed, *where))
            return None
        changed = [pair for pair in zip(plan.groups, outcomes, strict=True) if pair[1].changed]
        if not changed:
            return None
        now = now_ms()
        gone = [row for group, _ in changed for row in group.rows]
        return RowChange(
            topic=plan.topic,
            # Also the rows that stay: a tombstone went because of them.
            read=plan.rows,
            gone=gone,
            new=[
                row
                for group, outcome in changed
                for row in tile(group, outcome.written, run_id=self.run_id, now_ms=now)
            ],
            removed=sum(row.records for row in gone) - sum(outcome.kept for _, outcome in changed),
        )

    def may_go(self, changes: Sequence[RowChange]) -> list[RowChange]:
        """Return the changes without those of partitions of which a hold protects a row that would go."""
        holds = active_holds(self.archive)
        return [
            change
            for change in changes
            if not holds.active or not (holds.holders(encode_rows(change.gone).select(HOLD_COLUMNS)) >= 0).any()
        ]

    def records_run(self, wave: Sequence[PartitionPlan], changes: Sequence[RowChange]) -> bool:
        del wave
        return bool(changes)

    def commit(self, rows: Sequence[Segment | Gap | Run], changes: Sequence[RowChange], *, again: bool) -> None:
        self.catalog.commit(
            rows,
            retired=[row for change in changes for row in change.gone],
            still_valid=(lambda: len(self.may_go(changes)) == len(changes)) if again else None,
        )

    def statistics(self, changes: Sequence[RowChange]) -> dict[str, Any]:
        return {
            "by_key": True,
            "cut": self._cut.run_id,
            "topics": len({change.gone[0].topic_id for change in changes}),
            "partitions": len(changes),
            "records": sum(row.records for change in changes for row in change.gone),
            "removed": sum(change.removed or 0 for change in changes),
            "bytes": sum(row.bytes for change in changes for row in change.new if isinstance(row, Segment)),
        }
