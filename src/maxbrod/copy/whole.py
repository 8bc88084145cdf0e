"""Copies a whole archive: objects first, then documents, then one version of the catalog, byte for byte.

The target is a complete archive at every instant: until the new version is published it is the version before, whose
objects are all still there. What the source no longer needs stays at the target until its own `gc`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.archive import Archive
from maxbrod.archive.copies import announce_version, announced_version, withdraw_announcements
from maxbrod.archive.folders import CopyRule, folders_with
from maxbrod.archive.undo import read_document, undoable
from maxbrod.archive.upkeep import read_clocks
from maxbrod.catalog.catalog import Catalog, load_table
from maxbrod.catalog.codec import Table
from maxbrod.catalog.copies import data_files, demand_descent, publish, read_entry, recent_data_files, version_of_copy
from maxbrod.catalog.ledger import documents_in, version_of
from maxbrod.catalog.log import BRING_BACK, TABLE_FOLDER
from maxbrod.catalog.queries import SLICE_COLUMNS
from maxbrod.catalog.statements import LINKS
from maxbrod.copy.plan import ObjectToCopy, lacking_rows, objects_in
from maxbrod.copy.steps import CopyPlan, CopySteps
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError
from maxbrod.notices import Notice


class WholeCopy(CopySteps):
    """The target is the source at one of its versions."""

    def demand_copy(self, table: Table) -> int | None:
        copied = load_table(self.target)
        self._demand_descent(table, copied)
        return None if copied is None else copied.log.version

    def _demand_descent(self, table: Table, copied: Table | None) -> None:
        if copied is not None:
            found = version_of_copy(self.target, Catalog(self.target, copied))
            demand_descent(self.source, Catalog(self.source, table), found, name=self.target.url)

    def plan(self, table: Table) -> CopyPlan:
        with self.work.looking("planning"):
            there = self.listing.refresh()
            archive = self.at(table)
            prunes, notices = self._undoable(archive)
            lacking = [lacking_rows(rows, there) for rows in (*Catalog(self.source, table).slices(), *prunes.values())]
            rows = pa.concat_tables(lacking) if lacking else None
            classes, now = self.work.config.copies.storage_class_after, self.work.clock_ms
            return CopyPlan(
                table=table,
                objects=() if rows is None else tuple(objects_in(rows, classes, now_ms=now)),
                documents=tuple(
                    tuple(ObjectToCopy(path=path) for path in group)
                    for group in self._documents(archive, table, list(prunes))
                ),
                there=len(there),
                notices=tuple(notices),
            )

    def _undoable(self, archive: Archive) -> tuple[dict[str, pa.Table], list[Notice]]:
        """The undo documents of prunes that can still be undone, and the slices that they name."""
        found: dict[str, pa.Table] = {}
        notices = []
        runs = archive.catalog.runs()
        for prune in undoable(self.source, runs, read_clocks(archive, ask_store=False, demand=False)):
            try:
                rows = read_document(self.source, prune.document)
            except CorruptDataError as error:
                notices.append(Notice(kind="corrupt", message=str(error), hint=error.hint, exit_code=EXIT_CORRUPT))
                continue
            found[prune.document] = rows.select(SLICE_COLUMNS).filter(pc.is_valid(rows["digest"]))
        return found, notices

    def _documents(self, archive: Archive, table: Table, prunes: Sequence[str]) -> Iterator[list[str]]:
        """The documents that the target lacks. Those by which a lost end of the catalog shows come last."""
        snapshots = {run.snapshot for run in archive.catalog.runs() if run.snapshot is not None}
        whole = [info.path for folder in folders_with(CopyRule.WHOLE) for info in self.source.list(folder)]
        yield self._lacking([*whole, *prunes, *sorted(snapshots)])
        # Others are of commits that never were, or are not yet.
        ledger = [
            info.path for info, number in documents_in(self.source) if number <= table.ledger or version_of(number) == 0
        ]
        yield self._lacking(ledger)
        kept = {info.path for info in self.source.list(TABLE_FOLDER)}
        links = [info.path for info in self.source.list(LINKS)]
        yield self._lacking([*links, *data_files(table), *(path for path in recent_data_files(table) if path in kept)])

    def _lacking(self, paths: Sequence[str]) -> list[str]:
        folders = {"/".join(path.split("/")[:-1]) for path in paths}
        there = {info.path for folder in sorted(folders) for info in self.target.list(folder)}
        return [path for path in dict.fromkeys(paths) if path not in there]

    def begin_documents(self, plan: CopyPlan) -> None:
        if announced_version(self.target) < plan.table.log.version:
            announce_version(self.target, plan.table.log.version)

    def commit(self, plan: CopyPlan) -> int:
        """Everything that the version names is at the target by now, but for what the source has lost itself."""
        table, lost = plan.table, next(filter(self.is_hopeless, data_files(plan.table)), None)
        if lost is not None:
            raise CorruptDataError(
                "a file of the catalog is missing or damaged at the source: nothing was published",
                operation="copy",
                object_name=self.source.name_of(lost),
                hint=BRING_BACK,
            )
        copied = load_table(self.target)
        if copied is not None and copied.log.version > table.log.version:
            # Another copy was faster, or somebody else has written there.
            self._demand_descent(self.newest(), copied)
            return copied.log.version
        self._demand_descent(table, copied)
        entry = None if copied is None else read_entry(self.target, copied.log.version)
        if copied is None or copied.log.version < table.log.version or entry is None:
            self.work.tell("committing")
            publish(table, self.source, self.target)
        withdraw_announcements(self.target, table.log.version)
        return table.log.version
