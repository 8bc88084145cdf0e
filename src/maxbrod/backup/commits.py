"""The commits of a backup: proved rows, and the row and the snapshot of the run, beside other writers.

Writers that divide the partitions among themselves commit to one catalog. Each commit is made on the newest version: if
another writer was faster, the run is moved onto that writer's version, as long as nobody has touched its partitions. So
the catalog itself keeps two writers from archiving the same offsets, whoever they believe has a partition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.knowledge import RunKnowledge, encode_carried
from maxbrod.archive.snapshot_document import RunFacts, Snapshot, encode, gaps_of, snapshot_path
from maxbrod.backup.archive_state import ArchiveState, SharedSnapshot, StoredDocument, read_archive_state
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import fenced
from maxbrod.catalog.queries import ArchivedRange
from maxbrod.catalog.replaced import after_replacing
from maxbrod.catalog.rows import Row, Run
from maxbrod.errors import FencedError, RefusedError, UnavailableError
from maxbrod.kafka.state.cluster_state import ClusterState, encode_state
from maxbrod.model import MENDABLE, PartitionId, TopicPartition, now_ms, topic_id_text
from maxbrod.work.progress import OnProgress, Progress

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.backup.observation import ChosenTopics
    from maxbrod.backup.plan.ranges import PartitionBackup
    from maxbrod.backup.run_state import BackupRun, BackupState
    from maxbrod.kafka.wire.client import Topic

_ATTEMPTS: Final = 20
"""The number of attempts to commit while other writers commit their parts."""
_PAUSE_S: Final = 0.05
_RECORD_POINTS_MS: Final = 60_000
"""While others write, a writer whose partitions are quiet records how far it has come this often."""


def own_catalog(archive: Archive) -> Catalog:
    assert isinstance(archive.catalog, Catalog)  # noqa: S101 - archives of other tools have none to commit to
    return archive.catalog


def dropped(archive: Archive, error: RefusedError) -> UnavailableError:
    return UnavailableError(
        f"other instances have committed meanwhile, and this run was dropped: {error.message}",
        operation="commit to the catalog",
        object_name=archive.url,
        hint="the next run continues from the catalog",
    )


class Commits:
    """Writes the state of a run to the catalog, as one writer of several or as the only one."""

    def __init__(
        self,
        state: BackupState,
        archive_url: str,
        *,
        look_again: Callable[[], tuple[ClusterState, frozenset[str]]],
        on_progress: OnProgress,
        take_part: Callable[[], Part] | None = None,
    ) -> None:
        """`take_part`, if there may be several writers: what this one backs up in the next run.

        `look_again` returns the cluster as it is now, and the ids of all its topics.
        """
        self.state = state
        self._archive_url = archive_url
        self._look_again, self._on_progress = look_again, on_progress
        self._take_part = take_part
        self.part: Part | None = None
        self._caught_up = False
        """True if others have committed since this run looked at the cluster."""
        self._recorded_at_ms = 0
        self._stored_snapshots: list[str] = []
        """The snapshot that the current attempt to record the run has stored, if any."""

    @property
    def _divided(self) -> bool:
        return self.part is not None and not self.part.whole

    def begin_part(self) -> bool:
        """Find out what to back up. True if it is another part than before: others may have archived it since."""
        before, self._caught_up = self.part, False
        if self._take_part is None:
            return False
        self.part = self._take_part()
        return before is not None and (before.generation, before.whole) != (self.part.generation, self.part.whole)

    def _may_catch_up(self, archive: Archive) -> bool:
        """True if a commit that was refused may be repeated on a newer version. Generations have one writer."""
        return not self.state.generations.topics and not own_catalog(archive).is_newest()

    def is_overtaken(self, archive: Archive, error: RefusedError) -> bool:
        return self.part is not None and (isinstance(error, FencedError) or not own_catalog(archive).is_newest())

    def _catch_up(self, archive: Archive) -> None:
        """Continue on the newest version of the catalog.

        If others have archived partitions of this run: UnavailableError for one writer of several, whose next run has
        others; RefusedError for a writer that is meant to be the only one.
        """
        part = self.part
        catalog = own_catalog(archive)
        catalog.refresh()
        if part is not None and catalog.fence > part.claim:
            claim = part.claim_again(plan.state.where for plan in self.state.run.plans.values())
            if claim is None or claim < catalog.fence:
                raise dropped(archive, fenced(archive.url))
            self.part = replace(part, claim=claim)
            catalog.claim = claim
        try:
            self.state.known = rebase(self.state.known, read_archive_state(archive), self.state.run)
        except RefusedError as error:
            if part is None:
                raise
            raise dropped(archive, error) from None
        self._caught_up = True

    def record_on_newest(self, archive: Archive, cluster: ClusterState) -> Mapping[PartitionId, int | None]:
        """Record the run on the newest version of the catalog; the recovery points before it.

        If another writer was faster, the snapshot has the cluster as that one has recorded it: looking again takes so
        long that a third commit comes in between, and what this run has seen may be older.
        """
        for attempt in range(_ATTEMPTS):
            if (attempt or self._divided) and self._may_catch_up(archive):
                self._catch_up(archive)
            if self._caught_up:
                cluster = self._newest_cluster(cluster)
            before = self.points_before()
            self._stored_snapshots = []
            try:
                self._record(archive, cluster, before, attempt)
            except RefusedError:
                if attempt == _ATTEMPTS - 1 or not self._may_catch_up(archive):
                    raise
            else:
                break
            # Nothing names it, and a catalog that is rebuilt from objects would take it for a run.
            archive.storage.delete(self._stored_snapshots)
            time.sleep(_PAUSE_S * attempt)
        return before

    def points_before(self) -> Mapping[PartitionId, int | None]:
        run = self.state.run
        return self.state.known.recovery_points_before((*run.plans, *run.unanswered, *run.others))

    def _newest_cluster(self, seen: ClusterState) -> ClusterState:
        """The cluster as recorded last, or as it is now if that lacks a topic of this run.

        Of a writer that is meant to be the only one: as it has `seen` it, unless that is older. Most commands that
        commit meanwhile record no cluster.
        """
        self._caught_up = False
        recorded_at_ms = self.state.known.confirmed_at_ms
        if self.part is None and (recorded_at_ms is None or recorded_at_ms < self.state.run.started_at_ms):
            return seen
        known = self.state.known.knowledge
        there = frozenset() if known is None else frozenset(topic.topic_id for topic in known.cluster.topics)
        if known is not None and {plan.topic_id for plan in self.state.run.plans} <= there:
            self.state.run = replace(self.state.run, present=self.state.run.present | there)
            return known.cluster
        cluster, present = self._look_again()
        self.state.run = replace(self.state.run, present=present)
        return cluster

    def are_points_outdated(self, archive: Archive) -> bool:
        """True if the newest run is of another writer, and has old recovery points of this one's partitions."""
        if not self._divided or self.state.run.started_at_ms - self._recorded_at_ms < _RECORD_POINTS_MS:
            return False
        if own_catalog(archive).is_newest():
            return False
        self._catch_up(archive)
        newest = self.state.known.newest_run
        # Not after a run that has archived nothing: quiet writers would answer each other for ever.
        return newest is not None and bool(newest.statistics.get("records"))

    def commit(self, archive: Archive, row: Run | None = None) -> None:
        """Commit all proved rows; with the run's own row at the end of the run."""
        run, everything = self.state.run, row is not None
        if not run.rows and not run.replaced and not self.state.generations.pending and row is None:
            return
        retired = self._to_retire(everything=everything)
        switched = everything and self.state.generations.switch is not None
        for attempt in range(_ATTEMPTS):
            try:
                archive.catalog.commit(
                    [*run.rows, *(() if row is None else (row,))],
                    retired=retired,
                    generations=self.state.generations.changes(archive, run_id=run.run_id, everything=everything),
                )
                break
            except RefusedError:
                # With the run's own row the snapshot must be made anew: see `record_on_newest`.
                if row is not None or attempt == _ATTEMPTS - 1 or not self._may_catch_up(archive):
                    raise
            time.sleep(_PAUSE_S * attempt)
            self._catch_up(archive)
        self.state.generations = self.state.generations.after_commit()
        self.state.known = self.state.known.with_committed(run.rows, retired)
        if switched:
            # What a generation brings along was proved by earlier runs.
            self.state.known = replace(self.state.known, mendable=tuple(archive.catalog.gaps(MENDABLE)))
        self.state.run = run.after_commit(self.state.known.ends, everything=everything)

    def _to_retire(self, *, everything: bool) -> list[Row]:
        """The rows that the next commit retires; with those of a switch of generations if it is the run's last."""
        switch = self.state.generations.switch if everything else None
        return [*self.state.run.to_retire(everything=everything), *(() if switch is None else switch.retired)]

    def _record(
        self, archive: Archive, cluster: ClusterState, before: Mapping[PartitionId, int | None], attempt: int
    ) -> None:
        """Commit the remaining rows together with the run's own row, which names a snapshot of the cluster."""
        self._on_progress(Progress(phase="committing"))
        run, known = self.state.run, self.state.known
        # Snapshot and row describe the state after the commit that names them: only readers of that commit see them.
        done = run.after_commit(known.ends, everything=True)
        reaches = done.reaches()
        points, behind = done.recovery_points(before, reaches), done.behind(known.behind, reaches)
        point = done.recovery_point(points, with_others=True)
        report = done.report(self._archive_url, archive.catalog.version + 1, point)
        carried = known.carried_beside(cluster)
        snapshot = Snapshot(
            run_id=run.run_id,
            taken_at_ms=run.started_at_ms,
            cluster=encode_state(cluster),
            ends=known.ends,
            topics=known.topics,
            recovery_points=points,
            behind=behind,
            carried=encode_carried(carried),
            revisions=after_replacing(known.revisions, self._to_retire(everything=True)),
            log_starts={
                **{other: known.log_starts[other] for other in run.others if other in known.log_starts},
                **{partition: plan.state.log_start for partition, plan in run.plans.items()},
            },
            firsts={partition: held.first_offset for partition, held in known.held.items()},
            leader_epochs={partition: held.last_leader_epoch for partition, held in known.held.items()},
            gaps=gaps_of(done.explained),
            registry=known.registry if run.registry is None else run.registry.encode(),
            run=RunFacts(
                started_at=run.started_at_ms,
                finished_at=report.finished_at_ms,
                statistics=report.statistics(),
                commit=archive.catalog.version + 1,
            ),
        )
        shared, changes = self._put_snapshot(archive, snapshot, attempt)
        row = Run(
            run_id=run.run_id,
            started_at=run.started_at_ms,
            finished_at=report.finished_at_ms,
            snapshot=shared.path,
            snapshot_changes=changes,
            statistics=report.statistics(),
            written_at=now_ms(),
        )
        self.commit(archive, row)
        if changes:
            shared = replace(shared, runs=(*shared.runs, replace(row, commit=archive.catalog.version)))
        self.state.known = replace(
            self.state.known,
            newest_run=row,
            knowledge=RunKnowledge(run_id=run.run_id, cluster=cluster, carried=carried),
            cluster=snapshot.cluster,
            unrecorded=False,
            behind=behind,
            partial=run.partial,
            shared=shared,
            log_starts=snapshot.log_starts,
            registry=snapshot.registry,
        )
        self._recorded_at_ms = run.started_at_ms

    def _put_snapshot(self, archive: Archive, snapshot: Snapshot, attempt: int) -> tuple[SharedSnapshot, list[Any]]:
        """Store the snapshot, or find how it differs from the last one that was stored, if that is little.

        The snapshot is durable before the row that names it.
        """
        stored = StoredDocument(snapshot)
        last = self.state.known.shared
        changes = None if last is None else last.changes_to(stored.document)
        if last is not None and changes is not None:
            return last, changes
        runs = () if last is None else last.encode_runs()
        data = encode(replace(snapshot, runs=runs))
        # A name is never used twice, also if the commit that was to name the first object was refused.
        name = f"{self.state.run.run_id}{f'-{attempt}' if attempt else ''}"
        path = snapshot_path(name, data, signed=archive.storage.signing is not None)
        self._stored_snapshots = [path]
        archive.storage.put(path, data)
        return SharedSnapshot(path=path, stored=stored), []


