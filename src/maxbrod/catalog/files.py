"""The Parquet files of the catalog's table: written under names never used before, read with pushdown, swept away.

A file that no commit names does not exist for any reader. Everything goes through delta-rs's own access to the store,
so that an archive needs one set of options.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from maxbrod.catalog.folding import DataFile
from maxbrod.catalog.schema import ADDED_COLUMNS, SCHEMA, SORT_ORDER
from maxbrod.catalog.validity import find_fault, refused_row
from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

_FILE_ROWS_MAX: Final = 1 << 18
_GROUP_ROWS: Final = 1 << 14
"""Small row groups: a query for one partition reads the few that can hold it."""

_FORMAT: Final = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True, page_checksum_verification=True)
)


class DataFiles:
    """The files of one table, as of the version that was loaded."""

    def __init__(self, table: DeltaTable, options: Mapping[str, str]) -> None:
        actions = pa.table(table.get_add_actions(flatten=True)).select(["path", "num_records", "size_bytes"])
        self.active: Final = [
            DataFile(path=row["path"], rows=row["num_records"], bytes=row["size_bytes"]) for row in actions.to_pylist()
        ]
        self.schema: Final = pa.schema(table.schema().to_arrow())
        # An archive of an older minor version has nulls where it has no column.
        added = [field for field in SCHEMA if field.name in ADDED_COLUMNS and field.name not in self.schema.names]
        self._readable: Final = pa.schema([*self.schema, *added])
        if any(type(each) is not int or each < 0 for file in self.active for each in (file.rows, file.bytes)):
            raise CorruptDataError(
                "Delta's log does not say how many rows a file of the catalog has",
                operation="read the catalog",
                hint="bring back the folder 'catalog' from a copy or from older object versions",
            )
        sizes = {_own_name(file.path): file.bytes for file in self.active}
        self._store: Final = pafs.PyFileSystem(DeltaStorageHandler(table.table_uri, dict(options), sizes))

    def read(
        self,
        columns: Sequence[str],
        condition: ds.Expression | None = None,
        files: Sequence[DataFile] | None = None,
    ) -> pa.Table:
        """Rows of some or all files. Row groups whose statistics rule the condition out are not read.

        CorruptDataError: a row makes no sense, see `validity`.
        """
        paths = [file.path for file in (self.active if files is None else files)]
        dataset = ds.FileSystemDataset.from_paths(paths, schema=self._readable, format=_FORMAT, filesystem=self._store)
        read = columns if "kind" in columns else [*columns, "kind"]
        rows = dataset.to_table(columns=list(read), filter=condition)
        fault = find_fault(rows)
        if fault is not None:
            # The same rows in the same order, with all that tells which one it is.
            raise refused_row(fault, dataset.to_table(filter=condition))
        return rows.select(list(columns))

    def write(self, rows: pa.Table, *, written_at: int) -> list[AddAction]:
        """Write rows in `SORT_ORDER`, usually as one file; what a commit needs to name them."""
        rows = rows.sort_by(SORT_ORDER)
        return [
            self._write_file(rows.slice(start, _FILE_ROWS_MAX), written_at)
            for start in range(0, rows.num_rows, _FILE_ROWS_MAX)
        ]

    def _write_file(self, rows: pa.Table, written_at: int) -> AddAction:
        path = f"part-{uuid.uuid4()}.zstd.parquet"
        with self._store.open_output_stream(path) as stream:
            pq.write_table(rows, stream, compression="zstd", row_group_size=_GROUP_ROWS, write_page_checksum=True)
            size = stream.tell()
        return AddAction(
            path=path,
            size=size,
            partition_values={},
            modification_time=written_at,
            data_change=True,
            stats=json.dumps(_statistics(rows)),
        )

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._store.delete_file(_own_name(path))

    def log_entry(self, version: int) -> str | None:
        """The text of one entry of Delta's log, straight from the store."""
        try:
            with self._store.open_input_file(_log_path(version)) as file:
                return bytes(file.read()).decode()
        except FileNotFoundError:
            return None

    def removed_since(self, version: int, since_ms: int) -> list[str]:
        """Files that commits up to this version took out of use since then, as far back as Delta's log reaches."""
        removed: list[str] = []
        while (entry := self.log_entry(version)) is not None:
            actions = [json.loads(line) for line in entry.splitlines()]
            if any(action["commitInfo"]["timestamp"] < since_ms for action in actions if "commitInfo" in action):
                break
            removed += [action["remove"]["path"] for action in actions if "remove" in action]
            version -= 1
        return removed

    def read_if_there(self, path: str, column: str) -> list[object]:
        """One column of a file that may have been swept away."""
        try:
            with self._store.open_input_file(_own_name(path)) as file:
                values: list[object] = pq.read_table(file, columns=[column])[column].to_pylist()
                return values
        except FileNotFoundError:
            return []

    def has_log_entry(self, version: int) -> bool:
        return bool(self._store.get_file_info(_log_path(version)).type == pafs.FileType.File)


def _own_name(path: str) -> str:
    """The name, or CorruptDataError: Delta's log may name files anywhere, a catalog names those in its own folder."""
    if "/" in path or "\\" in path or "%" in path or ":" in path or path in {"", ".", ".."}:
        raise CorruptDataError(
            f"the catalog names a file that is not in its folder: {path!r}",
            operation="read the catalog",
            hint="bring back the folder 'catalog' from a copy or from older object versions",
        )
    return path


def _log_path(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """What Delta's readers skip files by."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if not pa.types.is_nested(column.type) and column.null_count < rows.num_rows and name != "details":
            extremes = pc.min_max(column).as_py()
            lowest[name], highest[name] = extremes["min"], extremes["max"]
    nulls = {name: column.null_count for name, column in zip(rows.column_names, rows.columns, strict=True)}
    return {"numRecords": rows.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
