"""The remains of a damaged catalog, and the new one in its place. Reads what can be read, and no more.

Nothing here is trusted as a catalog. A row says whose slice an object holds, or why a run recorded a gap: evidence for
a rebuild, like the tables of contents of objects.

The new catalog takes its place in one step. The old objects are copied first. Then there are two ways. If the old log
can still be read, one ordinary commit replaces all files. Else the new catalog is a version behind all old ones that
needs none of them: its entry is put first, on condition that nobody else has put one, and its checkpoint makes it
visible. Killed before that, the old catalog is as damaged as it was. A writer that still works on the old version is
refused in either case.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import RemoveAction

from maxbrod.catalog.catalog import keep_short, load_table
from maxbrod.catalog.codec import APPLICATION_ID, Table, decode_log, encode_commit, encode_whole
from maxbrod.catalog.commits import NONCE_KEY, overtaken, widen
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.ledger import SliceKey, slice_keys
from maxbrod.catalog.log import (
    LOG_FOLDER,
    TABLE_FOLDER,
    Log,
    actions_of,
    checkpoint_name,
    entry_name,
    log_path,
    put_pointer,
    unchecked,
)
from maxbrod.catalog.schema import ADDED_COLUMNS, SCHEMA, TABLE_PROPERTIES, Kind
from maxbrod.catalog.statements import signer_of
from maxbrod.catalog.validity import check_rows, find_fault
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectExistsError
from maxbrod.model import now_ms
from maxbrod.storage.interface import Storage

_VERSION: Final = re.compile(r"(\d{20})\.(?:json|checkpoint.*\.parquet)")

CATALOG: Final = "catalog"
ASIDE: Final = "catalog-before"
"""The folder of old catalogs, with a folder for each repair. Nothing reads or deletes it."""
_AHEAD: Final = 1000
"""The distance from the last known version to that of a catalog whose log is gone: a writer may be at a later one."""


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
    retired: set[SliceKey] = field(default_factory=set)
    """Slices that rows of kind replaced or building name: they are no part of the archive as it was last."""


def _bytes_of(storage: Storage, path: str) -> bytes:
    """The bytes of an object; if an encrypted archive cannot open it, those that the store holds."""
    try:
        return bytes(storage.get(path))
    except CorruptDataError:
        return bytes(storage.get_stored(path))


def read_remains(storage: Storage) -> CatalogRemains:
    """Read all objects of the catalog's folder. Storage errors other than a missing object are raised."""
    found = CatalogRemains(rows=SCHEMA.empty_table())
    tables: dict[str, pa.Table] = {}
    log: dict[str, bytes] = {}
    for info in list(storage.list(TABLE_FOLDER)):
        found.objects += 1
        if info.path.startswith(f"{LOG_FOLDER}/"):
            log[info.path.removeprefix(f"{LOG_FOLDER}/")] = _bytes_of(storage, info.path)
        elif info.path.endswith(".parquet"):
            table = _rows(storage, info.path)
            if table is None:
                found.unreadable.append(info.path)
            else:
                tables[info.path.removeprefix(f"{TABLE_FOLDER}/")] = table
    _read_log_objects(log, found)
    if found.named:
        for name in tables.keys() - found.named:
            # Runs without a snapshot. All other rows hold whether they were committed or not.
            is_run = pc.equal(tables[name]["kind"], Kind.RUN)
            by_commit = pc.and_(is_run, pc.is_null(tables[name]["path"]))
            found.doubtful_runs.update(tables[name].filter(by_commit)["run_id"].to_pylist())
            tables[name] = tables[name].filter(pc.invert(by_commit))
    for name, table in tables.items():
        # A commit that never was has retired nothing.
        if not found.named or name in found.named:
            found.retired |= slice_keys(table.filter(pc.equal(table["kind"], Kind.REPLACED)))
    found.rows = pa.concat_tables([found.rows, *tables.values()])
    building = found.rows.filter(pc.equal(found.rows["kind"], Kind.BUILDING))
    found.retired |= slice_keys(building) - slice_keys(found.rows.filter(pc.equal(found.rows["kind"], Kind.DATA)))
    return found


