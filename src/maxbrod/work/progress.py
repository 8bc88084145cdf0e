"""Progress of a long operation, reported to a callback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`bytes` and `records` are estimates until a wave of tasks is done, and exact then."""

    phase: str
    bytes_done: int = 0
    bytes_total: int = 0
    records_done: int = 0
    tasks_done: int = 0
    tasks_total: int = 0


OnProgress: TypeAlias = "Callable[[Progress], None]"


def silent(_progress: Progress) -> None:
    """Report nothing."""
