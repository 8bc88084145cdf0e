"""Follows the transactions of a log that is being written: which are open, and which end in an abort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.transactions import abort_markers
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders


class LogTransactions:
    """Of one partition, whose batches are told in order."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}

    @property
    def undecided(self) -> dict[int, int]:
        """By producer the first offset of transactions without a marker so far."""
        return dict(self._open)

    def follow(self, data: NDArray[np.uint8], headers: BatchHeaders) -> Iterator[tuple[int, AbortedTransaction, int]]:
        """For each abort its row, the transaction, and where the stable offsets end once it is over.

        A marker without records before it is passed over: nothing of that transaction is in the log.
        """
        transactional = headers.transactional & (headers["count"] > 0)
        if not transactional.any():
            return
        aborts = set(abort_markers(data, headers))
        control = headers.control
        for row in np.flatnonzero(transactional).tolist():
            producer_id, offset = int(headers["producer_id"][row]), int(headers["base_offset"][row])
            if not control[row]:
                self._open.setdefault(producer_id, offset)
                continue
            first = self._open.pop(producer_id, None)
            if first is not None and (producer_id, offset) in aborts:
                stable = min(self._open.values(), default=offset + 1)
                yield row, AbortedTransaction(producer_id=producer_id, first_offset=first, last_offset=offset), stable
