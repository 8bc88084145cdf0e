"""Compiles the kernels that a sound archive does not need: those that find records without an index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.binlog.repairing import repair
from maxbrod.layouts.binlog.schema import INDEX

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def prepare(storage: Storage) -> None:
    """Calls them with the same types as real calls."""
    storage.delete([info.path for info in storage.list() if info.path.endswith(INDEX)])
    repair(storage)
