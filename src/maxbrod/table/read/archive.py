"""Looks an archive of any layout up: its rows, and how it was at a run. Changes nothing, and reads no records."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from maxbrod.archive.known import know, told_of
from maxbrod.archive.run_names import find_run
from maxbrod.archive.snapshot_document import decode
from maxbrod.archive.surveyed import rows_of, snapshot_of
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.surveyed import SurveyedCatalog
from maxbrod.catalog.table import no_archive
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError, UsageError
from maxbrod.layouts.registry import NATIVE, detect_layout, layout_of
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.catalog.rows import Run
    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage

AnyCatalog: TypeAlias = Catalog | SurveyedCatalog


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """An archive as it is now. `surveyed` stands for the snapshots of one in another layout."""

    storage: Storage
    catalog: AnyCatalog
    surveyed: Snapshot | None = None

    def snapshot_of(self, run_id: str) -> Snapshot:
        """UsageError: there is no such run, or it recorded none."""
        return self._read(find_run(self.catalog.runs(), run_id))

    def last_snapshot(self) -> Snapshot | None:
        """None where none can be read: the present goes on without it."""
        runs = [run for run in self.catalog.runs() if run.snapshot is not None]
        with suppress(CorruptDataError, ObjectNotFoundError, UnsupportedFormatError):
            return self._read(runs[-1]) if runs else None
        return None

    def _read(self, run: Run) -> Snapshot:
        if self.surveyed is not None:
            return self.surveyed
        if run.snapshot is None:
            raise UsageError(f"the run {run.run_id} recorded no snapshot", hint="name a run of 'maxbrod backup'")
        return decode(bytes(self.storage.get(run.snapshot)), object_name=self.storage.name_of(run.snapshot))


def look_up(url: str, options: StorageConfig, layout: str | None) -> LookedUp:
    """UsageError: there is no archive. CorruptDataError: its catalog is missing or damaged."""
    storage = open_storage(url, options)
    if layout in {None, NATIVE}:
        catalog = Catalog.find(storage)
        if catalog is not None:
            return LookedUp(storage=storage, catalog=catalog)
        layout = None if layout is not None else detect_layout(storage)
        if layout is None:
            raise no_archive(storage)
    survey = layout_of(layout or NATIVE).survey(storage)
    catalog_of_survey = SurveyedCatalog(storage.url, rows_of(survey))
    return LookedUp(storage=storage, catalog=catalog_of_survey, surveyed=snapshot_of(survey))


def topic_ranks(snapshot: Snapshot | None) -> Mapping[str, int]:
    """Which of several topics of one name the cluster had last: see `Known`."""
    if snapshot is None:
        return {}
    with suppress(CorruptDataError, UnsupportedFormatError):
        return know(told_of(snapshot)).ranks
    return {}
