"""One commit to the catalog: all of it becomes visible at once, or none of it.

A commit is a compare-and-swap. It puts the log entry of the version after the one that was read, under a name that the
store lets only one writer create. It also carries Delta's application transaction, so that other engines that write
Delta tables see the same conflict.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import RemoveAction

from maxbrod.catalog.codec import FENCE_ID, LEDGER_ID, DataFile, Table, encode_commit, transaction_version, with_added
from maxbrod.catalog.files import KEPT_ROWS, DataFiles
from maxbrod.catalog.log import Log, entry_name, has_entry, has_object, log_path
from maxbrod.catalog.rows import COMMIT
from maxbrod.errors import (
    FencedError,
    MaxbrodError,
    ObjectExistsError,
    ObjectNotFoundError,
    OvertakenError,
    RefusedError,
    UnavailableError,
)
from maxbrod.model import now_ms
from maxbrod.storage.interface import Storage

if TYPE_CHECKING:
    from maxbrod.catalog.catalog import Catalog
    from maxbrod.catalog.statements import CatalogSigner


NONCE_KEY: Final = "maxbrod.commit"
"""The key of a commit's nonce in Delta's commit information. No two entries have the same bytes, so a put whose answer
was lost is never confused with another writer's."""

_STREAM_PREFIX: Final = "maxbrod-stream-"
"""The prefix of the application transactions that record the last batch of a stream."""

IDENTITY: Final = ("topic_id", "partition", "base_offset", "end_offset", "kind", "path", "position", "run_id")
"""The columns that identify a row to be replaced. Runs have none of the others if they recorded no snapshot."""

FAN_IN: Final = 8
TIER_ROWS: Final = (KEPT_ROWS, 1 << 13, 1 << 16)
"""The row count below which a file belongs to each tier. A file of the last bound or more is never folded again."""

_ATTEMPTS: Final = 20
"""The number of attempts without progress: refused for another reason, or nobody has committed since."""
_REQUESTS: Final = 16
_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
Result = TypeVar("Result")


class Rewrite(NamedTuple):
    """The writes of a commit: rows in new files, and the files that they replace."""

    rows: pa.Table
    touched: list[DataFile]
    """Files with rows that are replaced."""
    folded: list[DataFile]
    """Files whose rows are all written again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBatch:
    """One micro-batch of a stream that writes into the archive. It identifies a batch that Spark repeats."""

    stream: str
    batch_id: int


def last_batch(log: Log, stream: str) -> int | None:
    """The last committed batch of a stream. Delta keeps it for the lifetime of the table."""
    return transaction_version(log, f"{_STREAM_PREFIX}{stream}")


def plan_rewrite(files: DataFiles, added: pa.Table, replaced: pa.Table) -> Rewrite:
    """Merge the new rows with those that share a file with a replaced row, and with small files due to fold."""
    touched, survivors = _without(files, replaced) if replaced.num_rows else ([], [])
    written = added.num_rows + sum(table.num_rows for table in survivors)
    rest = [file for file in files.active if file not in touched]
    folded = choose_folds(rest, written)
    tables = [widen(added, files.schema), *survivors]
    if folded:
        tables.append(files.read_folded(folded))
    return Rewrite(pa.concat_tables(tables), touched, folded)


def choose_folds(files: Iterable[DataFile], rows: int) -> list[DataFile]:
    """The data files that a commit of this many rows folds into the one that it writes.

    Every commit writes a file, so without folding a year of minutes would leave half a million. A file belongs to a
    tier by its number of rows, each tier `FAN_IN` times the one below. A commit that would fill its tier folds all of
    it, which may lift it into the next. So fewer than `FAN_IN` files per tier stay open, a row is rewritten once per
    tier (more often in the first, which is small), and one commit rewrites at most half a million rows.
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
    """Add the columns of a newer release, as nulls."""
    columns = [
        rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type) for field in schema
    ]
    return pa.table(columns, schema=schema)


def _without(files: DataFiles, replaced: pa.Table) -> tuple[list[DataFile], list[pa.Table]]:
    """The files that hold replaced rows, and their other rows. Every replaced row must occur exactly once."""
    keys = _keys(replaced)
    condition = pc.field("topic_id").isin(pc.unique(replaced["topic_id"]))
    touched, survivors, count = [], [], 0
    for file in files.active:
        if not _matches(files.read(IDENTITY, condition, files=[file]), keys).num_rows:
            continue
        rows = files.read(files.schema.names, files=[file])
        going = _matches(rows, keys)["row"].to_numpy()
        keep = np.ones(rows.num_rows, np.bool_)
        keep[going] = False
        touched.append(file)
        survivors.append(rows.filter(pa.array(keep)))
        count += len(going)
    if count != replaced.num_rows:
        raise RefusedError(
            f"{replaced.num_rows} rows were to be replaced, but the catalog has {count} of them",
            operation="commit to the catalog",
            hint="nothing was changed; run the command again",
        )
    return touched, survivors


