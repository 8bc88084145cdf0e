"""Puts a new catalog in the place of a lost or damaged one, in one step, and keeps the old one aside.

The old objects are copied first. Then there are two ways. If the old log can still be read, one ordinary commit
replaces all files. Else the new catalog is a version behind all old ones that needs none of them: its entry is put
first, on condition that nobody else has put one, and its checkpoint makes it visible. Killed before that, the old
catalog is as damaged as it was. A writer that still works on the old version is refused in either case.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltalake.transaction import RemoveAction

from maxbrod.catalog.codec import Table, encode_commit, encode_whole
from maxbrod.catalog.commits import NONCE_KEY, overtaken, widen
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.log import Log, checkpoint_name, entry_name, last_checkpoint_path, log_path
from maxbrod.catalog.schema import SCHEMA, TABLE_PROPERTIES
from maxbrod.catalog.table import keep_short, load_table
from maxbrod.catalog.validity import check_rows
from maxbrod.errors import CorruptDataError, ObjectExistsError
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from maxbrod.storage.interface import Storage

CATALOG: Final = "catalog"
ASIDE: Final = "catalog-before"
"""Where the old catalog is kept, in a folder for each repair. Nothing reads or deletes it."""
_AHEAD: Final = 1000
"""How far ahead of every known version a catalog begins whose log is gone: a writer may still be at a later one."""


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
    count = 0
    for info in list(storage.list(CATALOG)):
        with suppress(ObjectExistsError):
            storage.put(f"{ASIDE}/{name}/{info.path.removeprefix(f'{CATALOG}/')}", storage.get(info.path))
        count += 1
    return count


def replace_catalog(
    storage: Storage, rows: pa.Table, *, table: Table | None, version: int, transactions: Mapping[str, int]
) -> None:
    """Make these rows the catalog. RefusedError: another writer has committed meanwhile; nothing is visible."""
    check_rows(rows)
    storage = storage.at_hand()
    now = now_ms()
    if table is not None and version == table.log.version + 1:
        files = DataFiles(storage, table)
        adds = files.write(widen(rows, files.schema), written_at=now)
        removes = [RemoveAction(file.path, True, now, size=file.bytes, partition_values={}) for file in files.active]
        entry, committed = encode_commit(
            table, adds, removes, metadata={NONCE_KEY: uuid.uuid4().hex}, transactions=transactions
        )
        _put_entry(storage, version, entry)
        keep_short(storage, committed)
        return
    empty = Table(log=Log(version - 1, {}), schema=SCHEMA, properties=dict(TABLE_PROPERTIES), files=())
    adds = DataFiles(storage, empty).write(rows, written_at=now)
    whole = encode_whole(version, adds, metadata={NONCE_KEY: uuid.uuid4().hex}, transactions=transactions)
    _put_entry(storage, version, whole.entry)
    # The commit point: without it the entry lacks those before it.
    storage.put(log_path(checkpoint_name(version)), whole.checkpoint)
    storage.replace(last_checkpoint_path(), whole.pointer)


def _put_entry(storage: Storage, version: int, entry: bytes) -> None:
    try:
        storage.put(log_path(entry_name(version)), entry)
    except ObjectExistsError:
        raise overtaken(version, storage.url) from None
