"""Aborted transactions of one partition while it is written: named by fetch answers, ended by markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.transactions import abort_markers
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.layouts.kafka.pieces import DescribedBatches


class AbortedTransactions:
    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int | None] = {}
        self._ended_by: dict[tuple[int, int], int] = {}
        """The last offset at which it can have ended, of those that answers have ceased to name."""

    def learn(self, aborted: Iterable[tuple[int, int]], base_offset: int) -> None:
        """Producer id and first offset of each; every fetch answer repeats those that touch it.

        So one that the answer for `base_offset` no longer names has ended, also where its marker is never seen: it may
        be damaged, or compacted away. Left open it would claim what its producer committed later.
        """
        named = set(aborted)
        for key in self._ends:
            if key not in named:
                self._ended_by.setdefault(key, base_offset - 1)
        for key in named:
            self._ends.setdefault(key, None)

    def end(self, piece: DescribedBatches) -> None:
        """Take note of the abort markers of these batches; pieces come in order of offsets."""
        if not self._ends or not piece.headers.control.any():
            return
        markers = abort_markers(piece.data, piece.headers)
        for key, known in self._ends.items():
            if known is None:
                producer_id, first_offset = key
                after = (offset for producer, offset in markers if producer == producer_id and offset > first_offset)
                found = next(after, None)
                if found is not None and found <= self._ended_by.get(key, found):
                    self._ends[key] = found

    def touching(self, base_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Those that reach into a range; one that has not ended in it goes on to its last offset.

        Ranges are asked for in order: what ended before one is forgotten.
        """
        last_offsets = {key: self._last_offset(key) for key in self._ends}
        self._ends = {key: end for key, end in self._ends.items() if not _is_before(last_offsets[key], base_offset)}
        self._ended_by = {key: end for key, end in self._ended_by.items() if key in self._ends}
        found = [
            AbortedTransaction(
                producer_id=producer_id,
                first_offset=first_offset,
                last_offset=end_offset - 1 if end is None else min(end, end_offset - 1),
            )
            for (producer_id, first_offset), end in ((key, last_offsets[key]) for key in self._ends)
            if first_offset < end_offset
        ]
        return tuple(sorted(found, key=lambda each: (each.first_offset, each.producer_id)))

    def _last_offset(self, key: tuple[int, int]) -> int | None:
        end = self._ends[key]
        return self._ended_by.get(key) if end is None else end


def _is_before(end: int | None, base_offset: int) -> bool:
    return end is not None and end < base_offset
