"""The known layouts, and detection of the layout of an archive. Each layout is loaded on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import UsageError
from maxbrod.storage.composed import without_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.layouts.foreign import Fault, Layout, Prune
    from maxbrod.storage.interface import Storage

NATIVE: Final = "kafka"
FOREIGN: Final = ("kbak", "kbs", "parquet", "avro", "binlog")
"""Those with the most distinctive names first."""
READ_ONLY: Final = ("logdir",)
"""Layouts that can be read, and are never written."""


def layout_of(name: str) -> Layout:
    """Return another tool's layout by its name. Each is loaded when it is asked for."""
    match name:
        case "kbak":
            from maxbrod.layouts.kbak.layout import LAYOUT  # noqa: PLC0415
        case "kbs":
            from maxbrod.layouts.kbs.layout import LAYOUT  # noqa: PLC0415
        case "parquet":
            from maxbrod.layouts.parquet.layout import LAYOUT  # noqa: PLC0415
        case "avro":
            from maxbrod.layouts.avro.layout import LAYOUT  # noqa: PLC0415
        case "binlog":
            from maxbrod.layouts.binlog.layout import LAYOUT  # noqa: PLC0415
        case "logdir":
            from maxbrod.layouts.logdir.layout import LAYOUT  # noqa: PLC0415
        case _:
            raise UsageError(
                f"there is no layout {name!r}", hint=f"choose one of {', '.join((NATIVE, *FOREIGN, *READ_ONLY))}"
            )
    return LAYOUT


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
