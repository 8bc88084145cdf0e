"""Which layouts there are, and which one an archive has. Each is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Layout
    from maxbrod.storage.interface import Storage

NATIVE: Final = "kafka"
FOREIGN: Final = ("kbak", "kbs", "parquet", "avro", "binlog")
"""In the order in which they are looked for: those with the most telling names first."""


def layout_of(name: str) -> Layout:
    """Another tool's layout by its name."""
    if name not in FOREIGN:
        raise UsageError(f"there is no layout {name!r}", hint=f"choose of {', '.join((NATIVE, *FOREIGN))}")
    return cast("Layout", import_module(f"maxbrod.layouts.{name}.layout").LAYOUT)


def detect_layout(storage: Storage) -> str | None:
    """The foreign layout that the storage holds; None if it looks like none of them."""
    return next((name for name in FOREIGN if layout_of(name).detect(storage)), None)
