"""What `gc` must know of rebuilds of the catalog: that one is under way, or that one is needed.

Objects that no row names are garbage only if the catalog is whole. A catalog that has lost its end names too little,
and a rebuild names again what it finds. So a rebuild announces itself before it looks for objects, and `gc` looks for
such an announcement before each request of deletion.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from maxbrod.archive.snapshot_document import decode
from maxbrod.catalog.ledger import documents_in, version_of
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from maxbrod.catalog.catalog import Catalog
    from maxbrod.storage.interface import Storage

_FOLDER: Final = "probes"
_NAME: Final = f"{_FOLDER}/rebuild-"
_OR_KILLED: Final = "newer entries are lost, or the run was killed just before its commit"


@contextmanager
def announced(storage: Storage, run_id: str) -> Iterator[None]:
    """Keep `gc` from deleting while a rebuild is under way. What a killed one leaves behind counts for a grace time."""
    name = f"{_NAME}{run_id}"
    storage.put(name, b"the catalog is being rebuilt")
    try:
        yield
    finally:
        with suppress(MaxbrodError):
            storage.delete([name])


def rebuild_under_way(storage: Storage, *, since_ms: int) -> str | None:
    """The run of a rebuild that began after `since_ms`, by the store's clock, and has not ended."""
    found = (info for info in storage.list(_FOLDER) if info.path.startswith(_NAME))
    return next((info.path.removeprefix(_NAME) for info in found if info.modified_ms > since_ms), None)


def find_lost_end(
    storage: Storage, catalog: Catalog, named: Collection[str | None], *, until_ms: int | None = None
) -> str | None:
    """Why the newest entries of the log seem to be lost: nothing in the log shows that, but other objects may.

    They are snapshots, of which `named` are those of known runs; files of rows, and documents of the ledger. A run that
    was killed just before its commit looks the same. Everything that these account for is durable, so it may be taken
    for committed. A run that is about to commit looks the same, too: `until_ms` leaves younger objects out.
    """
    version = catalog.version
    if (found := find_lost_commit(catalog, until_ms=until_ms)) is not None:
        return found
    for info, number in documents_in(storage):
        if (commit := version_of(number)) > version and (until_ms is None or info.modified_ms < until_ms):
            return f"it ends with version {version}, but {info.path} is of version {commit}: {_OR_KILLED}"
    for info in storage.list("snapshots"):
        if info.path in named or (until_ms is not None and info.modified_ms >= until_ms):
            continue
        with suppress(CorruptDataError, UnsupportedFormatError, ObjectNotFoundError):
            snapshot = decode(bytes(storage.get(info.path)), object_name=info.path)
            if snapshot.run is not None and snapshot.run.commit > version:
                return (
                    f"it ends with version {version}, but run {snapshot.run_id} has a snapshot for version "
                    f"{snapshot.run.commit}: {_OR_KILLED}"
                )
    return None


def find_lost_commit(catalog: Catalog, *, until_ms: int | None = None) -> str | None:
    """The same by files of rows alone. Of all traces, they are put last: hardly a killed run leaves one."""
    for commit, run_id in catalog.lost_commits(until_ms=until_ms):
        return f"it ends with version {catalog.version}, but run {run_id} has rows for version {commit}: {_OR_KILLED}"
    return None
