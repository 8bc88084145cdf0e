"""The codec of Delta's log: decodes the bytes of a log to a table, and encodes commits and checkpoints.

delta-rs decodes logs and makes checkpoints. It has its own client for every store, with other retries than ours and
without support for certificates. So it never accesses the store: the few objects that make a version are written to
a private temporary folder for the duration of one call. Entries are encoded here: loading the log for each commit took
five times as long as writing one. Nothing here touches an archive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from maxbrod import __version__, strict_json
from maxbrod.catalog.log import (
    CHECKSUM_KEY,
    Log,
    actions_of,
    checkpoint_name,
    damaged,
    entry_checksum,
    entry_name,
    unchecked,
)
from maxbrod.catalog.schema import SCHEMA, TABLE_PROPERTIES
from maxbrod.errors import EnvironmentMissingError, UnsupportedFormatError
from maxbrod.model import now_ms

APPLICATION_ID: Final = "maxbrod"
"""The same for every writer of every archive, so that any two writers conflict."""

FENCE_ID: Final = "maxbrod-fence"
"""The application transaction whose version is the fence: see `Catalog.raise_fence`."""

LEDGER_ID: Final = "maxbrod-ledger"
"""The application transaction whose version is the number of the last document that was committed: see `ledger`."""

_LOG: Final = "_delta_log"
_NO_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_UNKNOWN: Final = re.compile(r"Unsupported|[Uu]nknown (?:reader|writer|table) feature")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """An active file of the table."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The table as one version of the log describes it."""

    log: Log
    schema: pa.Schema
    properties: Mapping[str, str | None]
    files: tuple[DataFile, ...]
    transaction: int = 0
    """The version of `APPLICATION_ID`."""
    fence: int = 0
    """The version of `FENCE_ID`."""
    ledger: int = 0
    """The version of `LEDGER_ID`."""
    table_id: str = ""
    """Delta's id of the table, which it keeps for its lifetime."""


def first_entry() -> bytes:
    """The log entry of an empty catalog."""
    with _new_table() as folder:
        lines = (folder / _LOG / entry_name(0)).read_text().splitlines()
    actions = [strict_json.parse(line) for line in lines]
    for action in actions:
        # The location at which the table was created, here a temporary folder.
        action.get("commitInfo", {}).get("operationParameters", {}).pop("location", None)
    return _with_checksum("\n".join(json.dumps(action) for action in actions).encode())


def decode_log(log: Log, *, name: str) -> Table:
    """The table at the log's version. CorruptDataError: the entries do not fit together; `name` is their folder."""
    with _folder(log) as folder:
        try:
            return _table_of(DeltaTable(str(folder)), log)
        except (DeltaError, ValueError, pa.ArrowException) as error:
            if _UNKNOWN.search(str(error)):
                raise UnsupportedFormatError(
                    "the catalog uses a Delta feature that this release does not support", object_name=name
                ) from None
            raise damaged(_suspect(log, name), error) from None


def transaction_version(log: Log, application: str) -> int | None:
    with _folder(log) as folder:
        version: int | None = DeltaTable(str(folder)).transaction_version(application)
        return version


