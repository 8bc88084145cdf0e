"""The names of the objects that restores store in an archive, and which staged records no restore needs any more.

Looks at names only, so that listing an archive's garbage reads no plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.archive.archive import RESTORES

if TYPE_CHECKING:
    from maxbrod.storage.interface import ObjectInfo, Storage

STAGED: Final = "staged"
"""The folder of staged records, within the folder of a restore."""
PLAN: Final = "plan.json.zst"
REPORT: Final = "report.json.zst"


def stored_objects(storage: Storage) -> dict[str, dict[str, ObjectInfo]]:
    """The objects of every restore, by restore id and by name within its folder."""
    found: dict[str, dict[str, ObjectInfo]] = {}
    for each in storage.list(RESTORES):
        restore_id, _, name = each.path.removeprefix(f"{RESTORES}/").partition("/")
        found.setdefault(restore_id, {})[name] = each
    return found


def stagings_left(storage: Storage) -> list[ObjectInfo]:
    """Staged objects of finished restores, and of restores without a plan, which may still be staging."""
    restores = (each for each in stored_objects(storage).values() if REPORT in each or PLAN not in each)
    return [each for objects in restores for each in _staged(objects)]


def stagings_done(storage: Storage) -> list[str]:
    """Paths of staged objects of finished restores, which were killed before they removed them."""
    restores = (each for each in stored_objects(storage).values() if REPORT in each)
    return [each.path for objects in restores for each in _staged(objects)]


def _staged(objects: dict[str, ObjectInfo]) -> list[ObjectInfo]:
    return [each for name, each in objects.items() if name.startswith(f"{STAGED}/")]
