"""Which records of a partition are wanted: a range of offsets and a range of times, decided record by record.

What a batch header says decides most batches. It tells the newest time, which brokers keep true, but not the oldest,
so batches near a limit of time are looked into; only then is numba loaded.
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
    """Offsets from `first_offset` up to but not `end_offset`; times from `since_ms` up to but not `until_ms`.

    A time that is given costs: with `since_ms` nearly all batches are unpacked, with `until_ms` those that reach it.
    So leave out what the lowest and highest time of a slice already answer.
    """

    first_offset: int = 0
    end_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def keeps(self, offset: NDArray[np.int64], timestamp_ms: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each record whether it is wanted."""
        keep: NDArray[np.bool_] = offset >= self.first_offset
        if self.end_offset is not None:
            keep &= offset < self.end_offset
        if self.since_ms is not None:
            keep &= timestamp_ms >= self.since_ms
        if self.until_ms is not None:
            keep &= timestamp_ms < self.until_ms
        return keep

    def whole(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        """Batches that no limit of offset goes through; meant for those that `touches` left."""
        whole: NDArray[np.bool_] = headers["base_offset"] >= self.first_offset
        if self.end_offset is not None:
            whole &= headers.last_offset < self.end_offset
        return whole

    def touches(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        """False for batches that, by their header, hold nothing that is wanted."""
        # A wrapper of magic 0 or 1 has its last offset for its own, and may begin anywhere before.
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
        """Batches that no record's time brings in, and batches that a limit of time goes through.

        Batches that cannot be read are among the latter: who rewrites them will say what is wrong. Messages of
        magic 0 and 1 and batches with log-append time are in neither.
        """
        outside, across = np.zeros((2, len(headers)), np.bool_)
        rows = np.flatnonzero(self._undecided(headers))
        if rows.size:
            outside[rows], across[rows] = self._looked_into(buffer, headers.take(rows))
        return outside, across

    def _undecided(self, headers: BatchHeaders) -> NDArray[np.bool_]:
        undecided = np.full(len(headers), self.since_ms is not None)
        if self.until_ms is not None:
            undecided |= headers["max_timestamp"] >= self.until_ms
        result: NDArray[np.bool_] = undecided & (headers["magic"] == NEWEST_MAGIC) & ~headers.log_append
        return result

    def _looked_into(self, buffer: NDArray[np.uint8], headers: BatchHeaders) -> tuple[NDArray[Any], NDArray[Any]]:
        from maxbrod.batch.timestamps import lowest_timestamps  # noqa: PLC0415 - compiled, and rarely asked for

        lowest, sound = lowest_timestamps(buffer, headers)
        outside, across = np.zeros(len(headers), np.bool_), ~sound
        if self.until_ms is not None:
            outside |= sound & (lowest >= self.until_ms)
            across |= headers["max_timestamp"] >= self.until_ms
        if self.since_ms is not None:
            across |= lowest < self.since_ms
        return outside, across & ~outside
