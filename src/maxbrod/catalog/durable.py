"""Makes the catalog of a directory durable and private.

delta-rs syncs nothing, so that a power failure could leave empty files; it follows links, and it knows no modes.

In a cloud there is nothing to do: what a store has acknowledged it keeps. Objects of the archive are synced before
their rows are committed (`storage.drafts`), so with this a commit that was reported survives with all that it names.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.storage.beneath import refuse_links, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG: Final = "_delta_log"
_FOLDERS_ABOVE: Final = 2
"""From the table up to the archive: `catalog/segments`."""


def refuse_linked(archive_url: str) -> None:
    """RefusedError if a link stands in the catalog: delta-rs opens paths itself, and would go where it leads."""
    folder = _folder_of(archive_url)
    if folder is not None:
        refuse_links(folder / "catalog")


def sync_files(table_url: str, names: Iterable[str]) -> None:
    """Data files that a commit is about to name."""
    folder = _folder_of(table_url)
    if folder is not None:
        for name in names:
            _sync(folder / name)
        sync_folder(folder)


def sync_commit(table_url: str, version: int) -> None:
    """The entry of the log that makes this version, and the checkpoint if there is one."""
    folder = _folder_of(table_url)
    if folder is None:
        return
    log = folder / _LOG
    for name in (f"{version:020}.json", f"{version:020}.checkpoint.parquet", "_last_checkpoint"):
        if (log / name).exists():
            _sync(log / name)
    sync_folder(log)


def sync_new_table(table_url: str) -> None:
    """Its first version, and the folders that came with it."""
    folder = _folder_of(table_url)
    if folder is not None:
        sync_commit(table_url, 0)
        for each in (folder, *folder.parents[:_FOLDERS_ABOVE]):
            sync_folder(each)


def _folder_of(table_url: str) -> Path | None:
    """None: it lies in a cloud. Directories come as plain paths, see `storage.delta`."""
    return None if "://" in table_url else Path(table_url)


def _sync(path: Path) -> None:
    """A file gets the rights that its folder gives, which was made with those of the archive."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # An object of another user, in an archive that several share, has the rights that its maker gave it.
        with suppress(PermissionError):
            os.fchmod(descriptor, stat.S_IMODE(path.parent.stat().st_mode) & 0o666)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
