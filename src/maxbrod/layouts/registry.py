"""The known layouts, and detection of the layout of an archive. Each layout is loaded on demand."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.storage.composed import without_own
from maxbrod.storage.interface import Storage

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Fault, Layout, Prune

NATIVE: Final = "kafka"
FOREIGN: Final = ("kbak", "kbs", "parquet", "avro", "binlog")
"""Those with the most distinctive names first."""
READ_ONLY: Final = ("logdir",)
"""Layouts that can be read, and are never written."""


def layout_of(name: str) -> Layout:
    """Return another tool's layout by its name. Each is loaded when it is asked for."""
    known = (*FOREIGN, *READ_ONLY)
    if name not in known:
        raise UsageError(f"there is no layout {name!r}", hint=f"choose one of {', '.join((NATIVE, *known))}")
    # The survey of a log directory takes long to load, so its layout is beside it.
    layout: Layout = import_module(f"maxbrod.layouts.{name}.{'format' if name in READ_ONLY else 'survey'}").LAYOUT
    return layout


def repair_of(name: str) -> Callable[[Storage], list[Fault]]:
    """Return the function that repairs the metadata of a layout, and reports what was wrong."""
    repair = layout_of(name).repair
    if repair is None:
        raise UsageError(
            f"nothing can be repaired in the layout {name}",
            hint="its metadata cannot be rebuilt from its segments; replace damaged objects by a copy",
        )
    return repair


def prune_of(name: str) -> Prune:
    """Return the function that deletes the oldest segments of a layout."""
    prune = layout_of(name).prune
    if prune is None:
        raise UsageError(
            f"the layout {name} is only read, and never changed: nothing can be pruned of it",
            hint="'maxbrod convert' makes an archive of it that can be pruned",
        )
    return prune


def detect_layout(storage: Storage) -> str | None:
    """The foreign layout that the storage holds; None if none is recognized.

    UsageError: there are several, and whoever reads one would take its topics for all of them.
    """
    # Layouts look at the first names only, and our own objects would be listed before all of theirs.
    seen = without_own(storage)
    found = [name for name in (*FOREIGN, *READ_ONLY) if layout_of(name).detect(seen)]
    if len(found) > 1:
        raise UsageError(
            f"archives of several tools are in this place: {', '.join(found)}",
            object_name=storage.url,
            hint=f"name the layout of one: --layout {found[0]}",
        )
    return next(iter(found), None)
