"""One commit to the catalog: everything visible at once, or nothing ever.

A commit is a compare-and-swap. It is put under the next version of the table after the one that was read, which the
store lets only one writer do. It also carries Delta's application transaction, so that other engines that write Delta
tables see the same conflict.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import RemoveAction

from maxbrod.catalog.codec import DataFile, encode_commit, transaction_version
from maxbrod.catalog.log import entry_name, log_path
from maxbrod.errors import MaxbrodError, ObjectExistsError, RefusedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.catalog.codec import Table
    from maxbrod.catalog.files import DataFiles
    from maxbrod.catalog.log import Log
    from maxbrod.storage.interface import Storage

NONCE_KEY: Final = "maxbrod.commit"
"""Where a commit carries its nonce, among Delta's commit information: no two entries have the same bytes."""

_STREAM_PREFIX: Final = "maxbrod-stream-"
"""Of the application transactions that say how far a stream has come."""

_IDENTITY: Final = ("topic_id", "partition", "base_offset", "end_offset", "kind", "path", "position")
"""What makes a row to be replaced the same as one in the catalog."""

FAN_IN: Final = 8
TIER_ROWS: Final = (1 << 10, 1 << 13, 1 << 16)
"""The row count below which a file belongs to each tier. A file of the last bound or more is never folded again."""
FOLDED_ROWS_MAX: Final = (FAN_IN - 1) * sum(bound - 1 for bound in TIER_ROWS)
"""The most rows that one commit folds: half a million."""


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


def last_batch(log: Log, stream: str) -> int | None:
    """The last batch of a stream that was committed. Delta keeps this as long as the table lives."""
    return transaction_version(log, f"{_STREAM_PREFIX}{stream}")


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


def choose_folds(files: Iterable[DataFile], rows: int) -> list[DataFile]:
    """The data files that a commit of this many rows folds into the one that it writes.

    Every commit writes a file, so without folding a year of minutes would leave half a million. A file belongs to a
    tier by its number of rows, each tier `FAN_IN` times the one below. A commit that would fill its tier folds all of
    it, which may lift it into the next. So fewer than `FAN_IN` files per tier stay open, a row is rewritten once per
    tier (more often in the first, which is small), and the rows that one commit rewrites are bounded.
    """
    tiers: dict[int, list[DataFile]] = {}
    for file in files:
        tiers.setdefault(_tier(file.rows), []).append(file)
    chosen: list[DataFile] = []
    tier = _tier(rows)
    while tier < len(TIER_ROWS):
        members = tiers.pop(tier, [])
        if len(members) + 1 < FAN_IN:
            break
        chosen += members
        rows += sum(file.rows for file in members)
        tier = _tier(rows)
    return chosen


def _tier(rows: int) -> int:
    return next((tier for tier, bound in enumerate(TIER_ROWS) if rows < bound), len(TIER_ROWS))


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
    storage: Storage, table: Table, files: DataFiles, rewrite: Rewrite, *, batch: StreamBatch | None = None
) -> Table:
    """Write the files, then the commit; the table after it. Returns when it is there, and stays there.

    `batch` is committed with it.
    """
    now_ms, version = time.time_ns() // 1_000_000, table.log.version + 1
    adds = files.write(rewrite.rows, written_at=now_ms)
    removes = [RemoveAction(file.path, True, now_ms, size=file.bytes, partition_values={}) for file in rewrite.removed]
    entry, committed = encode_commit(
        table,
        [*adds, *removes],
        metadata={NONCE_KEY: uuid.uuid4().hex},
        transactions={} if batch is None else {f"{_STREAM_PREFIX}{batch.stream}": batch.batch_id},
    )
    try:
        # A put whose answer was lost is recognised as its own.
        storage.put(log_path(entry_name(version)), entry)
    except ObjectExistsError:
        with suppress(MaxbrodError):
            files.delete([action.path for action in adds])
        raise overtaken(version, storage.url) from None
    except UnavailableError as error:
        # The data files stay: should the put be carried out after all, its files must be there.
        raise UnavailableError(
            f"the store failed during the commit, and does not say whether it was carried out: {error.message}",
            operation="commit to the catalog",
            object_name=storage.url,
            hint="it was as a whole or not at all; run again, it starts from what the catalog then holds",
        ) from error
    return committed


def overtaken(version: int, archive_url: str) -> RefusedError:
    return RefusedError(
        f"another writer has committed version {version} of the catalog",
        operation="commit to the catalog",
        object_name=archive_url,
        hint="nothing of this run is visible; let the other writer finish, then run again",
    )