def _read_log_objects(log: Mapping[str, bytes], found: CatalogRemains) -> None:
    entries = {}
    for name, data in log.items():
        matched = _VERSION.fullmatch(name)
        if matched is None:
            continue
        found.version = max(found.version, int(matched[1]))
        try:
            entries[name] = actions_of(name, data)
        except (ValueError, TypeError, AttributeError, OSError, KeyError, CorruptDataError, pa.ArrowException):
            found.unreadable.append(log_path(name))
    for name in unchecked({name: log[name] for name in entries}):
        found.unreadable.append(log_path(name))
        del entries[name]
    for name, actions in entries.items():
        try:
            for txn in (action.get("txn") for action in actions):
                if isinstance(txn, dict) and isinstance(txn.get("version"), int):
                    application = str(txn["appId"])
                    found.transactions[application] = max(txn["version"], found.transactions.get(application, 0))
            files = (action.get(kind) for action in actions for kind in ("add", "remove"))
            found.named.update(str(file["path"]) for file in files if isinstance(file, dict))
        except (TypeError, AttributeError, KeyError):
            found.unreadable.append(log_path(name))


def stream_transactions(found: CatalogRemains) -> dict[str, int]:
    """Those of streams: the catalog's own is counted afresh."""
    return {name: version for name, version in found.transactions.items() if name != APPLICATION_ID}


def _rows(storage: Storage, path: str) -> pa.Table | None:
    try:
        data = pa.py_buffer(storage.get(path))
    except CorruptDataError:
        return None
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        for name in ADDED_COLUMNS - set(table.column_names):
            table = table.append_column(name, pa.nulls(table.num_rows, SCHEMA.field(name).type))
        table = table.select(SCHEMA.names).cast(SCHEMA)
        return None if find_fault(table) is not None else table
    except (OSError, ValueError, KeyError, pa.ArrowException, MaxbrodError):
        return None


def readable_table(storage: Storage) -> Table | None:
    """The table, if its log can be read; None if not, or if there is none."""
    try:
        return load_table(storage)
    except CorruptDataError:
        return None


def next_version(highest_in_log: int, highest_commit: int) -> int:
    """The version that a rebuilt catalog gets. Runs are ordered by it, so it is above that of every known run.

    It is the very next one behind the log where there is a log: a writer that still works on it puts the same name, so
    one of the two is refused.
    """
    if highest_in_log >= highest_commit:
        return highest_in_log + 1
    return highest_commit + _AHEAD


def keep_aside(storage: Storage, name: str) -> int:
    """Copy the old catalog; the number of objects. Copies that exist already are of an earlier attempt."""
    objects = list(storage.list(CATALOG))
    for info in objects:
        with suppress(ObjectExistsError):
            storage.put(f"{ASIDE}/{name}/{info.path.removeprefix(f'{CATALOG}/')}", _bytes_of(storage, info.path))
    return len(objects)


def replace_catalog(
    storage: Storage, rows: pa.Table, *, table: Table | None, version: int, transactions: Mapping[str, int]
) -> None:
    """Make these rows the catalog. RefusedError: another writer has committed meanwhile; nothing is visible."""
    check_rows(rows)
    signer, storage = signer_of(storage), storage.at_hand()
    now = now_ms()
    if table is not None and version == table.log.version + 1:
        files = DataFiles(storage, table)
        adds = files.write(widen(rows, files.schema), written_at=now)
        removes = [RemoveAction(file.path, True, now, size=file.bytes, partition_values={}) for file in files.active]
        entry, committed = encode_commit(
            table, adds, removes, metadata={NONCE_KEY: uuid.uuid4().hex}, transactions=transactions
        )
        if signer is not None:
            entry, committed = signer.sign_anew(storage, entry, committed)
        _put_entry(storage, version, entry)
        keep_short(storage, committed, cleans=False)
        return
    empty = Table(log=Log(version - 1, {}), schema=SCHEMA, properties=dict(TABLE_PROPERTIES), files=())
    adds = DataFiles(storage, empty).write(rows, written_at=now)
    metadata = {NONCE_KEY: uuid.uuid4().hex}
    entry, checkpoint, pointer = encode_whole(version, adds, metadata=metadata, transactions=transactions)
    if signer is not None:
        name = storage.name_of(LOG_FOLDER)
        made = decode_log(Log(version, {checkpoint_name(version): checkpoint, entry_name(version): entry}), name=name)
        entry, _ = signer.sign_anew(storage, entry, made)
    _put_entry(storage, version, entry)
    # The commit point: without it the entry lacks those before it.
    storage.put(log_path(checkpoint_name(version)), checkpoint)
    put_pointer(storage, pointer)


def _put_entry(storage: Storage, version: int, entry: bytes) -> None:
    try:
        storage.put(log_path(entry_name(version)), entry)
    except ObjectExistsError:
        raise overtaken(version, storage.url) from None
