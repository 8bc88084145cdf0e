"""The catalog of one archive: open it, ask it, commit to it.

A `Catalog` stands at the version that it read. It answers from there and commits only onto it: if anyone else has
committed since, `commit` is refused, because what was planned from the old version may be wrong by now.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from maxbrod.catalog import queries
from maxbrod.catalog.commits import last_batch, overtaken, plan_rewrite, write_commit
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.log import has_entry, read_log
from maxbrod.catalog.replaced import REVISION_COLUMNS, count_revisions, retire, revive
from maxbrod.catalog.rows import Run, encode_rows
from maxbrod.catalog.schema import SCHEMA
from maxbrod.catalog.table import create_table, keep_short, load_table, no_archive
from maxbrod.catalog.validity import check_rows
from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.catalog.codec import Table
    from maxbrod.catalog.commits import StreamBatch
    from maxbrod.catalog.queries import ArchivedRange
    from maxbrod.catalog.replaced import Revisions
    from maxbrod.catalog.rows import Gap, Row
    from maxbrod.model import GapReason, PartitionId
    from maxbrod.storage.interface import Storage

_SWEEP_EVERY: Final = 64
"""Commits between two sweeps: one listing of a folder is then nothing beside the commits."""


class Catalog:
    """Not for several threads at once."""

    def __init__(self, storage: Storage, table: Table) -> None:
        self.url: Final = storage.url
        # A catalog that had to be thawed first would be of no use.
        self._storage: Final = storage.at_hand()
        self._table = table

    def __repr__(self) -> str:
        return f"Catalog({self.url!r}, version={self.version})"

    @classmethod
    def create(cls, storage: Storage) -> Self:
        """The catalog of a new archive; RefusedError where there is one."""
        return cls(storage, create_table(storage.at_hand()))

    @classmethod
    def find(cls, storage: Storage) -> Self | None:
        """The catalog as it is now; None where there is none.

        UnsupportedFormatError where a newer release has written it, CorruptDataError where an object of it is damaged
        or missing.
        """
        table = load_table(storage)
        return None if table is None else cls(storage, table)

    @classmethod
    def open(cls, storage: Storage) -> Self:
        """The same, but UsageError where there is none, and CorruptDataError where it was lost."""
        found = cls.find(storage)
        if found is None:
            raise no_archive(storage)
        return found

    @property
    def version(self) -> int:
        """The table's version that this catalog has read, or committed."""
        return self._table.log.version

    def refresh(self) -> None:
        """Move on to the newest version. What was planned before is to be planned again."""
        self._table = Catalog.open(self._storage)._table  # noqa: SLF001 - one of the same class

    def is_newest(self) -> bool:
        """Whether nobody has committed since this catalog was read: one look for a name, where all is quiet.

        Asked before anything is written, too; `write_commit` still decides between writers at the same moment.
        """
        if has_entry(self._storage, self.version + 1):
            return False
        # Delta's log is cleaned up from its start. If our own entry is gone the next one may have gone with it, and its
        # name be free again.
        if has_entry(self._storage, self.version):
            return True
        newest = read_log(self._storage)
        return newest is not None and newest.version == self.version

    def positions(self) -> dict[PartitionId, ArchivedRange]:
        """How far each partition is archived."""
        return queries.find_positions(self._files())

    def runs(self) -> list[Run]:
        """Every run, in the order of commits."""
        return queries.find_runs(self._files())

    def last_snapshot(self) -> str | None:
        """The snapshot of the last run that recorded one, without looking into the others."""
        return queries.find_last_snapshot(self._files())

    def last_batch(self, stream: str) -> int | None:
        """The last micro-batch of a stream that was committed; None: there is none."""
        return last_batch(self._table.log, stream)

    def gaps(self, reasons: Collection[GapReason]) -> list[Gap]:
        """Every gap that has one of these reasons."""
        return queries.find_gaps(self._files(), reasons)

    def rows(
        self,
        *,
        topic: str | None = None,
        topic_id: str | None = None,
        partition: int | None = None,
        offsets: tuple[int, int] | None = None,
        timestamps: tuple[int, int] | None = None,
        as_of: Mapping[PartitionId, int] | None = None,
        revisions: Revisions | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows of data and gaps, by topic id, partition and offset; `rows.decode_rows` makes values of them.

        `offsets` is [first, end): rows that overlap it are returned whole. `timestamps` is first and last in
        milliseconds: rows that can hold nothing of that time are left out, which is sure of those that end before it,
        and of those that begin after it with an exact lowest timestamp.
        `as_of` gives the end offset of each partition as a run's snapshot recorded it: partitions that it does
        not name did not exist then, and the last row of each may reach beyond its end. `revisions` is how often rows
        of each partition had been replaced by then, also from a snapshot, and gives back those that were there; without
        it rows are those of now.
        """
        return queries.find_rows(
            self._files(),
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            offsets=offsets,
            timestamps=timestamps,
            as_of=as_of,
            revisions=revisions,
            columns=columns,
        )

    def replaced(self) -> pa.Table:
        """Rows of data and gaps that others have taken the place of, as they were, in no order."""
        return revive(queries.find_replaced(self._files(), SCHEMA.names))

    def revisions(self) -> dict[PartitionId, int]:
        """How often rows of each partition have been replaced; of those of which some have."""
        return count_revisions(queries.find_replaced(self._files(), REVISION_COLUMNS))

    def paths(self) -> set[str]:
        """Every object that some row names: data, also such as was replaced, and snapshots."""
        return queries.find_paths(self._files())

    def recent_paths(self, since_ms: int) -> set[str]:
        """Objects that a row named at some time since then, though perhaps none does now.

        Whoever plans from an older version may still read them. Goes back as far as Delta keeps files: a day.
        """
        files = self._files()
        removed = files.removed_since(since_ms)
        return {str(path) for file in removed for path in files.read_if_there(file, "path") if path is not None}

    def commit(
        self,
        rows: Iterable[Row] | pa.Table,
        *,
        replaced: Iterable[Row] | pa.Table = (),
        retired: Iterable[Row] | pa.Table = (),
        expected_version: int | None = None,
        batch: StreamBatch | None = None,
    ) -> int:
        """Add rows, and remove those that they replace, all at once or not at all; the new version.

        Of `retired` rows, those that they replace as well, `as of` an older run still finds what they were.
        `batch` is the micro-batch of a stream that the rows are of; `last_batch` tells it from then on.
        RefusedError: somebody else has committed since this catalog was read (or since `expected_version`, where
        given), a replaced row is not there, or a row is nonsense; nothing is visible. UnavailableError: the store
        failed, and its message says if that leaves open whether the commit was carried out. After an error this
        catalog stands where it stood, so a commit that was carried out is met as one of another writer.
        """
        added, gone, kept = _as_table(_stamped(rows, self.version + 1)), _as_table(replaced), _as_table(retired)
        if kept.num_rows:
            added, gone = pa.concat_tables([added, retire(kept, self.revisions())]), pa.concat_tables([gone, kept])
        check_rows(added)
        if not added.num_rows and not gone.num_rows:
            return self.version
        files = self._files()
        if expected_version not in {None, self.version} or not self.is_newest():
            raise overtaken(self.version + 1, self.url)
        rewrite = plan_rewrite(files, added, gone)
        self._table = write_commit(self._storage, self._table, files, rewrite, batch=batch)
        self._keep_small()
        return self.version

    def _keep_small(self) -> None:
        """The commit is done, so nothing here may fail it."""
        self._table = keep_short(self._storage, self._table)
        if self.version % _SWEEP_EVERY == 0:
            # Not Delta's own vacuum: that commits, and would push others off their version.
            with suppress(MaxbrodError):
                files = self._files()
                files.delete(files.unused())

    def _files(self) -> DataFiles:
        return DataFiles(self._storage, self._table)


def _stamped(rows: Iterable[Row] | pa.Table, version: int) -> Iterable[Row] | pa.Table:
    """Runs get the version that they are committed with: it alone says which came later, where clocks step back."""
    if isinstance(rows, pa.Table):
        return rows
    return [replace(row, commit=version) if isinstance(row, Run) else row for row in rows]


def _as_table(rows: Iterable[Row] | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else encode_rows(rows)
