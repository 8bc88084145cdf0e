"""The tasks of a comparison. Their modules load numba, which the driver does not need."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.compare.items import CompactedItem, CompareItem, CompareSettings, Digested, Settled, SuspectItem
    from maxbrod.compare.plan.differences import Difference


def digest_task(settings: CompareSettings, items: Sequence[CompareItem]) -> list[Digested]:
    """Return the digest of every part."""
    from maxbrod.compare.task import digest_parts  # noqa: PLC0415 - see above

    return digest_parts(settings, items)


def difference_task(settings: CompareSettings, items: Sequence[SuspectItem]) -> list[Difference]:
    """Return the first differences of every item, in order."""
    from maxbrod.compare.task import find_differences  # noqa: PLC0415 - see above

    return [difference for item in items for difference in find_differences(settings, item)]


def compacted_task(settings: CompareSettings, items: Sequence[CompactedItem]) -> list[Settled]:
    """Return what compaction explains of each item."""
    from maxbrod.compare.compaction import settle  # noqa: PLC0415 - see above

    return [settle(settings, item) for item in items]
