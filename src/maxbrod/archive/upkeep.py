"""Upkeep of an archive: the clocks by which verbs decide what may be deleted, and their commits.

The clocks are this machine's, the store's, and that of the newest run.
Nothing is deleted on the word of one clock. Ages count up to the earliest of the three, and grace periods from the
latest, so that a wrong clock deletes less and never more. Verbs refuse if the clocks contradict each other. A newest
backup that was long ago is no contradiction, because an archive may be idle: ages then count up to that backup, as
`--keep-within` does. Modules that take something away ask here, and never for the time itself (see the tests).

Objects that no row names are garbage only if the catalog is whole. A catalog that has lost its end names too little,
and a rebuild names again what it finds. So a rebuild announces itself before it looks for objects, and `gc` looks for
such an announcement before each request of deletion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from maxbrod.archive.archive import Archive
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import commit_with_retries
from maxbrod.catalog.log import LOG_FOLDER
from maxbrod.catalog.rows import Run, encode_rows, new_run_id
from maxbrod.catalog.schema import SCHEMA
from maxbrod.errors import MaxbrodError, RefusedError, StorageFullError
from maxbrod.model import CLOCKS_APART_MS, now_ms
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage, probe_clock_ms
from maxbrod.text import human_age

_IDLE_MS: Final = 2 * 24 * 3600 * 1000
"""An archive whose newest backup is older is idle, and reports say what follows from that."""

NO_ROWS: Final = SCHEMA.empty_table()
_PROBES: Final = "probes"
_REBUILD: Final = f"{_PROBES}/rebuild-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    own_ms: int
    store_ms: int | None = None
    """The time that the store stamps on an object written now; None: unknown, because asking takes a write."""
    stamped_ms: int = 0
    """The newest stamp of the store that is known: its clock is no earlier."""
    newest: Run | None = None
    """The run that was committed last, whatever it did."""
    backup_ms: int | None = None
    """The end of the newest backup. Other runs do not count: a machine that only prunes would be its own witness."""
    trusted: bool = False
    """True if this machine's clock is right, whatever the runs say. The store's clock counts nevertheless."""
    read_at_s: float = field(default_factory=time.monotonic)

    @property
    def object_ms(self) -> int:
        """The time up to which ages of objects count, which have stamps of the store."""
        return self.own_ms if self.store_ms is None else min(self.own_ms, self.store_ms)

    @property
    def earliest_ms(self) -> int:
        """The time up to which ages of records count, and grace periods."""
        return self.object_ms if self.trusted or self.backup_ms is None else min(self.object_ms, self.backup_ms)

    @property
    def idle_ms(self) -> int:
        """The age of the newest backup up to which ages count; 0: it is recent, or they count up to now."""
        idle_ms = self.object_ms - self.earliest_ms
        return idle_ms if idle_ms > _IDLE_MS else 0

    def after_ms(self, grace_s: int) -> int:
        """The end of a grace period that begins now."""
        run_ms = 0 if self.newest is None or self.trusted else self.newest.finished_at
        latest_ms = max(self.own_ms, self.store_ms or 0, self.stamped_ms, run_ms)
        return latest_ms + round((time.monotonic() - self.read_at_s + grace_s) * 1000)


def read_clocks(archive: Archive, *, ask_store: bool, demand: bool = True, trusted: bool = False) -> Clocks:
    """The clocks now. RefusedError: they contradict each other, unless `demand` is false.

    `ask_store` writes a small object to learn the store's time. Without it, the newest stamp is a lower bound.
    """
    foreign = not archive.is_native
    storage = open_storage(archive.url, archive.options) if foreign else archive.storage
    stamped_ms = max((info.modified_ms for info in storage.list("" if foreign else LOG_FOLDER)), default=0)
    runs = [] if foreign else archive.catalog.runs()
    backups = [run.finished_at for run in runs if run.snapshot is not None] or [run.finished_at for run in runs[-1:]]
    clocks = Clocks(
        own_ms=now_ms(),
        stamped_ms=stamped_ms,
        newest=runs[-1] if runs else None,
        # Other tools record no runs: such an archive was last written when its newest object was.
        backup_ms=stamped_ms if foreign else next(reversed(backups), None),
        trusted=trusted,
    )
    full = False
    if ask_store and not foreign:
        try:
            clocks = replace(clocks, store_ms=probe_clock_ms(storage), own_ms=now_ms())
        except StorageFullError:
            # It takes no object, and must be able to get rid of some: its clock is no earlier than its newest object.
            full, stamped_ms = True, max((info.modified_ms for info in storage.list()), default=0)
    if demand:
        _demand_agreement(archive, clocks)
    return replace(clocks, store_ms=stamped_ms) if full else clocks


def _demand_agreement(archive: Archive, clocks: Clocks) -> None:
    """A run proves that its time has come: a clock that is before it is behind, or the run's own clock was ahead."""
    own_ms, run = clocks.own_ms, clocks.newest
    store_ms = max(clocks.stamped_ms, own_ms - CLOCKS_APART_MS) if clocks.store_ms is None else clocks.store_ms
    run_ms = 0 if run is None or clocks.trusted else run.finished_at
    behind = "" if run is None else f"{human_age(run_ms - min(own_ms, store_ms))} behind the newest run, {run.run_id}"
    proven = run_ms > min(own_ms, store_ms) + CLOCKS_APART_MS
    hint = "nothing was changed; set that clock, and try again"
    if abs(own_ms - store_ms) > CLOCKS_APART_MS:
        apart = human_age(abs(own_ms - store_ms))
        if own_ms < store_ms:
            wrong = f"this machine's clock is {apart} behind the store's" + (f", and {behind}" if proven else "")
        elif proven:
            wrong = f"the store's clock is {apart} behind this machine's, and {behind}"
        else:
            wrong = f"this machine's clock is {apart} ahead of the store's"
    elif proven:
        wrong = f"this machine's clock is {behind}; or the clock of the machine that made that run was ahead"
        hint = (
            "nothing was changed; set the clock of this machine; if it is right, run 'maxbrod backup', so that its run "
            "is the newest one, or give --trust-clock"
        )
    else:
        return
    raise RefusedError(
        f"the clocks contradict each other, so it is unknown what is old enough to be deleted: {wrong}",
        object_name=archive.url,
        hint=hint,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Rows that a commit adds and removes, as tables of `SCHEMA`, and what its run records of itself."""

    added: pa.Table = field(default_factory=lambda: NO_ROWS)
    removed: pa.Table = field(default_factory=lambda: NO_ROWS)
    statistics: Mapping[str, Any] = field(default_factory=dict)
    still_valid: Callable[[], bool] | None = None
    """Asked if others have only added rows meanwhile: whether the change is right after theirs. None: it is not."""


def commit_run(archive: Archive, statistics: Mapping[str, Any]) -> str:
    """Commit a run that changes no other row; returns its id."""
    return commit_change(archive, lambda _: Change(statistics=statistics, still_valid=lambda: True)) or ""


def commit_change(archive: Archive, plan: Callable[[str], Change | None]) -> str | None:
    """Commit a change and its run, all or nothing; the id of the run, None if there was nothing to change.

    The verb is overtaken if another writer commits between its plan and its commit. It then plans its change again on
    the new version and tries once more: what it wants does not depend on who came first.

    `plan` gets the id of the run. It is called again whenever another writer was faster, with the catalog at the new
    version: it must read the catalog and all holds each time.
    """
    catalog = archive.catalog
    if not isinstance(catalog, Catalog):
        raise RefusedError("this archive is in the layout of another tool, and has no catalog", object_name=archive.url)
    run_id, started_at = new_run_id(), now_ms()

    def commit(attempt: int) -> str | None:
        change = plan(run_id)
        if change is None:
            return None
        at = now_ms()
        run = Run(
            run_id=run_id,
            started_at=started_at,
            finished_at=at,
            snapshot=None,
            statistics=change.statistics,
            written_at=at,
        )
        rows = pa.concat_tables([change.added, encode_rows([replace(run, commit=catalog.version + 1)])])
        catalog.commit(rows, replaced=change.removed, still_valid=change.still_valid if attempt else None)
        return run_id

    return commit_with_retries(catalog, commit)


@contextmanager
def announced(storage: Storage, run_id: str) -> Iterator[None]:
    """Keep `gc` from deleting while a rebuild is under way. What a killed one leaves behind counts for a grace time."""
    name = f"{_REBUILD}{run_id}"
    storage.put(name, b"the catalog is being rebuilt")
    try:
        yield
    finally:
        with suppress(MaxbrodError):
            storage.delete([name])


def rebuild_under_way(storage: Storage, *, since_ms: int) -> str | None:
    """The run of a rebuild that began after `since_ms`, by the store's clock, and has not ended."""
    found = (info for info in storage.list(_PROBES) if info.path.startswith(_REBUILD))
    return next((info.path.removeprefix(_REBUILD) for info in found if info.modified_ms > since_ms), None)
