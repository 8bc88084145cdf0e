"""delta-rs as the codec of Delta's log: from the bytes of a log to a table, from a commit to the bytes of its entry.

delta-rs brings a client of its own for every store, with other retries than ours and no way to give it certificates.
So it never sees the store: the few objects that make a version are laid out in a private temporary folder for as long
as one call takes. Nothing here touches an archive.
"""

from __future__ import annotations

import json
import re
import time
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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from deltalake.transaction import AddAction, RemoveAction

APPLICATION_ID: Final = "maxbrod"
"""The same for every writer of every archive: whoever writes conflicts with whoever else does."""

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
    """The entry that makes an empty catalog."""
    with _folder(None) as folder:
        DeltaTable.create(
            str(folder), SCHEMA, mode="error", configuration=dict(TABLE_PROPERTIES), raise_if_key_not_exists=False
        )
        lines = (folder / _LOG / entry_name(0)).read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    for action in actions:
        # It tells where the table was created, and that was a temporary folder.
        action.get("commitInfo", {}).get("operationParameters", {}).pop("location", None)
    return "\n".join(json.dumps(action) for action in actions).encode()


def decode_log(log: Log, *, name: str) -> Table:
    """The table at the log's version. CorruptDataError: the entries together make no sense; `name` is their folder."""
    with _folder(log) as folder:
        try:
            return _table_of(DeltaTable(str(folder)), log)
        except (DeltaError, ValueError, pa.ArrowException) as error:
            if _UNKNOWN.search(str(error)):
                raise UnsupportedFormatError(
                    "the catalog uses a feature of Delta that this release does not know", object_name=name
                ) from None
            raise damaged(_suspect(log, error, name), error) from None


def transaction_version(log: Log, application: str) -> int | None:
    """The version of an application's last transaction."""
    with _folder(log) as folder:
        found: int | None = DeltaTable(str(folder)).transaction_version(application)
        return found


def encode_commit(
    table: Table,
    actions: list[AddAction | RemoveAction],
    *,
    metadata: Mapping[str, str],
    transactions: Mapping[str, int],
) -> tuple[bytes, Table]:
    """The entry that makes the next version out of this one, and the table at that version.

    `transactions` are the versions of applications; that of `APPLICATION_ID` is counted up by one beside them.
    """
    with _folder(table.log) as folder:
        delta = DeltaTable(str(folder))
        now_ms = time.time_ns() // 1_000_000
        versions = {APPLICATION_ID: (delta.transaction_version(APPLICATION_ID) or 0) + 1, **transactions}
        properties = CommitProperties(
            custom_metadata=dict(metadata),
            max_commit_retries=0,
            app_transactions=[Transaction(application, version, now_ms) for application, version in versions.items()],
        )
        delta.create_write_transaction(
            actions, "append", table.schema, commit_properties=properties, post_commithook_properties=_NO_UPKEEP
        )
        delta.update_incremental()
        entry = (folder / _LOG / entry_name(table.log.version + 1)).read_bytes()
        return entry, _table_of(delta, table.log.with_entry(entry))


def encode_checkpoint(log: Log) -> tuple[bytes, bytes]:
    """A checkpoint of the log's version, and the object that points to it."""
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
            # Another engine need not count.
            DataFile(path=row["path"], rows=row["num_records"] or 0, bytes=row["size_bytes"])
            for row in actions.to_pylist()
        ),
    )


def _suspect(log: Log, error: Exception, name: str) -> str:
    """The object to look at: delta-rs says whether it stumbled over an entry or a checkpoint, but not over which."""
    entry = "Json error" in str(error)
    return next((f"{name}/{each}" for each in log.files if each.endswith(".parquet") and not entry), name)


@contextmanager
def _folder(log: Log | None) -> Iterator[Path]:
    """A table's folder with this log in it, and no data file: delta-rs looks at none."""
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
            hint="see that there is room in it and that it may be written to, or name another one in TMPDIR",
        ) from error
