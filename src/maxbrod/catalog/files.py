"""The Parquet files of the catalog's table: written under new names, read with pushdown, swept when unused.

No reader uses a file that no commit names.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from maxbrod.bounds import ROWS_PER_BYTE_MAX
from maxbrod.catalog.codec import DataFile, Table
from maxbrod.catalog.log import (
    BRING_BACK,
    LOG_FOLDER,
    RETENTION_MS,
    TABLE_FOLDER,
    damaged,
    entry_name,
    log_path,
    time_of,
)
from maxbrod.catalog.schema import ADDED_COLUMNS, SCHEMA, SORT_ORDER, Kind
from maxbrod.catalog.validity import Totals, find_fault, refused_row
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, TruncatedDataError, UsageError
from maxbrod.storage.interface import ObjectInfo, Storage
from maxbrod.storage.object_file import ObjectFile
from maxbrod.storage.urls import check_name

_FILE_ROWS_MAX: Final = 1 << 18
_GROUP_ROWS: Final = 1 << 14
"""Small row groups: a query for one partition reads only the few that may contain it."""
_WHOLE_BYTES_MAX: Final = 1 << 20
"""Smaller files are read whole: one request instead of one for the footer and one for the pages."""
KEPT_ROWS: Final = 1 << 10
"""The rows of smaller files are kept in memory: the next commits fold them. There are a handful of such files."""
_MOMENTS_MS: Final = 60 * 1000
_UNNAMED_MAX: Final = 100
_READERS: Final = 8
_FILES_AHEAD: Final = 4
_BATCHES_AHEAD: Final = 4
"""The batches that a scan reads ahead. Arrow's own 16 batches took a gigabyte for a catalog of five million rows."""

_NAME: Final = re.compile(r"part-[0-9a-f-]{36}-([0-9a-f]{64})\.zstd\.parquet")

_FORMAT: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
)