def encode_commit(
    table: Table,
    added: Sequence[AddAction],
    removed: Sequence[RemoveAction],
    *,
    metadata: Mapping[str, str],
    transactions: Mapping[str, int],
) -> tuple[bytes, Table]:
    """The entry that makes the next version from this one, and the table at that version.

    `transactions` are the versions of applications; the version of `APPLICATION_ID` is incremented as well.
    """
    now, versions = now_ms(), {APPLICATION_ID: table.transaction + 1, **transactions}
    about = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": "[]"},
        "engineInfo": f"maxbrod:{__version__}",
        **metadata,
    }
    actions: list[dict[str, Any]] = [
        {"commitInfo": about},
        *({"txn": {"appId": name, "version": version, "lastUpdated": now}} for name, version in versions.items()),
        *({"add": _add(action)} for action in added),
        *({"remove": _remove(action)} for action in removed),
    ]
    entry = _with_checksum("\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode())
    return entry, _after(table, entry, actions)


def _after(table: Table, entry: bytes, actions: Sequence[Mapping[str, Any]]) -> Table:
    gone = {action["remove"]["path"] for action in actions if "remove" in action}
    new = (
        DataFile(path=file["path"], rows=strict_json.parse(file["stats"])["numRecords"], bytes=file["size"])
        for action in actions
        if (file := action.get("add")) is not None
    )
    versions = {txn["appId"]: txn["version"] for action in actions if (txn := action.get("txn")) is not None}
    return replace(
        table,
        log=table.log.with_entry(entry),
        files=(*(file for file in table.files if file.path not in gone), *new),
        transaction=versions.get(APPLICATION_ID, table.transaction),
        fence=versions.get(FENCE_ID, table.fence),
        ledger=versions.get(LEDGER_ID, table.ledger),
    )


def shortened(log: Log) -> Log:
    """The same version of the log, with a checkpoint instead of its entries, as it would be after `put_checkpoint`."""
    last = entry_name(log.version)
    return Log(log.version, {checkpoint_name(log.version): encode_checkpoint(log)[0], last: log.files[last]})


def with_added(table: Table, name: str, entry: bytes) -> Table | None:
    """The table after another writer's entry; None if the entry does more than add rows and fold files."""
    try:
        actions = actions_of(name, entry)
        removed = [action["remove"] for action in actions if "remove" in action]
        described = any({"metaData", "protocol"} & action.keys() for action in actions)
        if described or unchecked({name: entry}, always=True) or any(file.get("dataChange", True) for file in removed):
            return None
        return _after(table, entry, actions)
    except (ValueError, KeyError, TypeError):
        # Damaged, or of another engine: whoever loads the table decides.
        return None


def _add(action: AddAction) -> dict[str, Any]:
    return {
        "path": action.path,
        "partitionValues": {},
        "size": action.size,
        "modificationTime": action.modification_time,
        "dataChange": action.data_change,
        "stats": action.stats,
    }


def _remove(action: RemoveAction) -> dict[str, Any]:
    return {
        "path": action.path,
        "deletionTimestamp": action.deletion_timestamp,
        "dataChange": action.data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": action.size,
    }


def _with_checksum(entry: bytes) -> bytes:
    """The entry with the checksum of its actions in its commit information."""
    checksum = entry_checksum(entry)
    lines = []
    for line in entry.splitlines():
        if line.startswith(b'{"commitInfo"'):
            action = strict_json.parse(line)
            action["commitInfo"][CHECKSUM_KEY] = checksum
            lines.append(json.dumps(action, separators=(",", ":")).encode())
        elif line.strip():
            lines.append(line)
    return b"\n".join(lines)


def encode_whole(
    version: int, adds: list[AddAction], *, metadata: Mapping[str, str], transactions: Mapping[str, int]
) -> tuple[bytes, bytes, bytes]:
    """A version of a table that has these files and needs no other: its entry, its checkpoint, the pointer to it."""
    with _new_table() as folder:
        delta = DeltaTable(str(folder))
        now = now_ms()
        versions = {APPLICATION_ID: 1, **transactions}
        properties = CommitProperties(
            custom_metadata=dict(metadata),
            max_commit_retries=0,
            app_transactions=[Transaction(application, version, now) for application, version in versions.items()],
        )
        delta.create_write_transaction(
            list(adds), "append", SCHEMA, commit_properties=properties, post_commithook_properties=_NO_UPKEEP
        )
        delta.update_incremental()
        delta.create_checkpoint()
        first, second = ((folder / _LOG / entry_name(number)).read_bytes() for number in (0, 1))
        checkpoint = (folder / _LOG / checkpoint_name(1)).read_bytes()
        pointer = strict_json.parse((folder / _LOG / "_last_checkpoint").read_bytes())
    described = [line for line in first.splitlines() if line.strip() and not line.startswith(b'{"commitInfo"')]
    entry = _with_checksum(b"\n".join([*second.splitlines(), *described]))
    return entry, checkpoint, json.dumps({**pointer, "version": version}).encode()


def encode_checkpoint(log: Log) -> tuple[bytes, bytes]:
    """A checkpoint of the log's version, and the `_last_checkpoint` object that points to it.

    It leaves out files that were in use only briefly (see `Log.removed_briefly`). Each commit adds a file that a later
    one folds: with all of them a checkpoint would grow with the commits of a day, and the log with their square.
    """
    with _folder(log) as folder:
        DeltaTable(str(folder)).create_checkpoint()
        actions = pq.read_table(folder / _LOG / checkpoint_name(log.version))
    brief = pa.array(sorted(log.removed_briefly()), pa.string())
    actions = actions.filter(pc.invert(pc.is_in(pc.struct_field(actions["remove"], "path"), value_set=brief)))
    stream = pa.BufferOutputStream()
    pq.write_table(actions, stream, compression="zstd", write_statistics=False)
    pointer = {"version": log.version, "size": actions.num_rows}
    return stream.getvalue().to_pybytes(), json.dumps(pointer).encode()


def _table_of(delta: DeltaTable, log: Log) -> Table:
    actions = pa.table(delta.get_add_actions(flatten=True)).select(["path", "num_records", "size_bytes"])
    return Table(
        log=log,
        schema=pa.schema(delta.schema().to_arrow()),
        properties=delta.metadata().configuration,
        files=tuple(
            # Other engines may not record counts.
            DataFile(path=row["path"], rows=row["num_records"] or 0, bytes=row["size_bytes"])
            for row in actions.to_pylist()
        ),
        transaction=delta.transaction_version(APPLICATION_ID) or 0,
        fence=delta.transaction_version(FENCE_ID) or 0,
        ledger=delta.transaction_version(LEDGER_ID) or 0,
        table_id=str(delta.metadata().id),
    )


def _suspect(log: Log, name: str) -> str:
    """The object that is damaged: the first without which the log can be read. delta-rs does not say which."""
    names = sorted(log.files)
    for count in range(1, len(names) + 1):
        part = Log(log.version, {part_name: log.files[part_name] for part_name in names[:count]})
        with _folder(part) as folder:
            try:
                _table_of(DeltaTable(str(folder)), part)
            except (DeltaError, ValueError, pa.ArrowException):
                return f"{name}/{names[count - 1]}"
    return name


@contextmanager
def _new_table() -> Iterator[Path]:
    with _folder(None) as folder:
        DeltaTable.create(
            str(folder), SCHEMA, mode="error", configuration=dict(TABLE_PROPERTIES), raise_if_key_not_exists=False
        )
        yield folder


@contextmanager
def _folder(log: Log | None) -> Iterator[Path]:
    """A table's folder with this log and without data files: delta-rs reads none."""
    try:
        with TemporaryDirectory(prefix="maxbrod-catalog-") as name:
            folder = Path(name)
            (folder / _LOG).mkdir()
            for file_name, data in (log.files if log else {}).items():
                (folder / _LOG / file_name).write_bytes(data)
            yield folder
    except OSError as error:
        raise EnvironmentMissingError(
            f"the temporary folder cannot be used: {error.strerror or error}",
            operation="open the catalog",
            hint="check its free space and its permissions, or set TMPDIR to another folder",
        ) from error
