"""Selects the records of a partition by a range of offsets and a range of times.

Most batches are decided by their header. The header has the newest time, which brokers keep correct, but not the
oldest. So batches near a time limit are decoded, and only then is numba loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Offsets in [first_offset, end_offset) and times in [since_ms, until_ms).

    Time limits are expensive: `since_ms` unpacks nearly all batches, `until_ms` those that reach it. Omit limits that
    the lowest and highest time of a slice already satisfy.
    """

    first_offset: int = 0
    end_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def keeps(self, offset: NDArray[np.int64], timestamp_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each record, whether it is selected."""
        keep: NDArray[np.bool_] = offset >= self.first_offset
        if self.end_offset is not None:
            keep &= offset < self.end_offset
        if self.since_ms is not None:
            keep &= timestamp_ms >= self.since_ms
        if self.until_ms is not None:
            keep &= timestamp_ms < self.until_ms
        return keep

    def whole(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        """Batches that no offset limit crosses, among those that `touches` kept."""
        whole: NDArray[np.bool_] = headers["base_offset"] >= self.first_offset
        if self.end_offset is not None:
            whole &= headers.last_offset < self.end_offset
        return whole

    def touches(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        """False for batches whose header shows that they hold no selected record."""
        # The offset of a compressed message of magic 0 or 1 is its last record's; its first offset is unknown.
        old = headers["magic"] != NEWEST_MAGIC
        touches: NDArray[np.bool_] = (headers.last_offset >= self.first_offset) & (headers["count"] != 0)
        if self.end_offset is not None:
            touches &= old | (headers["base_offset"] < self.end_offset)
        if self.since_ms is not None:
            touches &= old | (headers["max_timestamp"] >= self.since_ms)
        if self.until_ms is not None:
            touches &= ~headers.log_append | (headers["max_timestamp"] < self.until_ms)
        return touches

    def outside_and_across(
        self, buffer: NDArray[np.uint8], headers: BatchHeaders
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Batches without a record in the time range, and batches that a time limit crosses.

        Batches that cannot be read count as crossed: rewriting them reports what is wrong. Messages of magic 0 and 1
        and batches with log-append time are in neither.
        """
        outside, across = np.zeros((2, len(headers)), np.bool_)
        rows = np.flatnonzero(self._undecided(headers))
        if rows.size:
            outside[rows], across[rows] = self._by_lowest_time(buffer, headers.take(rows))
        return outside, across

    def _undecided(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        undecided = np.full(len(headers), self.since_ms is not None)
        if self.until_ms is not None:
            undecided |= headers["max_timestamp"] >= self.until_ms
        result: NDArray[np.bool_] = undecided & (headers["magic"] == NEWEST_MAGIC) & ~headers.log_append
        return result

    def _by_lowest_time(self, buffer: NDArray[np.uint8], headers: BatchHeaders) -> tuple[NDArray[Any], NDArray[Any]]:
        from maxbrod.batch.timestamps import lowest_timestamps  # noqa: PLC0415 - loads numba, and is rarely needed

        lowest, sound = lowest_timestamps(buffer, headers)
        outside, across = np.zeros(len(headers), np.bool_), ~sound
        if self.until_ms is not None:
            outside |= sound & (lowest >= self.until_ms)
            across |= headers["max_timestamp"] >= self.until_ms
        if self.since_ms is not None:
            across |= lowest < self.since_ms
        return outside, across & ~outside
