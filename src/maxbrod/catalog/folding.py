"""Which data files of the catalog's own table a commit folds into the one that it writes. Pure.

Every commit writes a file, so without folding a year of minutes would leave half a million. Files belong to a tier by
their number of rows, each tier `FAN_IN` times the one below. A commit that would fill its tier takes the whole tier
along, which may lift it into the next. So fewer than `FAN_IN` files a tier stay open; a row is rewritten once a tier
(in the first more often, but that one is small); and what one commit rewrites has a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

FAN_IN: Final = 8
TIER_ROWS: Final = (1 << 10, 1 << 13, 1 << 16)
"""The row count below which a file belongs to each tier. From the last on, a file is never folded again."""
FOLDED_ROWS_MAX: Final = (FAN_IN - 1) * sum(bound - 1 for bound in TIER_ROWS)
"""What one commit folds at the most: half a million rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """An active file of the table."""

    path: str
    rows: int
    bytes: int


def choose_folds(files: Iterable[DataFile], rows: int) -> list[DataFile]:
    """The files to fold into a commit that writes so many rows."""
    tiers: dict[int, list[DataFile]] = {}
    for file in files:
        tiers.setdefault(_tier(file.rows), []).append(file)
    chosen: list[DataFile] = []
    tier = _tier(rows)
    while tier < len(TIER_ROWS):
        members = tiers.pop(tier, [])
        if len(members) + 1 < FAN_IN:
            break
        chosen += members
        rows += sum(file.rows for file in members)
        tier = _tier(rows)
    return chosen


def _tier(rows: int) -> int:
    return next((tier for tier, bound in enumerate(TIER_ROWS) if rows < bound), len(TIER_ROWS))
