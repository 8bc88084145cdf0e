"""Every folder of an archive in our own layout, and what a copy takes of it. docs/format.md lists the same folders.

A folder that is not here is not copied, so whoever adds one decides here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class CopyRule(StrEnum):
    """What a copy takes of a folder."""

    NAMED = "named"
    """What the version of the catalog that is copied names: rows, runs, undo documents, the ledger up to it."""
    WHOLE = "whole"
    """Every object. Nothing in it is ever changed or deleted."""
    NONE = "none"
    """Nothing: it is about this place, such as a lease or the proof that these very objects were read."""


FOLDERS: Final = {
    "catalog": CopyRule.NAMED,
    "snapshots": CopyRule.NAMED,
    "registry": CopyRule.WHOLE,
    "segments": CopyRule.NAMED,
    "packs": CopyRule.NAMED,
    "replication": CopyRule.NONE,
    "restores": CopyRule.NONE,
    "drills": CopyRule.NONE,
    "proofs": CopyRule.NONE,
    "prunes": CopyRule.NAMED,
    "ledger": CopyRule.NAMED,
    "holds": CopyRule.WHOLE,
    "copies": CopyRule.NONE,
    "keys": CopyRule.NONE,
    "erasures": CopyRule.WHOLE,
    ".maxbrod": CopyRule.NONE,
    "catalog-before": CopyRule.NONE,
    "probes": CopyRule.NONE,
}
"""Every folder at the top of an archive."""


def folders_with(rule: CopyRule) -> tuple[str, ...]:
    return tuple(name for name, found in FOLDERS.items() if found is rule)
