"""Creates the catalog's Delta table, loads it, keeps its log short, and explains why there is none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake.exceptions import DeltaError

from maxbrod.catalog.codec import Table, decode_log, encode_checkpoint, first_entry
from maxbrod.catalog.ledger import LEDGER
from maxbrod.catalog.log import (
    BRING_BACK,
    LOG_FOLDER,
    Log,
    delete_expired,
    demand_checksums,
    entry_name,
    log_path,
    put_checkpoint,
    read_log,
)
from maxbrod.catalog.schema import TABLE_PROPERTIES, check_format, has_checksums
from maxbrod.errors import CorruptDataError, MaxbrodError, NoArchiveError, ObjectExistsError, RefusedError

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

_PROBES: Final = "probes/"
_FIRST_DOCUMENT: Final = f"{LEDGER}/{0:020}-"
_OBJECTS: Final = ("catalog", "snapshots", "packs", "segments")
"""Folders that only an archive has, the one with the fewest objects first."""

_CHECKPOINT_EVERY: Final = int(TABLE_PROPERTIES["delta.checkpointInterval"])
_CLEANUP_EVERY: Final = 2 * _CHECKPOINT_EVERY
"""Commits between two cleanups of the log: each lists it, and at a commit a second it has thousands of entries."""


def create_table(storage: Storage) -> Table:
    """A new catalog without rows. RefusedError: there is one already."""
    if read_log(storage) is not None:
        raise _exists(storage)
    entry = first_entry()
    try:
        storage.put(log_path(entry_name(0)), entry)
    except ObjectExistsError:
        raise _exists(storage) from None
    return _decode(storage, Log(0, {entry_name(0): entry}))


def load_table(storage: Storage) -> Table | None:
    """The newest version, refused if this release does not support its format; None if there is none."""
    log = read_log(storage)
    return None if log is None else _decode(storage, log)


def _decode(storage: Storage, log: Log) -> Table:
    table = decode_log(log, name=storage.name_of(LOG_FOLDER))
    check_format(table.properties, table.schema, name=storage.url)
    # Not before: an entry of the future is refused as such.
    demand_checksums(log, name=storage.name_of(LOG_FOLDER), always=has_checksums(table.properties))
    return table


def keep_short(storage: Storage, table: Table) -> Table:
    """Write a checkpoint if one is due, and clean up the log; the same table. Never raises: the commit is done."""
    if table.log.version % _CHECKPOINT_EVERY:
        return table
    with suppress(MaxbrodError, DeltaError, pa.ArrowException):
        table = replace(table, log=put_checkpoint(storage, table.log, *encode_checkpoint(table.log)))
        # Entries are deleted only after a checkpoint that replaces them.
        if table.log.version % _CLEANUP_EVERY == 0:
            delete_expired(storage)
    return table


def _exists(storage: Storage) -> RefusedError:
    return RefusedError(
        "there is already an archive", operation="create the catalog", object_name=storage.url, hint="open it instead"
    )


def no_archive(storage: Storage) -> MaxbrodError:
    """The error for a missing catalog: nothing was ever backed up here, or the catalog was lost."""
    found = next((info for folder in _OBJECTS for info in storage.list(folder) if not is_leftover(info.path)), None)
    if found is None:
        return NoArchiveError(
            "there is no archive",
            operation="open the catalog",
            object_name=storage.url,
            hint="check the URL; a first backup creates the archive",
        )
    return CorruptDataError(
        f"the catalog of the archive is missing, but its objects exist, such as {found.path}",
        operation="open the catalog",
        object_name=storage.name_of(LOG_FOLDER),
        hint=BRING_BACK,
    )


def is_leftover(path: str) -> bool:
    """True if a first opening that was killed left this: a probe, an empty ledger, or a log entry without its name."""
    return path.startswith((_PROBES, _FIRST_DOCUMENT)) or (
        path.startswith(f"{LOG_FOLDER}/") and not path.endswith((".json", ".parquet"))
    )
