"""Places without a catalog: nothing was ever backed up there, somebody else's objects are, or the catalog was lost."""

from __future__ import annotations

from typing import Final

from maxbrod.catalog.ledger import LEDGER
from maxbrod.catalog.log import BRING_BACK, LOG_FOLDER
from maxbrod.errors import CorruptDataError, MaxbrodError, NoArchiveError, RefusedError
from maxbrod.storage.composed import SCHEDULE_FOLDER
from maxbrod.storage.interface import KEYS, Storage
from maxbrod.storage.stores import is_locked, locked

_PROBES: Final = "probes/"
_FIRST_DOCUMENT: Final = f"{LEDGER}/{0:020}-"
_OBJECTS: Final = ("catalog", "snapshots", "packs", "segments")
"""Folders that only an archive has, the one with the fewest objects first."""


def refuse_foreign_objects(storage: Storage) -> None:
    """Objects beside a new catalog would be garbage that no row names, and `gc` would delete them."""
    error = no_archive(storage)
    if isinstance(error, CorruptDataError):
        raise error
    for info in storage.list():
        if not is_leftover(info.path) and not info.path.startswith((f"{SCHEDULE_FOLDER}/", f"{KEYS}/")):
            raise RefusedError(
                "there are objects here, but no catalog of an archive",
                operation="open for writing",
                object_name=storage.name_of(info.path),
                hint="name an empty place",
            )


def no_archive(storage: Storage) -> MaxbrodError:
    """The error for a missing catalog: nothing was ever backed up here, or the catalog was lost, or needs a key."""
    if is_locked(storage):
        return locked(storage)
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
