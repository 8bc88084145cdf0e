"""delta-rs as the codec of Delta's log: decodes the bytes of a log to a table, and encodes a commit to a log entry.

delta-rs has its own client for every store, with other retries than ours and without support for certificates. So it
never accesses the store: the few objects that make a version are written to a private temporary folder for the duration
of one call. Nothing here touches an archive.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

from maxbrod.catalog.log import Log, checkpoint_name, damaged, entry_name
from maxbrod.catalog.schema import SCHEMA, TABLE_PROPERTIES
from maxbrod.errors import EnvironmentMissingError, UnsupportedFormatError
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake.transaction import AddAction, RemoveAction

APPLICATION_ID: Final = "maxbrod"
"""The same for every writer of every archive, so that any two writers conflict."""

_LOG: Final = "_delta_log"
_UNKNOWN: Final = re.compile(r"Unsupported|[Uu]nknown (?:reader|writer|table) feature")
_NO_UPKEEP: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


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


def first_entry() -> bytes:
    """The log entry of an empty catalog."""
    with _folder(None) as folder:
        DeltaTable.create(
            str(folder), SCHEMA, mode="error", configuration=dict(TABLE_PROPERTIES), raise_if_key_not_exists=False
        )
        lines = (folder / _LOG / entry_name(0)).read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    for action in actions:
        # The location at which the table was created, here a temporary folder.
        action.get("commitInfo", {}).get("operationParameters", {}).pop("location", None)
    return "\n".join(json.dumps(action) for action in actions).encode()


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
            raise damaged(_suspect(log, error, name), error) from None


def transaction_version(log: Log, application: str) -> int | None:
    """The version of an application's last transaction."""
    with _folder(log) as folder:
        version: int | None = DeltaTable(str(folder)).transaction_version(application)
        return version


def encode_commit(
    table: Table,
    actions: list[AddAction | RemoveAction],
    *,
    metadata: Mapping[str, str],
    transactions: Mapping[str, int],
) -> tuple[bytes, Table]:
    """The entry that makes the next version from this one, and the table at that version.

    `transactions` are the versions of applications; the version of `APPLICATION_ID` is incremented as well.
    """
    with _folder(table.log) as folder:
        delta = DeltaTable(str(folder))
        now = now_ms()
        versions = {APPLICATION_ID: (delta.transaction_version(APPLICATION_ID) or 0) + 1, **transactions}
        properties = CommitProperties(
            custom_metadata=dict(metadata),
            max_commit_retries=0,
            app_transactions=[Transaction(application, version, now) for application, version in versions.items()],
        )
        delta.create_write_transaction(
            actions, "append", table.schema, commit_properties=properties, post_commithook_properties=_NO_UPKEEP
        )
        delta.update_incremental()
        entry = (folder / _LOG / entry_name(table.log.version + 1)).read_bytes()
        return entry, _table_of(delta, table.log.with_entry(entry))


def encode_checkpoint(log: Log) -> tuple[bytes, bytes]:
    """A checkpoint of the log's version, and the `_last_checkpoint` object that points to it."""
    with _folder(log) as folder:
        DeltaTable(str(folder)).create_checkpoint()
        return (folder / _LOG / checkpoint_name(log.version)).read_bytes(), (
            folder / _LOG / "_last_checkpoint"
        ).read_bytes()


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
    )


def _suspect(log: Log, error: Exception, name: str) -> str:
    """The object that is probably damaged: delta-rs reports whether an entry or a checkpoint failed, but not which."""
    entry = "Json error" in str(error)
    return next((f"{name}/{each}" for each in log.files if each.endswith(".parquet") and not entry), name)


@contextmanager
def _folder(log: Log | None) -> Iterator[Path]:
    """A table's folder with this log and without data files: delta-rs reads none."""
    try:
        with TemporaryDirectory(prefix="maxbrod-catalog-") as name:
            folder = Path(name)
            (folder / _LOG).mkdir()
            for each, data in (log.files if log else {}).items():
                (folder / _LOG / each).write_bytes(data)
            yield folder
    except OSError as error:
        raise EnvironmentMissingError(
            f"the temporary folder cannot be used: {error.strerror or error}",
            operation="open the catalog",
            hint="check its free space and its permissions, or set TMPDIR to another folder",
        ) from error
