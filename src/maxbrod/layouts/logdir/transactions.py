"""Which transactions of a partition ended in an abort, read off the markers of its logs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.layouts.logdir.scanning import ABORTED, DATA
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maxbrod.layouts.logdir.scanning import ScannedLog


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """One that no marker in the log ends."""

    producer_id: int
    producer_epoch: int
    first_offset: int


def fold(logs: Sequence[ScannedLog]) -> tuple[list[AbortedTransaction], list[OpenTransaction]]:
    """Those that were aborted; and those that nothing says the end of, in order.

    One that began before the log does counts from the log's first offset on.
    """
    first = next((each.base_offset for each in logs), 0)
    open_since: dict[int, OpenTransaction] = {}
    ended: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    for producer_id, epoch, offset, kind in (event for each in logs for event in each.events):
        if kind == DATA:
            begun = OpenTransaction(producer_id=producer_id, producer_epoch=epoch, first_offset=offset)
            open_since.setdefault(producer_id, begun)
            continue
        begun_at = open_since.pop(producer_id, None)
        began = ended.get(producer_id, first) if begun_at is None else begun_at.first_offset
        ended[producer_id] = offset + 1
        if kind == ABORTED:
            aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=began, last_offset=offset))
    return aborted, sorted(open_since.values(), key=lambda each: each.first_offset)


def marker_after(logs: Sequence[ScannedLog], producer_id: int, offset: int) -> int | None:
    """What a producer's first marker from an offset on says; None: there is none."""
    events = (event for each in logs if each.end_offset > offset for event in each.events)
    return next((kind for who, _, at, kind in events if who == producer_id and at >= offset and kind != DATA), None)


def touching(
    aborted: Sequence[AbortedTransaction], base_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    return tuple(each for each in aborted if each.first_offset < end_offset and each.last_offset >= base_offset)
