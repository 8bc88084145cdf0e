"""Aborted transactions of one partition while it is written: named by fetch answers, ended by markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.transactions import abort_markers
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.kafka.pieces import Piece


class AbortedTransactions:
    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int | None] = {}

    def learn(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Producer id and first offset of each; every fetch answer repeats those that touch it."""
        for producer_id, first_offset in aborted:
            self._ends.setdefault((producer_id, first_offset), None)

    def end(self, piece: Piece) -> None:
        """Take note of the abort markers of these batches; pieces come in order of offsets."""
        if not self._ends or not piece.headers.control.any():
            return
        markers = abort_markers(piece.data, piece.headers)
        for key, known in self._ends.items():
            if known is None:
                producer_id, first_offset = key
                after = (offset for producer, offset in markers if producer == producer_id and offset > first_offset)
                self._ends[key] = next(after, None)

    def touching(self, base_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that reach into a range; one that has not ended in it goes on to its last offset.

        Ranges are asked for in order: what ended before one is forgotten.
        """
        self._ends = {key: end for key, end in self._ends.items() if end is None or end >= base_offset}
        found = [
            AbortedTransaction(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=end_offset - 1 if end is None else min(end, end_offset - 1),
            )
            for (producer_id, first_offset), end in self._ends.items()
            if first_offset < end_offset
        ]
        return tuple(sorted(found, key=lambda each: (each.first_offset, each.producer_id)))
