"""Captures the schema registry in a run of a backup, and stores what changed.

It comes last: whoever writes a record registers its schema first, so a capture after the records were read has the
schemas of all of them. A registry that does not answer makes the run incomplete, and the last capture is carried on.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.backup.report import CapturedSchemas, registry_failed
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.notices import Notice
from maxbrod.registry.capture import capture_registry
from maxbrod.registry.client import RegistryClient
from maxbrod.registry.model import RegistryState, keep_lost
from maxbrod.registry.stored import RegistryCapture, StoredRegistry, read_stored, store

if TYPE_CHECKING:
    from maxbrod.archive.archive import Archive
    from maxbrod.backup.run_state import BackupState
    from maxbrod.config import Config

_UNREADABLE: Final = (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError)
_PATIENCE_S: Final = 30.0
"""A registry must not delay the records of the next interval for long."""


class SchemaCapture:
    """The registry of a backup, for any number of runs."""

    def __init__(self, config: Config) -> None:
        self._url, self._config = config.backup.schema_registry, config
        self._stored: StoredRegistry | None = None
        self._again_at = 0.0
        """When to ask the registry again, by the monotonic clock."""
        self._failed: Notice | None = None
        """The reason why the last capture failed."""

    def run(self, archive: Archive, state: BackupState, *, every_s: float) -> bool:
        """Capture the registry, unless that was done lately. True if the snapshot must name another document."""
        if self._url is None:
            return False
        before = state.known.registry or {}
        if time.monotonic() < self._again_at:
            # A registry that is down must not delay every interval, and every interval says that it is.
            state.note(*(() if self._failed is None else (self._failed,)))
            return False
        try:
            stored = self._base(archive, before.get("path"))
            now = self._capture()
            whole = keep_lost(None if stored is None else stored.state, now, run_id=str(before.get("run_id", "")))
            self._stored = store(archive.storage, state.run.run_id, whole, stored)
        except MaxbrodError as error:
            self._failed = registry_failed(error, before.get("taken_at_ms"))
            self._again_at = time.monotonic() + every_s
            state.note(self._failed)
            return False
        self._failed, self._again_at = None, time.monotonic() + every_s
        changed = self._stored.path != before.get("path") or self._url != before.get("url")
        state.run = replace(
            state.run,
            registry=RegistryCapture(
                url=self._url,
                path=self._stored.path,
                taken_at_ms=state.run.started_at_ms,
                run_id=state.run.run_id,
            ),
            schemas=_figures(self._url, whole, changed=changed),
        )
        return changed

    def _capture(self) -> RegistryState:
        patience_s = min(_PATIENCE_S, self._config.patience)
        with RegistryClient((self._url or "").split(","), self._config.registry, patience_s=patience_s) as client:
            return capture_registry(client)

    def _base(self, archive: Archive, path: object) -> StoredRegistry | None:
        """The last capture; None: there is none, or it is damaged: then the whole state is stored again."""
        if not isinstance(path, str):
            return None
        if self._stored is not None and self._stored.path == path:
            return self._stored
        try:
            return read_stored(archive.storage, path)
        except _UNREADABLE:
            return None


def _figures(url: str, state: RegistryState, *, changed: bool) -> CapturedSchemas:
    return CapturedSchemas(
        url=url,
        subjects=len(state.subjects),
        versions=len(state.versions),
        deleted=sum(version.deleted for version in state.versions.values()),
        lost=len(state.lost),
        changed=changed,
    )