# One of several writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The partitions that one writer backs up in one run."""

    claim: int
    """Commits are refused once the catalog's fence is above it."""
    has: Callable[[TopicPartition], bool]
    generation: tuple[int, bool]
    """It differs from that of the run before if the part does."""
    leads: bool
    """True if this writer records changes of the cluster while nothing is written to its partitions."""
    whole: bool
    """True if it is everything."""
    claim_again: Callable[[Iterable[TopicPartition]], int | None]
    """In the middle of a run: the claim by which this writer still has all of these partitions; None: it has not."""


class PartOfTopics:
    """Narrows topics to a part. For the same topic it returns the very same value: later steps compare by identity."""

    def __init__(self) -> None:
        self._narrowed: dict[str, tuple[Topic, tuple[int, bool], Topic]] = {}

    def narrow(self, chosen: ChosenTopics, part: Part) -> tuple[ChosenTopics, frozenset[PartitionId]]:
        """The topics with the partitions of this part only, and the partitions that others have."""
        if part.whole:
            return chosen, frozenset()
        self._narrowed = {name: self._of(topic, part) for name, topic in chosen.topics.items()}
        mine = {name: topic for name, (_, _, topic) in self._narrowed.items() if topic.partitions}
        others = frozenset(
            PartitionId(topic_id=topic_id_text(topic.topic_id), partition=number)
            for name, topic in chosen.topics.items()
            for number in topic.partitions.keys() - self._narrowed[name][2].partitions.keys()
        )
        return replace(chosen, topics=mine), others

    def _of(self, topic: Topic, part: Part) -> tuple[Topic, tuple[int, bool], Topic]:
        known = self._narrowed.get(topic.name)
        if known is not None and known[0] is topic and known[1] == part.generation:
            return known
        mine = {
            number: partition
            for number, partition in topic.partitions.items()
            if part.has(TopicPartition(topic=topic.name, partition=number))
        }
        return topic, part.generation, replace(topic, partitions=mine)


