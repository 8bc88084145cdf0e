"""The known layouts, and detection of the layout of an archive. Each layout is loaded on demand."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from maxbrod.errors import UsageError
from maxbrod.storage.overlay import without_own

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from maxbrod.layouts.foreign import Fault, Layout, Survey
    from maxbrod.storage.interface import Storage

NATIVE: Final = "kafka"
FOREIGN: Final = ("kbak", "kbs", "parquet", "avro", "binlog")
"""Those with the most distinctive names first."""
READ_ONLY: Final = ("logdir",)
"""Layouts that can be read, and are never written."""
_REPAIRABLE: Final = ("binlog",)
_PRUNABLE: Final = ("kbak", "kbs", "parquet", "avro", "binlog")


class Prune(Protocol):
    def __call__(self, storage: Storage, survey: Survey, going: Collection[str]) -> None:
        """Delete or empty the objects `going`, by their paths; of each partition they are the oldest, and never all.

        The layout's own metadata changes first: after a crash it names no deleted object, and the next call finishes.
        """


def layout_of(name: str) -> Layout:
    """Another tool's layout by its name."""
    if name not in (*FOREIGN, *READ_ONLY):
        raise UsageError(
            f"there is no layout {name!r}", hint=f"choose one of {', '.join((NATIVE, *FOREIGN, *READ_ONLY))}"
        )
    return cast("Layout", import_module(f"maxbrod.layouts.{name}.layout").LAYOUT)


def repair_of(name: str) -> Callable[[Storage], list[Fault]]:
    """The function that repairs the metadata of a layout, and reports what was wrong."""
    if name not in _REPAIRABLE:
        raise UsageError(
            f"nothing can be repaired in the layout {name}",
            hint="its metadata cannot be rebuilt from its segments; replace damaged objects by a copy",
        )
    return cast("Callable[[Storage], list[Fault]]", import_module(f"maxbrod.layouts.{name}.repairing").repair)


def prune_of(name: str) -> Prune:
    """The function that deletes the oldest segments of a layout."""
    if name not in _PRUNABLE:
        raise UsageError(
            f"the layout {name} is only read, and never changed: nothing can be pruned of it",
            hint="'maxbrod convert' makes an archive of it that can be pruned",
        )
    return cast("Prune", import_module(f"maxbrod.layouts.{name}.pruning").prune)


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
