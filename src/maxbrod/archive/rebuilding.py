"""What `gc` must know of rebuilds of the catalog: that one is under way, or that one is needed.

Objects that no row names are garbage only if the catalog is whole. A catalog that has lost its end names too little,
and a rebuild names again what it finds. So a rebuild announces itself before it looks for objects, and `gc` looks for
such an announcement before each request of deletion.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from maxbrod.archive.snapshot_document import decode
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from maxbrod.storage.interface import Storage

_FOLDER: Final = "probes"
_NAME: Final = f"{_FOLDER}/rebuild-"


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
    storage: Storage, version: int, named: Collection[str | None], *, until_ms: int | None = None
) -> str | None:
    """Why the newest entries of the log seem to be lost: nothing in the log shows that, but a snapshot may.

    A run that was killed between its snapshot and its commit looks the same. Everything that its snapshot accounts for
    is durable, so it may be taken for committed. A run that is about to commit looks the same, too: `until_ms` leaves
    younger snapshots out.
    """
    for info in storage.list("snapshots"):
        if info.path in named or (until_ms is not None and info.modified_ms >= until_ms):
            continue
        with suppress(CorruptDataError, UnsupportedFormatError, ObjectNotFoundError):
            snapshot = decode(bytes(storage.get(info.path)), object_name=info.path)
            if snapshot.run is not None and snapshot.run.commit > version:
                return (
                    f"it ends with version {version}, but run {snapshot.run_id} has a snapshot for version "
                    f"{snapshot.run.commit}: newer entries are lost, or the run was killed just before its commit"
                )
    return None
