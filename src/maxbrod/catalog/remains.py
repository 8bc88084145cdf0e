"""What is left of a damaged catalog: rows in data files, and what the log says. Reads what can be read, and no more.

Nothing here is trusted as a catalog. A row says whose slice an object holds, or why a run recorded a gap: evidence for
a rebuild, like the tables of contents of objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maxbrod.catalog.codec import APPLICATION_ID
from maxbrod.catalog.log import LOG_FOLDER, TABLE_FOLDER, actions_of
from maxbrod.catalog.schema import ADDED_COLUMNS, SCHEMA, Kind
from maxbrod.catalog.validity import find_fault
from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.storage.interface import Storage

_VERSION: Final = re.compile(r"(\d{20})\.(?:json|checkpoint.*\.parquet)")


@dataclass(slots=True, kw_only=True)
class CatalogRemains:
    rows: pa.Table
    """Every row of every data file that can be read, also of files that no version names any more."""
    version: int = -1
    """The highest version that an object of the log has in its name."""
    transactions: dict[str, int] = field(default_factory=dict)
    """The last version of each application's transactions, as far as the log can be read."""
    objects: int = 0
    unreadable: list[str] = field(default_factory=list)
    """Objects of the catalog that cannot be read."""
    named: set[str] = field(default_factory=set)
    """Data files that some readable object of the log names. Others may be of a commit that never was."""
    doubtful_runs: set[str] = field(default_factory=set)
    """Runs without a snapshot that only such other files name. They are not among the rows."""


def read_remains(storage: Storage) -> CatalogRemains:
    """Read all objects of the catalog's folder. Storage errors other than a missing object are raised."""
    found = CatalogRemains(rows=SCHEMA.empty_table())
    tables: dict[str, pa.Table] = {}
    for info in list(storage.list(TABLE_FOLDER)):
        found.objects += 1
        if info.path.startswith(f"{LOG_FOLDER}/"):
            _read_log_object(storage, info.path, found)
        elif info.path.endswith(".parquet"):
            table = _rows(bytes(storage.get(info.path)))
            if table is None:
                found.unreadable.append(info.path)
            else:
                tables[info.path.removeprefix(f"{TABLE_FOLDER}/")] = table
    if found.named:
        for name in tables.keys() - found.named:
            by_commit = _is_known_by_commit(tables[name])
            found.doubtful_runs.update(tables[name].filter(by_commit)["run_id"].to_pylist())
            tables[name] = tables[name].filter(pc.invert(by_commit))
    found.rows = pa.concat_tables([found.rows, *tables.values()])
    return found


def _is_known_by_commit(table: pa.Table) -> pa.ChunkedArray:
    """Runs without a snapshot. All other rows hold whether they were committed or not."""
    return pc.and_(pc.equal(table["kind"], Kind.RUN), pc.is_null(table["path"]))


def _read_log_object(storage: Storage, path: str, found: CatalogRemains) -> None:
    name = path.removeprefix(f"{LOG_FOLDER}/")
    matched = _VERSION.fullmatch(name)
    if matched is None:
        return
    found.version = max(found.version, int(matched[1]))
    try:
        actions = actions_of(name, bytes(storage.get(path)))
        _add_transactions(found, actions)
        files = (action.get(kind) for action in actions for kind in ("add", "remove"))
        found.named.update(str(each["path"]) for each in files if isinstance(each, dict))
    except (ValueError, TypeError, AttributeError, OSError, KeyError, pa.ArrowException):
        found.unreadable.append(path)


def _add_transactions(found: CatalogRemains, actions: Iterable[dict[str, object]]) -> None:
    for action in actions:
        txn = action.get("txn")
        if isinstance(txn, dict) and isinstance(txn.get("version"), int):
            application = str(txn["appId"])
            found.transactions[application] = max(txn["version"], found.transactions.get(application, 0))


def stream_transactions(found: CatalogRemains) -> dict[str, int]:
    """Those of streams: the catalog's own is counted afresh."""
    return {name: version for name, version in found.transactions.items() if name != APPLICATION_ID}


def _rows(data: bytes) -> pa.Table | None:
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        for name in ADDED_COLUMNS - set(table.column_names):
            table = table.append_column(name, pa.nulls(table.num_rows, SCHEMA.field(name).type))
        table = table.select(SCHEMA.names).cast(SCHEMA)
        return None if find_fault(table) is not None else table
    except (OSError, ValueError, KeyError, pa.ArrowException, MaxbrodError):
        return None