def rebase(mine: ArchiveState, found: ArchiveState, run: BackupRun) -> ArchiveState:
    """The state of a run on top of a newer version of the archive, `found`, which others have committed.

    RefusedError: a partition of the run is not as the run has left it.
    """
    held = dict(found.held)
    for partition, plan in run.plans.items():
        held[partition] = _held(mine.held[partition], found.held.get(partition), partition, plan, run)
    own: dict[PartitionId, int | None] = {}
    for partition in (*run.plans, *run.unanswered):
        if partition in mine.recovery_points:
            both = mine.recovery_points[partition], found.recovery_points.get(partition)
            own[partition] = max((point for point in both if point is not None), default=None)
    return replace(
        found,
        held=held,
        names={**mine.names, **found.names},
        compacted=mine.compacted | found.compacted,
        unrecorded=mine.unrecorded,
        recovery_points={**found.recovery_points, **own},
    )


def _held(
    mine: ArchivedRange, found: ArchivedRange | None, partition: PartitionId, plan: PartitionBackup, run: BackupRun
) -> ArchivedRange:
    superseded = run.superseded.get(partition)
    end = run.ends[partition]
    if superseded is not None:
        end = max((row.end_offset for row in superseded if not isinstance(row, Run)), default=-1)
    if found is None and plan.state.held is None and end == plan.first:
        return mine  # nobody has archived anything of it yet
    if found is None or found.end_offset != end:
        there = "nothing" if found is None else f"offset {found.end_offset}"
        raise RefusedError(
            f"another writer has archived {plan.state.where} meanwhile: the catalog has {there}, this run had {end}",
            operation="commit to the catalog",
            object_name=str(plan.state.where),
            hint="nothing of what was read since is visible; the next run continues from the catalog",
        )
    if superseded is not None:
        return mine
    return found if mine.end_offset == end else replace(mine, first_offset=found.first_offset)
