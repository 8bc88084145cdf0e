"""Copies chosen topics: their objects first, then their rows and a snapshot, in one commit of the target's own.

The target has the rows of the source as they are now, and one point in time for each copy: what the source has as of
older runs stays there. A pack holds slices of many topics, so the target gets packs of its own with those of the chosen
ones. What goes from the source is replaced at the target, and its ledger says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.copies import announce_version, withdraw_announcements
from maxbrod.archive.folders import CopyRule, folders_with
from maxbrod.archive.knowledge import decode_carried, encode_carried
from maxbrod.archive.selection import select_names
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode, gaps_of, snapshot_path
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.codec import Table
from maxbrod.catalog.commits import absent_rows
from maxbrod.catalog.copies import CopiedVersion, demand_descent, digest_of, read_entry, run_keys
from maxbrod.catalog.rows import Gap, Run, Segment, decode_rows, new_run_id
from maxbrod.catalog.schema import SCHEMA
from maxbrod.copy.plan import ObjectToCopy, cut_packs, differing_rows, lacking_rows, objects_of_chosen
from maxbrod.copy.steps import CopyPlan, CopySteps
from maxbrod.errors import OvertakenError, RefusedError
from maxbrod.model import PartitionId, now_ms
from maxbrod.registry.stored import copy_registry

COMMAND: Final = "copy"
_SOURCE: Final = "source"
Number = TypeVar("Number")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPlan(CopyPlan):
    """Also the rows that the commit adds and removes."""

    added: pa.Table
    """As the target has them."""
    gone: pa.Table
    ids: frozenset[str]
    """The ids of the chosen topics."""
    moment: Moment
    since_ms: int
    """When the first object was written."""
    onto: int
    """The version of the target's own catalog that it was planned on; -1 if there is none yet."""


class ChosenCopy(CopySteps):
    """The target is an archive of its own, with its own versions."""

    def demand_copy(self, table: Table) -> int | None:
        catalog = Catalog.find(self.target)
        if catalog is None:
            return None
        runs = catalog.runs()
        last = runs[-1] if runs else None
        if last is None and catalog.version == 0:
            # It was killed before its first commit.
            return None
        found = None if last is None or last.commit != catalog.version else _copied_version(last)
        if found is None:
            raise RefusedError(
                "somebody else has written to this copy of chosen topics",
                operation="copy",
                object_name=self.target.url,
                hint="name another DST",
            )
        demand_descent(self.source, Catalog(self.source, table), found, name=self.target.url)
        return found.version

    def plan(self, table: Table) -> ChosenPlan:
        with self.work.looking("planning"):
            options, now = self.work.config.copies, now_ms()
            catalog, there = Catalog(self.source, table), self.listing.refresh()
            runs = catalog.runs()
            moment = find_moment(self.source, runs, None)
            names = dict(zip(*(catalog.topics()[name].to_pylist() for name in ("topic_id", "topic")), strict=True))
            known = {**({} if moment.snapshot is None else moment.snapshot.topics), **names}
            chosen = select_names(known.values(), options.topics, options.exclude, may_come=options.follow)
            ids = frozenset(topic_id for topic_id, name in known.items() if name in chosen)
            copied = Catalog.find(self.target)
            rows = catalog.rows(topic_ids=ids, columns=SCHEMA.names) if ids else SCHEMA.empty_table()
            before = SCHEMA.empty_table() if copied is None else copied.rows(columns=SCHEMA.names)
            # What lost its object there is named again, by another object.
            lost = lacking_rows(before.filter(pc.is_valid(before["digest"])), there).drop_columns(["there"])
            new, gone = differing_rows(rows, absent_rows(before, lost))
            gone = pa.concat_tables([gone, lost])
            cut = cut_packs(new)
            classes = options.storage_class_after
            objects = objects_of_chosen(new, cut, there, classes, now_ms=self.work.clock_ms)
            whole = [info.path for folder in _documents() for info in self.source.list(folder)]
            held = {info.path for folder in _documents() for info in self.target.list(folder)}
            return ChosenPlan(
                table=table,
                objects=tuple(objects),
                documents=(tuple(ObjectToCopy(path=path) for path in whole if path not in held),),
                there=len(there),
                topics=tuple(sorted(chosen)),
                added=cut,
                gone=gone,
                ids=ids,
                moment=moment,
                since_ms=now,
                onto=-1 if copied is None else copied.version,
            )

    def begin_documents(self, plan: CopyPlan) -> None:
        """Nothing looks like a lost commit before the commit itself."""

    def commit(self, plan: CopyPlan) -> int:
        assert isinstance(plan, ChosenPlan)  # noqa: S101 - our own
        version = plan.table.log.version
        if self.version_before == version and not self.sender.tally.objects:
            # Rows can differ only if their objects are lost on both sides.
            return version
        self.work.tell("committing")
        catalog = Catalog.find(self.target) or self._create()
        if catalog.version != max(plan.onto, 0):
            raise _overtaken(self.target.url)
        copy_registry(self.source, self.target.at_hand(), plan.moment.snapshot)
        # What is damaged or lost at the source is named all the same, as it is there: a check of the copy finds it.
        added = [row for row in decode_rows(plan.added) if isinstance(row, Segment | Gap)]
        announce_version(self.target, catalog.version + 1)
        run = self._run(plan, catalog, added)
        try:
            catalog.commit([*added, run], replaced=plan.gone, since_ms=plan.since_ms)
        except OvertakenError:
            if run.snapshot is not None:
                self.target.delete([run.snapshot])
            raise
        withdraw_announcements(self.target, catalog.version)
        return version

    def _create(self) -> Catalog:
        try:
            return Catalog.create(self.target)
        except RefusedError:
            # Another copy has created it first.
            return Catalog.open(self.target)

    def _run(self, plan: ChosenPlan, catalog: Catalog, added: list[Segment | Gap]) -> Run:
        """The run of this copy, whose snapshot is there when this returns."""
        at, run_id = now_ms(), new_run_id()
        source = Catalog(self.source, plan.table)
        entry, runs = read_entry(self.source, source.version), source.runs()
        segments = [row for row in added if isinstance(row, Segment)]
        statistics: dict[str, Any] = {
            "command": COMMAND,
            "topics": len(plan.topics or ()),
            "records": sum(row.records for row in segments),
            "bytes": sum(row.bytes for row in segments),
            _SOURCE: {
                "version": source.version,
                "entry": None if entry is None else digest_of(entry),
                "table_id": plan.table.table_id,
                "runs": [list(key) for key in sorted(run_keys(runs[-1:]))],
            },
        }
        started_at, path = self.work.started_at_ms, None
        if plan.moment.snapshot is not None:
            facts = RunFacts(started_at=started_at, finished_at=at, statistics=statistics, commit=catalog.version + 1)
            snapshot = narrowed(plan.moment.snapshot, plan.ids)
            held = {place: range_ for place, range_ in source.positions().items() if place.topic_id in plan.ids}
            snapshot = replace(
                snapshot,
                run_id=run_id,
                # The source may have committed more since its snapshot. Of the last epochs only its rows tell.
                ends={**snapshot.ends, **{place: range_.end_offset for place, range_ in held.items()}},
                firsts={place: range_.first_offset for place, range_ in held.items()},
                leader_epochs={},
                topics={**snapshot.topics, **{place.topic_id: range_.topic for place, range_ in held.items()}},
                gaps=gaps_of(row for row in added if isinstance(row, Gap)),
                run=facts,
                revisions=catalog.revisions(),
            )
            data = encode(snapshot)
            path = snapshot_path(run_id, data, signed=self.target.signing is not None)
            self.target.at_hand().put(path, data)
        return Run(
            run_id=run_id,
            started_at=started_at,
            finished_at=at,
            snapshot=path,
            statistics=statistics,
            written_at=at,
        )


