"""Which staged records in an archive nobody needs any more. Looks at names only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.archive.opening import RESTORES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.storage.interface import ObjectInfo, Storage

STAGED: Final = "staged"
"""The folder, within what a restore remembers."""
_PLAN: Final = "plan.json.zst"
_REPORT: Final = "report.json.zst"


def stagings_left(storage: Storage) -> list[ObjectInfo]:
    """Of restores that have come to their end, and of those that have not begun yet: they may be under way."""
    return [each for each, names in _staged(storage) if _REPORT in names or _PLAN not in names]


def stagings_done(storage: Storage) -> list[str]:
    """Of restores that have come to their end: whoever was to remove them was killed."""
    return [each.path for each, names in _staged(storage) if _REPORT in names]


def _staged(storage: Storage) -> Iterator[tuple[ObjectInfo, set[str]]]:
    """Every staged object, and what else its restore has stored."""
    known: dict[str, set[str]] = {}
    staged: list[tuple[ObjectInfo, str]] = []
    for each in storage.list(RESTORES):
        restore_id, _, name = each.path.removeprefix(f"{RESTORES}/").partition("/")
        known.setdefault(restore_id, set()).add(name)
        if name.startswith(f"{STAGED}/"):
            staged.append((each, restore_id))
    yield from ((each, known[restore_id]) for each, restore_id in staged)
