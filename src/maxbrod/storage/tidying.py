"""Removes the folder of unfinished files from archives that this process wrote to, when it ends and that is empty."""

from __future__ import annotations

import atexit
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_FOLDERS: Final[set[Path]] = set()


def tidy_at_exit(folder: Path) -> None:
    """Leave no empty `folder` behind. One in which others write is not empty, or is made again by them."""
    if not _FOLDERS:
        atexit.register(_tidy)
    _FOLDERS.add(folder)


def _tidy() -> None:
    for folder in _FOLDERS:
        with suppress(OSError):
            folder.rmdir()