def _documents() -> tuple[str, ...]:
    """The folders that are copied whole. Of captured registries only the newest one is needed, see `copy_registry`."""
    return tuple(folder for folder in folders_with(CopyRule.WHOLE) if folder != "registry")


def _overtaken(url: str) -> OvertakenError:
    return OvertakenError(
        "another copy has committed meanwhile",
        operation="copy",
        object_name=url,
        hint="run it again: it goes on from there",
    )


def _copied_version(run: Run) -> CopiedVersion | None:
    """The version of the source that this run has copied; None: it is no copy."""
    source = run.statistics.get(_SOURCE)
    if run.statistics.get("command") != COMMAND or not isinstance(source, Mapping):
        return None
    return CopiedVersion(
        version=source["version"],
        entry=source["entry"],
        table_id=source["table_id"],
        runs=frozenset((commit, run_id) for commit, run_id in source["runs"]),
        all_runs=False,
    )


def narrowed(snapshot: Snapshot, ids: Collection[str]) -> Snapshot:
    """The snapshot as far as it is about these topics. What it says of the cluster around them stays."""
    carried = None if snapshot.carried is None else decode_carried(snapshot.carried)
    if carried is not None:
        carried = replace(
            carried,
            topics=tuple(lost for lost in carried.topics if lost.topic.topic_id in ids),
            offsets=tuple(lost for lost in carried.offsets if lost.committed.topic_id in ids),
        )

    def of(numbers: Mapping[PartitionId, Number]) -> dict[PartitionId, Number]:
        return {partition: number for partition, number in numbers.items() if partition.topic_id in ids}

    return replace(
        snapshot,
        topics={topic_id: name for topic_id, name in snapshot.topics.items() if topic_id in ids},
        ends=of(snapshot.ends),
        recovery_points=of(snapshot.recovery_points),
        behind=of(snapshot.behind),
        log_starts=of(snapshot.log_starts),
        firsts=of(snapshot.firsts),
        carried=None if carried is None else encode_carried(carried),
        runs=(),
    )
