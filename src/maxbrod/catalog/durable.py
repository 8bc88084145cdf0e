"""Makes the catalog of a directory durable: delta-rs syncs nothing, and a power failure could leave empty files.

In a cloud there is nothing to do: what a store has acknowledged it keeps. Objects of the archive are synced before
their rows are committed (`storage.drafts`), so with this a commit that was reported survives with all that it names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.storage.drafts import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG: Final = "_delta_log"
_FOLDERS_ABOVE: Final = 2
"""From the table up to the archive: `catalog/segments`."""


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
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
