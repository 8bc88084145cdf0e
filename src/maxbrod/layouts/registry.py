"""Which layouts there are, and which one an archive has. Each is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maxbrod.layouts.foreign import Fault, Layout
    from maxbrod.storage.interface import Storage

NATIVE: Final = "kafka"
FOREIGN: Final = ("kbak", "kbs", "parquet", "avro", "binlog")
"""In the order in which they are looked for: those with the most telling names first."""
READ_ONLY: Final = ("logdir",)
"""What no tool calls an archive, and is one: it can be read, and is never written to."""
_REPAIRABLE: Final = ("binlog",)


def layout_of(name: str, extra: Mapping[str, str] | None = None) -> Layout:
    """Another tool's layout by its name. `extra` are options of its own for reading."""
    if name not in (*FOREIGN, *READ_ONLY):
        raise UsageError(f"there is no layout {name!r}", hint=f"choose of {', '.join((NATIVE, *FOREIGN, *READ_ONLY))}")
    module = import_module(f"maxbrod.layouts.{name}.layout")
    if not extra:
        return cast("Layout", module.LAYOUT)
    if not hasattr(module, "with_options"):
        raise UsageError(f"the layout {name} is read without options", hint=f"leave out {', '.join(sorted(extra))}")
    return cast("Layout", module.with_options(extra))


def repair_of(name: str) -> Callable[[Storage], list[Fault]]:
    """What makes the metadata of a layout right again, and tells what was wrong."""
    if name not in _REPAIRABLE:
        raise UsageError(
            f"nothing can be repaired in the layout {name}",
            hint="its metadata cannot be made from its segments; bring damaged objects back from a copy",
        )
    return cast("Callable[[Storage], list[Fault]]", import_module(f"maxbrod.layouts.{name}.repairing").repair)


def detect_layout(storage: Storage) -> str | None:
    """The foreign layout that the storage holds; None if it looks like none of them."""
    return next((name for name in (*FOREIGN, *READ_ONLY) if layout_of(name).detect(storage)), None)
