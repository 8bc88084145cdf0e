"""The steps that every copy has: plan what the target lacks, send it, look again, commit."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from maxbrod.archive.archive import Archive
from maxbrod.catalog.catalog import LATE_MS, Catalog, load_table
from maxbrod.catalog.codec import Table
from maxbrod.copy.plan import ListedObjects, ObjectToCopy
from maxbrod.copy.sender import Sender
from maxbrod.errors import (
    EXIT_CORRUPT,
    EXIT_INCOMPLETE,
    MaxbrodError,
    OvertakenError,
    UnavailableError,
    UsageError,
)
from maxbrod.notices import Notice
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_bucket
from maxbrod.text import counted
from maxbrod.work.intervals import wait_unless
from maxbrod.work.work import Work

_OBJECTS: Final = ("packs", "segments")
_LISTED_AT_ONCE: Final = 4096
_ATTEMPTS: Final = 10
THAW_POLL_S: Final = 30.0
_STALE_S: Final = LATE_MS / 1000
"""How long a listing of the target counts. `gc` deletes there what no catalog names yet, but nothing so young."""


class TargetListing:
    """The segments and packs of the target, as listed not long ago, and what was written since."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._listed_at_s: float | None = None
        self.objects = ListedObjects()

    @property
    def is_stale(self) -> bool:
        return self._listed_at_s is None or time.monotonic() - self._listed_at_s > _STALE_S

    def refresh(self) -> ListedObjects:
        if self.is_stale:
            at_s, found = time.monotonic(), ListedObjects()
            for folder in _OBJECTS:
                listed = self._storage.list(folder)
                while infos := list(islice(listed, _LISTED_AT_ONCE)):
                    found.add([info.path for info in infos], [info.size for info in infos])
            self._listed_at_s, self.objects = at_s, found
        return self.objects


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """What the target lacks of one version of the source."""

    table: Table
    objects: tuple[ObjectToCopy, ...]
    documents: tuple[tuple[ObjectToCopy, ...], ...]
    """In groups: each is there before the next one begins. The files of the catalog are the last."""
    there: int
    """The segments and packs that the target has."""
    topics: tuple[str, ...] | None = None
    """The chosen topics; None: all."""
    notices: tuple[Notice, ...] = ()
    """Undo documents that cannot be read."""


