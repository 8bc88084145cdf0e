"""Which transactions of a partition ended in an abort, read off the markers of its logs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.layouts.logdir.scanning import ABORTED, DATA
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.logdir.scanning import ScannedLog


def fold(logs: Sequence[ScannedLog]) -> tuple[list[AbortedTransaction], dict[int, int]]:
    """Those that were aborted; and by producer the first offset of those that nothing says the end of.

    One that began before the log does counts from the log's first offset on.
    """
    first = next((each.base_offset for each in logs), 0)
    open_since: dict[int, int] = {}
    ended: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    for producer_id, offset, kind in (event for each in logs for event in each.events):
        if kind == DATA:
            open_since.setdefault(producer_id, offset)
            continue
        began = open_since.pop(producer_id, ended.get(producer_id, first))
        ended[producer_id] = offset + 1
        if kind == ABORTED:
            aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=began, last_offset=offset))
    return aborted, open_since


def touching(
    aborted: Sequence[AbortedTransaction], base_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    return tuple(each for each in aborted if each.first_offset < end_offset and each.last_offset >= base_offset)
