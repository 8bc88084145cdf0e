"""One commit to the catalog: everything visible at once, or nothing ever.

A commit is a compare-and-swap. It is put under the next version of the table after the one that was read, which the
store lets only one writer do, and delta-rs is told never to try the version after that. It also carries Delta's
application transaction, so that other engines that write Delta tables see the same conflict.
"""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from deltalake.transaction import CommitProperties, RemoveAction, Transaction

from maxbrod.catalog.durable import sync_commit, sync_files
from maxbrod.catalog.folding import DataFile, choose_folds
from maxbrod.catalog.table import table_url
from maxbrod.errors import RefusedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    from maxbrod.catalog.files import DataFiles

APPLICATION_ID: Final = "maxbrod"
"""The same for every writer of every archive: whoever writes conflicts with whoever else does."""
NONCE_KEY: Final = "maxbrod.commit"
"""Where a commit carries its nonce, among Delta's commit information."""

_STREAM_PREFIX: Final = "maxbrod-stream-"
"""Of the application transactions that say how far a stream has come."""

_IDENTITY: Final = ("topic_id", "partition", "base_offset", "end_offset", "kind", "path", "position")
"""What makes a row to be replaced the same as one in the catalog."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a commit writes: rows into new files, instead of files that go."""

    rows: pa.Table
    removed: list[DataFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """One micro-batch of a stream that writes into the archive: what tells a batch that comes twice."""

    stream: str
    batch_id: int


def last_batch(table: DeltaTable, stream: str) -> int | None:
    """The last batch of a stream that was committed. Delta keeps this as long as the table lives."""
    found: int | None = table.transaction_version(f"{_STREAM_PREFIX}{stream}")
    return found


def plan_rewrite(files: DataFiles, added: pa.Table, replaced: pa.Table) -> Rewrite:
    """Join the new rows with those that share a file with a replaced row, and with small files that are due."""
    touched, survivors = _without(files, replaced) if replaced.num_rows else ([], [])
    written = added.num_rows + sum(table.num_rows for table in survivors)
    rest = [file for file in files.active if file not in touched]
    folded = choose_folds(rest, written)
    tables = [widen(added, files.schema), *survivors]
    if folded:
        tables.append(files.read(files.schema.names, files=folded))
    return Rewrite(pa.concat_tables(tables), [*touched, *folded])


def widen(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns that a newer release added are null in rows of this one."""
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)


def _without(files: DataFiles, replaced: pa.Table) -> tuple[list[DataFile], list[pa.Table]]:
    """The files that hold replaced rows, and the other rows of these files. Every replaced row must be there once."""
    keys = _keys(replaced)
    wanted = pc.field("topic_id").isin(pc.unique(replaced["topic_id"]))
    touched, survivors, found = [], [], 0
    for file in files.active:
        if not _matches(files.read(_IDENTITY, wanted, files=[file]), keys).num_rows:
            continue
        rows = files.read(files.schema.names, files=[file])
        going = _matches(rows, keys)["row"].to_numpy()
        keep = np.ones(rows.num_rows, np.bool_)
        keep[going] = False
        touched.append(file)
        survivors.append(rows.filter(pa.array(keep)))
        found += len(going)
    if found != replaced.num_rows:
        raise RefusedError(
            f"{replaced.num_rows} rows were to be replaced, but the catalog has {found} of them",
            operation="commit to the catalog",
            hint="nothing was changed; read the catalog again and plan anew",
        )
    return touched, survivors


def _keys(rows: pa.Table) -> pa.Table:
    """`_IDENTITY` without nulls, which a join never finds equal, and the number of each row."""
    columns = {name: pc.fill_null(rows[name], "" if pa.types.is_string(rows[name].type) else -1) for name in _IDENTITY}
    return pa.table({**columns, "row": pa.array(np.arange(rows.num_rows))})


def _matches(rows: pa.Table, keys: pa.Table) -> pa.Table:
    return _keys(rows).join(keys.drop_columns(["row"]), list(_IDENTITY), join_type="left semi", use_threads=False)


def write_commit(
    table: DeltaTable, files: DataFiles, rewrite: Rewrite, *, archive_url: str, batch: StreamBatch | None = None
) -> None:
    """Write the files, then the commit. Returns when it is there, and stays there. `batch` is committed with it."""
    now_ms, read_version, nonce = time.time_ns() // 1_000_000, table.version(), uuid.uuid4().hex
    adds = files.write(rewrite.rows, written_at=now_ms)
    sync_files(table_url(archive_url), [action.path for action in adds])
    removes = [RemoveAction(file.path, True, now_ms, size=file.bytes, partition_values={}) for file in rewrite.removed]
    transactions = [Transaction(APPLICATION_ID, (table.transaction_version(APPLICATION_ID) or 0) + 1, now_ms)]
    if batch is not None:
        transactions.append(Transaction(f"{_STREAM_PREFIX}{batch.stream}", batch.batch_id, now_ms))
    properties = CommitProperties(
        custom_metadata={NONCE_KEY: nonce},
        max_commit_retries=0,
        app_transactions=transactions,
    )
    try:
        table.create_write_transaction([*adds, *removes], "append", files.schema, commit_properties=properties)
    except (DeltaError, OSError) as error:
        # Not the last word: the answer to a put may be lost, or a checkpoint fail after the commit is done.
        _settle(files, adds, read_version + 1, nonce, archive_url, error)
    sync_commit(table_url(archive_url), read_version + 1)


def _settle(
    files: DataFiles, adds: Sequence[AddAction], version: int, nonce: str, archive_url: str, error: Exception
) -> None:
    """Look whose commit stands at `version`; ours can stand nowhere else."""
    try:
        entry = files.log_entry(version)
    except OSError:
        raise UnavailableError(
            "the store failed during the commit, and does not say whether it was carried out",
            operation="commit to the catalog",
            object_name=archive_url,
            hint="it was as a whole or not at all; run again, it starts from what the catalog then holds",
        ) from error
    if entry is not None and _nonce_of(entry) == nonce:
        return
    if entry is None:
        # The data files stay: should the put be carried out after all, its files must be there.
        raise UnavailableError(
            "the commit did not reach the store",
            operation="commit to the catalog",
            object_name=archive_url,
            hint="nothing has become visible; run again, it starts from what the catalog then holds",
        ) from error
    with suppress(OSError):
        files.delete([action.path for action in adds])
    raise overtaken(version, archive_url) from error


def overtaken(version: int, archive_url: str) -> RefusedError:
    return RefusedError(
        f"another writer has committed version {version} of the catalog",
        operation="commit to the catalog",
        object_name=archive_url,
        hint="nothing of this run is visible; let the other writer finish, then run again",
    )


def _nonce_of(entry: str) -> Any:  # noqa: ANN401 - whatever JSON another program wrote
    actions = (json.loads(line) for line in entry.splitlines() if line.strip())
    return next((action["commitInfo"].get(NONCE_KEY) for action in actions if "commitInfo" in action), None)
