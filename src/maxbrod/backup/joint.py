"""The part of a backup that is about other writers, with which it divides the partitions: see `part`."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.backup.archive_state import read_archive_state
from maxbrod.backup.generational import GenerationalBackup
from maxbrod.backup.observation import choose_topics
from maxbrod.backup.part import Part, PartOfTopics, rebase
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import fenced
from maxbrod.errors import FencedError, RefusedError, UnavailableError
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.work.progress import OnProgress, silent

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

    from maxbrod.archive.archive import Archive
    from maxbrod.config import Config
    from maxbrod.kafka.state.cluster_state import ClusterState
    from maxbrod.model import PartitionId
    from maxbrod.work.session import Session

ATTEMPTS: Final = 20
"""How often to commit while other writers commit their parts."""
PAUSE_S: Final = 0.05
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


class JointBackup(GenerationalBackup):
    """One writer of several, or the only one. `Backup` reads, proves and commits."""

    def __init__(
        self,
        config: Config,
        *,
        session: Session | None = None,
        on_progress: OnProgress = silent,
        stop: threading.Event | None = None,
        take_part: Callable[[], Part] | None = None,
    ) -> None:
        """`take_part`, if there may be several writers: what this one backs up in the next run."""
        super().__init__(config, session=session, on_progress=on_progress, stop=stop)
        self._take_part = take_part
        self._part: Part | None = None
        self._narrowing = PartOfTopics()
        self._caught_up = False
        """Whether others have committed since this run looked at the cluster."""
        self._recorded_at_ms = 0

    @abstractmethod
    def _forget_everything(self) -> None: ...

    @abstractmethod
    def _record(
        self, archive: Archive, cluster: ClusterState, before: Mapping[PartitionId, int | None], attempt: int
    ) -> None: ...

    @property
    def _divided(self) -> bool:
        return self._part is not None and not self._part.whole

    def _begin_part(self) -> None:
        """Find out what to back up. Partitions that this writer did not have before may have been archived since."""
        before, self._caught_up = self._part, False
        if self._take_part is None:
            return
        self._part = self._take_part()
        if before is not None and (before.generation, before.whole) != (self._part.generation, self._part.whole):
            self._forget_everything()

    def _may_catch_up(self, archive: Archive) -> bool:
        """Whether a commit that was refused may be repeated on a newer version. Generations have one writer."""
        return not self._generations.topics and not own_catalog(archive).is_newest()

    def _is_overtaken(self, archive: Archive, error: RefusedError) -> bool:
        return self._part is not None and (isinstance(error, FencedError) or not own_catalog(archive).is_newest())

    def _catch_up(self, archive: Archive) -> None:
        """Continue on the newest version of the catalog.

        If others have archived partitions of this run: UnavailableError for one writer of several, whose next run has
        others; RefusedError for a writer that is meant to be the only one.
        """
        part = self._part
        catalog = own_catalog(archive)
        catalog.refresh()
        if part is not None and catalog.fence > part.claim:
            claim = part.claim_again(plan.state.where for plan in self._run.plans.values())
            if claim is None or claim < catalog.fence:
                raise dropped(archive, fenced(archive.url))
            self._part = replace(part, claim=claim)
            catalog.claim = claim
        try:
            self._known = rebase(self._known, read_archive_state(archive), self._run)
        except RefusedError as error:
            if part is None:
                raise
            raise dropped(archive, error) from None
        self._caught_up = True

    def _record_on_newest(self, archive: Archive, cluster: ClusterState) -> Mapping[PartitionId, int | None]:
        """Record the run on the newest version of the catalog; the recovery points before it.

        If another writer was faster, the snapshot has the cluster as that one has recorded it: looking again takes so
        long that a third commit comes in between, and what this run has seen may be older.
        """
        for attempt in range(ATTEMPTS):
            if (attempt or self._divided) and self._may_catch_up(archive):
                self._catch_up(archive)
            if self._caught_up:
                cluster = self._newest_cluster(cluster)
            before = self._points_before()
            try:
                self._record(archive, cluster, before, attempt)
            except RefusedError:
                if attempt == ATTEMPTS - 1 or not self._may_catch_up(archive):
                    raise
            else:
                break
            # Nothing names it, and a catalog that is rebuilt from objects would take it for a run.
            archive.storage.delete([self._snapshot_path(attempt)])
            time.sleep(PAUSE_S * attempt)
        return before

    def _snapshot_path(self, attempt: int) -> str:
        """A name is never used twice, also if the commit that was to name the first object was refused."""
        return f"snapshots/{self._run.run_id}{f'-{attempt}' if attempt else ''}.json.zst"

    def _points_before(self) -> Mapping[PartitionId, int | None]:
        run = self._run
        return self._known.recovery_points_before((*run.plans, *run.unanswered, *run.others))

    def _newest_cluster(self, seen: ClusterState) -> ClusterState:
        """The cluster as recorded last, or as it is now if that lacks a topic of this run.

        Of a writer that is meant to be the only one: as it has `seen` it, unless that is older. Most commands that
        commit meanwhile record no cluster.
        """
        self._caught_up = False
        recorded_at_ms = self._known.confirmed_at_ms
        if self._part is None and (recorded_at_ms is None or recorded_at_ms < self._run.started_at_ms):
            return seen
        known = self._known.knowledge
        there = frozenset() if known is None else frozenset(topic.topic_id for topic in known.cluster.topics)
        if known is not None and {plan.topic_id for plan in self._run.plans} <= there:
            self._run = replace(self._run, present=self._run.present | there)
            return known.cluster
        cluster = capture(self._client, deadline=Deadline.after(self._config.patience))
        chosen = choose_topics(self._client, self._request, patience_s=self._config.patience, demand=False)
        self._run = replace(self._run, present=chosen.present)
        return cluster

    def _are_points_outdated(self, archive: Archive) -> bool:
        """Whether the newest run is of another writer, and has old recovery points of this one's partitions."""
        if not self._divided or self._run.started_at_ms - self._recorded_at_ms < _RECORD_POINTS_MS:
            return False
        if own_catalog(archive).is_newest():
            return False
        self._catch_up(archive)
        newest = self._known.newest_run
        # Not after a run that has archived nothing: quiet writers would answer each other for ever.
        return newest is not None and bool(newest.statistics.get("records"))