class CopySteps(ABC):
    """One target of one source. `run` may be called again and again."""

    def __init__(self, work: Work, source: Archive, target: Storage, sender: Sender) -> None:
        self.work, self.archive, self.source = work, source, source.storage
        self.target, self.sender = target, sender
        self.listing = TargetListing(target)
        self.gone: dict[str, MaxbrodError] = {}
        """Objects that the catalog names and the source does not have."""
        self._missed: set[str] = set()
        self.sources: dict[str, str] = {}
        """The packs of the source from which objects of the target are cut."""
        self.version_before: int | None = None
        self.version: int | None = None
        """The version at which the copy stands, as the source counts."""

    @abstractmethod
    def demand_copy(self, table: Table) -> int | None:
        """The version of the source at which the target stands; None if it has none.

        RefusedError: it is no copy of the source.
        """

    @abstractmethod
    def plan(self, table: Table) -> CopyPlan:
        """What the target lacks of this version."""

    @abstractmethod
    def begin_documents(self, plan: CopyPlan) -> None:
        """Called before the first document is sent, when all objects are there."""

    @abstractmethod
    def commit(self, plan: CopyPlan) -> int:
        """Make the version of the plan that of the target, which lacks nothing of it; the version it has then."""

    def look(self) -> CopyPlan:
        """Demand that the target is a copy of this source, and plan what it lacks of the newest version."""
        table = self.newest()
        self.version_before = self.version = self.demand_copy(table)
        return self.plan(table)

    def run(self) -> tuple[CopyPlan, list[Notice]]:
        """Bring the target to the newest version of the source; the plan of it, and what went wrong."""
        self.gone.clear()
        self._missed.clear()
        plan = first = self.look()
        for attempt in range(_ATTEMPTS):
            ended, plan = self._send(plan)
            if not ended:
                return first, [_stopped()]
            if self.sender.tally.frozen and self.work.config.copies.thaw:
                # Again, with what is back.
                if not self._thaw():
                    return first, [_stopped()]
                ended, plan = self._send(self.plan(plan.table))
                if not ended:
                    return first, [_stopped()]
            plan = replace(plan, there=first.there)
            notices = [*plan.notices, *self.sender.tally.notices(), *self._lost()]
            if self.sender.tally.frozen:
                return plan, [*notices, frozen_notice(self.sender.tally.frozen)]
            try:
                self.version = self.commit(plan)
            except OvertakenError:
                # Another copy was faster.
                if attempt == _ATTEMPTS - 1:
                    raise
                plan = self.look()
            else:
                break
        return plan, notices

    def _send(self, plan: CopyPlan) -> tuple[bool, CopyPlan]:
        """Send until the target lacks nothing that can be sent; False if a stop came first. And the last plan."""
        tally, before = self.sender.tally, None
        self.sources = {item.path: item.pack for item in plan.objects if item.pack is not None}
        while any(todo := self._todo(plan)):
            if todo == before:
                raise UnavailableError(
                    "objects that were written are not there afterwards",
                    operation="copy",
                    object_name=self.target.name_of(next(item.path for group in todo for item in group)),
                    hint="something deletes them: a rule of the bucket, 'maxbrod gc', or somebody",
                )
            for number, group in enumerate(todo):
                phase = "copying" if number == 0 else "copying documents"
                if number == 1 and any(todo[1:]):
                    self.begin_documents(plan)
                self.sender.send(group, phase=phase, there=self.listing.objects if number == 0 else None)
                if self.work.is_stopped():
                    return False, plan
                if tally.missing or tally.frozen:
                    break
            before = None if tally.missing else todo
            # Planned again, to see that nothing is lacking: objects may have been deleted on either side meanwhile.
            plan = self.plan(self._table_after(plan))
        return not self.work.is_stopped(), plan

    def _thaw(self) -> bool:
        """Have the store bring back what is frozen, and wait until all of it is; False if a stop came first."""
        options, tally = self.work.config.copies, self.sender.tally
        bucket = open_bucket(self.archive.url, self.archive.options)
        if bucket is None:
            raise UsageError(
                "only S3 is asked to bring objects back", object_name=self.archive.url, hint="have the store do it"
            )
        waiting = {self.source.stored_name(self.sources.get(path) or path) for path in tally.frozen}
        self.work.tell(f"asking S3 to bring {counted(len(waiting), 'object')} back")
        for path in sorted(waiting):
            bucket.ask_back(path, days=options.thaw_days, tier=options.thaw_tier)
        while waiting:
            self.work.tell(f"waiting for {counted(len(waiting), 'object')} that S3 brings back")
            if not wait_unless(THAW_POLL_S, self.work.stop):
                return False
            waiting = {path for path in waiting if not bucket.is_back(path)}
        tally.frozen.clear()
        return True

    def newest(self) -> Table:
        with self.work.looking("reading the source"):
            table = load_table(self.source)
        if table is None:
            raise UnavailableError("the source is gone", operation="copy", object_name=self.source.url)
        return table

    def at(self, table: Table) -> Archive:
        """The source at this version."""
        return replace(self.archive, catalog=Catalog(self.source, table))

    def is_hopeless(self, path: str) -> bool:
        tally = self.sender.tally
        return path in self.gone or path in tally.damaged or path in tally.frozen

    def _todo(self, plan: CopyPlan) -> list[list[ObjectToCopy]]:
        """What is left to send: objects, and if all of them can be sent, documents."""
        groups = [plan.objects, *(() if self.sender.tally.frozen else plan.documents)]
        return [[item for item in group if not self.is_hopeless(item.path)] for group in groups]

    def _table_after(self, plan: CopyPlan) -> Table:
        """The same version, unless objects of it are missing: then they may be out of use by now."""
        missing = dict(self.sender.tally.missing)
        self.sender.tally.missing.clear()
        if not missing:
            return plan.table
        newest = self.newest()
        same = newest.log.version == plan.table.log.version
        # One that is missing twice was named by a later version, too.
        self.gone.update((path, error) for path, error in missing.items() if same or path in self._missed)
        self._missed |= missing.keys()
        return newest

    def _lost(self) -> Iterator[Notice]:
        for path, error in sorted(self.gone.items()):
            yield Notice(
                kind="corrupt",
                message=f"{error.object_name or path} is missing at the source, and its catalog names it",
                hint="'maxbrod check' says what it held, 'maxbrod repair' what can be done",
                exit_code=EXIT_CORRUPT,
            )


def _stopped() -> Notice:
    message = "stopped on request: the copy is as it was before, and the same command goes on"
    return Notice(kind="stopped", message=message, exit_code=EXIT_INCOMPLETE)


def frozen_notice(frozen: Mapping[str, MaxbrodError]) -> Notice:
    """Objects of the source that cannot be read now."""
    first, error = next(iter(sorted(frozen.items())))
    return Notice(
        kind="frozen",
        message=f"{counted(len(frozen), 'object')} of the source must be brought back before they can be read, such as "
        f"{first}: {error.message}; everything else is copied, and the catalog of the copy is as it was before",
        hint="with --thaw S3 is asked to restore them, and they are copied when they are back",
        exit_code=EXIT_INCOMPLETE,
    )