def _keys(rows: pa.Table) -> pa.Table:
    """`IDENTITY` with nulls filled, because a join never matches nulls, and the number of each row."""
    columns = {name: pc.fill_null(rows[name], "" if pa.types.is_string(rows[name].type) else -1) for name in IDENTITY}
    return pa.table({**columns, "row": pa.array(np.arange(rows.num_rows))})


def _matches(rows: pa.Table, keys: pa.Table) -> pa.Table:
    return _keys(rows).join(keys.drop_columns(["row"]), list(IDENTITY), join_type="left semi", use_threads=False)


def absent_rows(rows: pa.Table, others: pa.Table) -> pa.Table:
    """The rows that are not among the others. Both have the columns that identify a row."""
    keep = np.ones(rows.num_rows, np.bool_)
    keep[_matches(rows, _keys(others))["row"].to_numpy()] = False
    return rows.filter(pa.array(keep))


def write_commit(
    storage: Storage,
    table: Table,
    files: DataFiles,
    rewrite: Rewrite,
    *,
    batch: StreamBatch | None = None,
    fence: int | None = None,
    document: Callable[[Table], tuple[str, int] | None] | None = None,
    may_follow: Callable[[Table], bool] | None = None,
    signer: CatalogSigner | None = None,
) -> Table:
    """Write the data files, then the commit; the table after it. When this returns, the commit is durable.

    Files come first: an entry must never name a file that is not durable. `batch` and `fence`, a new fence of the
    catalog, are committed with the rows. `document` puts the document of this commit onto a table into the ledger, if
    it needs one, and returns its path and number. If others commit meanwhile, and only add rows, the commit follows
    theirs without planning or writing its rows again, if `may_follow` allows it on that table. `signer` signs it.
    """
    now = now_ms()
    rows, runs = rewrite.rows, None
    if may_follow is not None:
        # A run records the version that commits it, so that it is written again for each version that is tried.
        own = pc.fill_null(pc.starts_with(rows["details"], _run_of(table.log.version + 1)), False)
        rows, runs = rows.filter(pc.invert(own)), rows.filter(own)
    adds = files.write(rows, written_at=now)
    # `dataChange` is false if the commit adds the rows again: see `Log.removed_since`.
    removes = [
        RemoveAction(file.path, data_change, now, size=file.bytes, partition_values={})
        for removed, data_change in ((rewrite.touched, True), (rewrite.folded, False))
        for file in removed
    ]
    first, committed = table.log.version + 1, None
    in_ledger: tuple[str, int] | None = None
    before: int | None = None
    """The number of the document before it."""
    while committed is None:
        version = table.log.version + 1
        added = [*adds, *(() if runs is None else files.write(_committed_by(runs, first, version), written_at=now))]
        if document is not None and before != table.ledger:
            # Where the commit follows others, the document stays, unless there is another one before it now.
            in_ledger, before = document(table), table.ledger
        entry, after = encode_commit(
            table,
            added,
            removes,
            metadata={NONCE_KEY: uuid.uuid4().hex},
            transactions={
                **({} if batch is None else {f"{_STREAM_PREFIX}{batch.stream}": batch.batch_id}),
                **({} if fence is None else {FENCE_ID: fence}),
                **({} if in_ledger is None else {LEDGER_ID: in_ledger[1]}),
            },
        )
        if signer is not None:
            entry, after = signer.sign(storage, table, entry, after)
        if _put_entry(storage, version, entry):
            committed = after
            continue
        # Another writer was faster: follow its commit, or give up. What only this attempt wrote is deleted at once.
        newer = None if may_follow is None else _follow(storage, table, {remove.path for remove in removes})
        follows = newer is not None and may_follow is not None and may_follow(newer)
        with suppress(MaxbrodError):
            if in_ledger is not None and not (follows and newer is not None and newer.ledger == table.ledger):
                storage.delete([in_ledger[0]])
            files.delete([action.path for action in (added[len(adds) :] if follows else added)])
        if newer is None or not follows:
            raise overtaken(version, storage.url)
        table = newer
    _demand_predecessor(storage, table, version)
    return committed