class DataFiles:
    """The files of one table at the version that was loaded."""

    def __init__(self, storage: Storage, table: Table, written: dict[str, pa.Table] | None = None) -> None:
        """`written` has the rows of small files that this process has written; `write` adds to it."""
        self._storage: Final = storage
        self._written: Final = {} if written is None else written
        self._log: Final = table.log
        self.active: Final = list(table.files)
        self.schema: Final = table.schema
        # Columns that the archive's older minor version lacks are read as nulls.
        added = [field for field in SCHEMA if field.name in ADDED_COLUMNS and field.name not in self.schema.names]
        self._readable: Final = pa.schema([*self.schema, *added])

    @property
    def row_count(self) -> int | None:
        """The number of rows; None if another engine wrote a file without recording it."""
        counts = [file.rows for file in self.active]
        return sum(counts) if all(counts) else None

    def read(
        self,
        columns: Sequence[str],
        condition: ds.Expression | None = None,
        files: Sequence[DataFile] | None = None,
    ) -> pa.Table:
        """Rows of some or all files. Row groups whose statistics exclude the condition are not read.

        CorruptDataError: a row is invalid, see `validity`.
        """
        empty = self._dataset([]).to_table(columns=list(columns))
        return pa.concat_tables([empty, *self.stream(columns, condition, files)])

    def read_folded(self, files: Sequence[DataFile]) -> pa.Table:
        """All rows of these files. A follower folds what it has written itself: it need not read and check it again."""
        own = [self._written[file.path] for file in files if file.path in self._written]
        others = [file for file in files if file.path not in self._written]
        return pa.concat_tables([*own, *([self.read(self.schema.names, files=others)] if others else [])])

    def stream(
        self,
        columns: Sequence[str],
        condition: ds.Expression | None = None,
        files: Sequence[DataFile] | None = None,
    ) -> Iterator[pa.Table]:
        """As `read`, but in pieces, of which only a few are in memory at a time."""
        chosen = self.active if files is None else files
        if not chosen:
            return
        needed = list(columns if "kind" in columns else [*columns, "kind"])
        totals = Totals()
        room = ROWS_PER_BYTE_MAX * sum(file.bytes for file in chosen)
        try:
            for piece in _pieces(self._batches(chosen, needed, condition)):
                room -= piece.num_rows
                if room < 0:
                    claim = ValueError("its files claim to hold more rows than their bytes can")
                    raise damaged(self._storage.name_of(TABLE_FOLDER), claim)
                fault = find_fault(piece, totals=totals)
                if fault is not None:
                    self._refuse_row(chosen, condition)
                    raise refused_row(fault, piece)
                yield piece.select(list(columns))
        except (OSError, pa.ArrowException) as error:
            # Arrow does not say in which file, so look for it. A storage's own errors pass through Arrow unchanged.
            for file in chosen:
                try:
                    for _ in self._batches([file], needed, condition):
                        pass
                except (OSError, pa.ArrowException) as cause:
                    raise damaged(self._storage.name_of(f"{TABLE_FOLDER}/{file.path}"), cause) from None
            raise damaged(self._storage.name_of(TABLE_FOLDER), error) from None

    def _refuse_row(self, files: Sequence[DataFile], condition: ds.Expression | None) -> None:
        """Find the invalid row again, with all columns, to identify it. Totals are not looked at."""
        for batch in self._batches(files, self._readable.names, condition):
            whole = pa.Table.from_batches([batch])
            fault = find_fault(whole)
            if fault is not None:
                raise refused_row(fault, whole)

    def _batches(
        self, files: Sequence[DataFile], columns: Sequence[str], condition: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        if len(files) == 1:
            fragments = [self._fragment(files[0])]
        else:
            with ThreadPoolExecutor(min(_READERS, len(files))) as pool:
                fragments = list(pool.map(self._fragment, files))
        batches = self._dataset(fragments).to_batches(
            columns=list(columns), filter=condition, batch_readahead=_BATCHES_AHEAD, fragment_readahead=_FILES_AHEAD
        )
        return (batch for batch in batches if batch.num_rows)

    def _dataset(self, fragments: Sequence[ds.Fragment]) -> ds.Dataset:
        return ds.FileSystemDataset(list(fragments), self._readable, _FORMAT)

    def _fragment(self, file: DataFile) -> ds.Fragment:
        path = self._path_of(file.path)
        try:
            if file.bytes <= _WHOLE_BYTES_MAX:
                data = self._storage.get(path, size=file.bytes)
                self._demand_digest(file.path, data)
                return _FORMAT.make_fragment(pa.py_buffer(data))
            self._storage.head(path)
        except ObjectNotFoundError as error:
            raise CorruptDataError(
                "an object of the catalog is missing",
                operation="read the catalog",
                object_name=error.object_name,
                hint=BRING_BACK,
            ) from None
        except TruncatedDataError as error:
            error.hint = BRING_BACK
            raise
        return _FORMAT.make_fragment(pa.PythonFile(ObjectFile(self._storage, path, file.bytes), mode="r"))

    def demand_digests(self, files: Iterable[DataFile]) -> None:
        """CorruptDataError: one of these files is not the one that was written under its name.

        Smaller files are checked whenever they are read.
        """
        for file in files:
            if file.bytes > _WHOLE_BYTES_MAX:
                self._demand_digest(file.path, self._storage.get(self._path_of(file.path), size=file.bytes))

    def _demand_digest(self, path: str, data: memoryview) -> None:
        expected = digest_of(path)
        if expected is not None and hashlib.sha256(data).hexdigest() != expected:
            exchanged = ValueError("its SHA-256 is not the one in its name: it was damaged, or exchanged")
            raise damaged(self._storage.name_of(f"{TABLE_FOLDER}/{path}"), exchanged)

    def write(self, rows: pa.Table, *, written_at: int) -> list[AddAction]:
        """Write rows in `SORT_ORDER`, usually as one file; the actions that a commit adds them with."""
        rows = rows.sort_by(SORT_ORDER)
        return [
            self._write_file(rows.slice(start, _FILE_ROWS_MAX), written_at)
            for start in range(0, rows.num_rows, _FILE_ROWS_MAX)
        ]

    def _write_file(self, rows: pa.Table, written_at: int) -> AddAction:
        stream = pa.BufferOutputStream()
        pq.write_table(rows, stream, compression="zstd", row_group_size=_GROUP_ROWS, write_page_checksum=True)
        data = stream.getvalue()
        path = new_name(data)
        with self._storage.create(f"{TABLE_FOLDER}/{path}") as writer:
            writer.write(memoryview(data))
        if rows.num_rows < KEPT_ROWS:
            self._written[path] = rows
        return AddAction(
            path=path,
            size=data.size,
            partition_values={},
            modification_time=written_at,
            data_change=True,
            stats=json.dumps(_statistics(rows)),
        )

    def delete(self, paths: Sequence[str]) -> None:
        self._storage.delete([self._path_of(path) for path in paths])

    def unused(self) -> list[str]:
        """Files older than a day that no version of the last day names: out of use, or left by a crash.

        Younger ones may belong to a commit in progress, or to a reader of an older version. A file that was in use
        briefly goes a day after it was written, and any other a day after it was removed: see `Log.removed_briefly`.
        """
        listed = list(self._storage.list(TABLE_FOLDER))
        before_ms = time_of(listed) - RETENTION_MS
        unnamed = self._unnamed(listed, removed_since_ms=before_ms)
        return [info.path.removeprefix(f"{TABLE_FOLDER}/") for info in unnamed if info.modified_ms < before_ms]

    def _unnamed(self, listed: Iterable[ObjectInfo], *, removed_since_ms: int) -> list[ObjectInfo]:
        """Data files that are neither active nor have been removed since then."""
        names = (*(file.path for file in self.active), *self._log.removed_since(removed_since_ms))
        named = {self._path_of(name) for name in names}
        files = (info for info in listed if info.path.endswith(".parquet") and not info.path.startswith(LOG_FOLDER))
        return [info for info in files if info.path not in named]

    def unnamed_since_last(self) -> list[ObjectInfo]:
        """Files that no entry names, as new as the newest entry or newer: of commits that never were, or are lost.

        Copying an archive or waiting for a store may change the order by moments.
        """
        listed = list(self._storage.list(TABLE_FOLDER))
        last = log_path(entry_name(self._log.version))
        since_ms = max((info.modified_ms for info in listed if info.path == last), default=0) - _MOMENTS_MS
        found = (info for info in self._unnamed(listed, removed_since_ms=0) if info.modified_ms >= since_ms)
        return sorted(found, key=lambda info: info.modified_ms)[-_UNNAMED_MAX:]

    def runs_in(self, info: ObjectInfo) -> pa.Table:
        """The rows of kind run of a file that no entry names; none if it cannot be read."""
        try:
            data = pa.BufferReader(pa.py_buffer(self._storage.get(info.path)))
            rows = pq.read_table(data, filters=[("kind", "=", str(Kind.RUN))], page_checksum_verification=True)
            rows = rows.select(SCHEMA.names).cast(SCHEMA)
        except (OSError, KeyError, ValueError, pa.ArrowException, ObjectNotFoundError, CorruptDataError):
            return SCHEMA.empty_table()
        return rows if find_fault(rows) is None else SCHEMA.empty_table()

    def read_if_there(self, path: str, column: str) -> list[object]:
        """One column of a file; empty if the file has been swept."""
        try:
            data = self._storage.get(self._path_of(path))
        except ObjectNotFoundError:
            return []
        try:
            rows = pq.read_table(pa.BufferReader(pa.py_buffer(data)), columns=[column])
        except (OSError, pa.ArrowException) as error:
            raise damaged(self._storage.name_of(f"{TABLE_FOLDER}/{path}"), error) from None
        values: list[object] = rows[column].to_pylist()
        return values

    def _path_of(self, path: str) -> str:
        """The path in the archive. A log may be damaged or hostile: a name that leads out of the archive is refused."""
        try:
            return check_name(f"{TABLE_FOLDER}/{path}")
        except UsageError as error:
            raise damaged(self._storage.name_of(LOG_FOLDER), error) from None


def new_name(data: pa.Buffer) -> str:
    """A name that no data file ever had. It has the file's SHA-256, so that no file passes for another."""
    return f"part-{uuid.uuid4()}-{hashlib.sha256(data).hexdigest()}.zstd.parquet"


def digest_of(path: str) -> str | None:
    """The SHA-256 that a data file has in its name; None if an older release wrote it."""
    matched = _NAME.fullmatch(path)
    return None if matched is None else matched[1]


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join small batches: to check one row costs nearly as much as to check thousands, and most files have few."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(pending).combine_chunks()
            pending, rows = [], 0
    if pending:
        yield pa.Table.from_batches(pending).combine_chunks()


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """Delta's statistics, by which readers skip files."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_nested(column.type) and column.null_count < rows.num_rows and name != "details":
            extremes = pc.min_max(column).as_py()
            lowest[name], highest[name] = extremes["min"], extremes["max"]
    nulls = {name: column.null_count for name, column in zip(rows.column_names, rows.columns, strict=True)}
    return {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
