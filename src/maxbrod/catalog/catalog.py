"""The catalog of one archive: open it, ask it, commit to it.

A `Catalog` stands at the version that it read. It answers from there and commits only onto it: if anyone else has
committed since, `commit` is refused, because what was planned from the old version may be wrong by now.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from deltalake.exceptions import DeltaError

from maxbrod.catalog import queries
from maxbrod.catalog.commits import last_batch, overtaken, plan_rewrite, write_commit
from maxbrod.catalog.durable import refuse_linked
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.rows import encode_rows
from maxbrod.catalog.table import create_table, load_table, store_errors
from maxbrod.catalog.validity import check_rows
from maxbrod.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from deltalake import DeltaTable

    from maxbrod.catalog.commits import StreamBatch
    from maxbrod.catalog.queries import Position
    from maxbrod.catalog.rows import Gap, PartitionId, Row, Run
    from maxbrod.catalog.schema import GapReason

_SWEEP_EVERY: Final = 64
"""Commits between two sweeps: one listing of a folder is then nothing beside the commits."""


class Catalog:
    """Not for several threads at once."""

    def __init__(self, url: str, options: Mapping[str, str], table: DeltaTable) -> None:
        self.url: Final = url
        self._options: Final = dict(options)
        self._version = table.version()
        self._table: DeltaTable | None = table

    def __repr__(self) -> str:
        # Without the options, which hold keys.
        return f"Catalog({self.url!r}, version={self._version})"

    @classmethod
    def create(cls, url: str, options: Mapping[str, str] | None = None) -> Self:
        """The catalog of a new archive; RefusedError where there is one."""
        return cls(url, options or {}, create_table(url, options or {}))

    @classmethod
    def open(cls, url: str, options: Mapping[str, str] | None = None) -> Self:
        """The catalog as it is now. `options` are delta-rs's storage options, as `storage.delta` makes them.

        UsageError where there is none, UnsupportedFormatError where a newer release has written it.
        """
        return cls(url, options or {}, load_table(url, options or {}))

    @property
    def version(self) -> int:
        """The table's version that this catalog has read, or committed."""
        return self._version

    def refresh(self) -> None:
        """Move on to the newest version. What was planned before is to be planned again."""
        self._table = load_table(self.url, self._options)
        self._version = self._table.version()

    def is_newest(self) -> bool:
        """Whether nobody has committed since this catalog was read: one look for a name, where all is quiet."""
        with store_errors("look at the catalog", self.url):
            return self._is_newest(self._files())

    def positions(self) -> dict[PartitionId, Position]:
        """How far each partition is archived."""
        with store_errors("read the catalog", self.url):
            return queries.find_positions(self._files())

    def runs(self) -> list[Run]:
        """Every run, oldest first."""
        with store_errors("read the catalog", self.url):
            return queries.find_runs(self._files())

    def last_snapshot(self) -> str | None:
        """The snapshot of the last run that recorded one, without looking into the others."""
        with store_errors("read the catalog", self.url):
            return queries.find_last_snapshot(self._files())

    def last_batch(self, stream: str) -> int | None:
        """The last micro-batch of a stream that was committed; None: there is none."""
        return last_batch(self._loaded(), stream)

    def gaps(self, reasons: Collection[GapReason]) -> list[Gap]:
        """Every gap that has one of these reasons."""
        with store_errors("read the catalog", self.url):
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
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows of data and gaps, by topic id, partition and offset; `rows.decode_rows` makes values of them.

        `offsets` is [first, end): rows that overlap it are returned whole. `timestamps` is first and last in
        milliseconds: rows that can hold nothing of that time are left out, which is sure of those that end before it,
        and of those that begin after it with an exact lowest timestamp.
        `as_of` gives the end offset of each partition as a run's snapshot recorded it: partitions that it does
        not name did not exist then, and the last row of each may reach beyond its end.
        """
        with store_errors("read the catalog", self.url):
            return queries.find_rows(
                self._files(),
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                offsets=offsets,
                timestamps=timestamps,
                as_of=as_of,
                columns=columns,
            )

    def recent_paths(self, since_ms: int) -> set[str]:
        """Objects that a row named at some time since then, though perhaps none does now.

        Whoever plans from an older version may still read them. Goes back as far as Delta keeps files: a day.
        """
        with store_errors("read the catalog", self.url):
            files = self._files()
            removed = files.removed_since(self._version, since_ms)
            return {str(path) for file in removed for path in files.read_if_there(file, "path") if path is not None}

    def commit(
        self,
        rows: Iterable[Row] | pa.Table,
        *,
        replaced: Iterable[Row] | pa.Table = (),
        expected_version: int | None = None,
        batch: StreamBatch | None = None,
    ) -> int:
        """Add rows, and remove those that they replace, all at once or not at all; the new version.

        `batch` is the micro-batch of a stream that the rows are of; `last_batch` tells it from then on.
        RefusedError: somebody else has committed since this catalog was read (or since `expected_version`, where
        given), a replaced row is not there, or a row is nonsense; nothing is visible. UnavailableError: the store
        failed, and its message says if that leaves open whether the commit was carried out. After an error this
        catalog stands where it stood, so a commit that was carried out is met as one of another writer.
        """
        added, gone = _as_table(rows), _as_table(replaced)
        check_rows(added)
        if not added.num_rows and not gone.num_rows:
            return self._version
        with store_errors("commit to the catalog", self.url):
            files = self._files()
            if expected_version not in {None, self._version} or not self._is_newest(files):
                raise overtaken(self._version + 1, self.url)
            rewrite = plan_rewrite(files, added, gone)
            write_commit(self._loaded(), files, rewrite, archive_url=self.url, batch=batch)
        self._advance()
        return self._version

    def _is_newest(self, files: DataFiles) -> bool:
        """Asked before anything is written; `write_commit` still decides between writers at the same moment."""
        if files.has_log_entry(self._version + 1):
            return False
        # Delta's log is cleaned up from its start. If our own entry is gone the next one may have gone with it, and its
        # name be free again.
        return files.has_log_entry(self._version) or load_table(self.url, self._options).version() == self._version

    def _advance(self) -> None:
        """Stand at our own commit. It is done, so nothing from here on may fail it."""
        self._version += 1
        table, self._table = self._loaded(), None
        with suppress(DeltaError, OSError, RefusedError):
            table.load_as_version(self._version)
            self._table = table
            if self._version % _SWEEP_EVERY == 0:
                # Not Delta's own vacuum: that commits, and would push others off their version.
                refuse_linked(self.url)
                self._files().delete(table.vacuum(dry_run=True, full=True))

    def _loaded(self) -> DeltaTable:
        if self._table is None:
            self._table = load_table(self.url, self._options, version=self._version)
        return self._table

    def _files(self) -> DataFiles:
        return DataFiles(self._loaded(), self._options)


def _as_table(rows: Iterable[Row] | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else encode_rows(rows)