def _demand_predecessor(storage: Storage, table: Table, version: int) -> None:
    """UnavailableError: the entry that this commit follows was cleaned up.

    Then this process was suspended for an hour or more. If that was before the put, others had committed by then, the
    name of this version was free again, and nobody reads what is there now. If it was after the put, others have built
    on the commit.
    """
    if not has_entry(storage, table.log.version):
        raise _unknown(
            "others have committed for over an hour since this process read the catalog: it is unknown whether its "
            f"own commit of version {version} took effect",
            storage,
        )


def _unknown(message: str, storage: Storage) -> UnavailableError:
    return UnavailableError(
        message,
        operation="commit to the catalog",
        object_name=storage.url,
        hint="it took effect as a whole or not at all; run the command again, it continues from the catalog",
    )


def _put_entry(storage: Storage, version: int, entry: bytes) -> bool:
    """The commit point. False: another writer has created this version."""
    try:
        # A put whose answer was lost is recognised as our own (see `Storage.put`): a lost answer is not a lost commit.
        storage.put(log_path(entry_name(version)), entry)
    except ObjectExistsError:
        return False
    except UnavailableError as error:
        # The data files stay: if the put does take effect after all, its files must exist.
        message = "the store failed during the commit, and it is unknown whether the commit took effect"
        raise _unknown(f"{message}: {error.message}", storage) from error
    return True


def newer_tables(storage: Storage, table: Table) -> Iterator[Table | None]:
    """Yield the table after each commit of others since; None, and no more, after one that did more than add rows."""
    newer: Table | None = table
    while newer is not None:
        name = entry_name(newer.log.version + 1)
        try:
            newer = with_added(newer, name, bytes(storage.get(log_path(name))))
        except ObjectNotFoundError:
            return
        yield newer


def _follow(storage: Storage, table: Table, removed: AbstractSet[str]) -> Table | None:
    """The table after the commits of others since; None: one of them did more than add rows, or folded one of ours."""
    for newer in newer_tables(storage, table):
        if newer is None or not removed <= {file.path for file in newer.files}:
            return None
        table = newer
    return table


def _run_of(version: int) -> str:
    """The beginning of the details of a run that this version commits."""
    return f'{{"{COMMIT}": {version},'


def _committed_by(runs: pa.Table, planned: int, version: int) -> pa.Table:
    """Runs that were to be committed by one version, as another one commits them."""
    details = pc.replace_substring(runs["details"], _run_of(planned), _run_of(version), max_replacements=1)
    return runs.set_column(runs.schema.get_field_index("details"), "details", details)


def overtaken(version: int, archive_url: str) -> OvertakenError:
    return OvertakenError(
        f"another writer has committed version {version} of the catalog",
        operation="commit to the catalog",
        object_name=archive_url,
        hint="nothing of this run is visible; wait until the other writer has finished, then run it again",
    )


def fenced(archive_url: str) -> FencedError:
    return FencedError(
        "this writer was taken for lost, and its work was given to others",
        operation="commit to the catalog",
        object_name=archive_url,
        hint="nothing of what it has read since is visible; the others archive it",
    )


def commit_with_retries(catalog: Catalog, commit: Callable[[int], Result]) -> Result:
    """The result of `commit`, which commits once, on the version that the catalog stands at.

    It gets the number of the attempt, from 0. If another writer was faster, the catalog is read again, and `commit`
    called again, however often: whatever it has read of the catalog, and all holds, it must read again. A backup that
    follows never ends, and commits once a second: pass `still_valid` to `Catalog.commit` from the second attempt on, so
    that a commit that takes longer than that succeeds beside it. RefusedError: refused for another reason.
    """
    attempt = fruitless = 0
    while True:
        try:
            return commit(attempt)
        except RefusedError as error:
            fruitless += not isinstance(error, OvertakenError)
            if catalog.is_newest() or fruitless >= _ATTEMPTS:
                raise
            # Two that overtake each other must not do so in step.
            time.sleep(min(_PAUSE_S * attempt, _PAUSE_S_MAX) * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            version = catalog.version
            catalog.refresh()
            fruitless += catalog.version == version
            attempt += 1


def missing_object(storage: Storage, added: pa.Table, gone: pa.Table) -> str | None:
    """An object that a new row names and that does not exist. Objects of replaced rows were named all along."""
    known = set(pc.unique(gone["path"]).to_pylist())
    paths = [path for path in pc.unique(added["path"]).to_pylist() if path is not None and path not in known]
    with ThreadPoolExecutor(_REQUESTS) as pool:
        there = pool.map(partial(has_object, storage), paths)
        return next((storage.name_of(path) for path, found in zip(paths, there, strict=True) if not found), None)
