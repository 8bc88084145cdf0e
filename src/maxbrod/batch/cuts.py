"""Selects the records of a partition by a range of offsets and a range of times.

Most batches are decided by their header. The header has the newest time, which brokers keep correct, but not the
oldest. So batches near a time limit are decoded, and only then is numba loaded.

DeleteRecords can move the log start offset into the middle of a batch. Brokers keep such a batch whole, and consumers
skip the records before the start. `begin_at` makes the other records a batch of their own, so that readers of the
archive need no log start offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, walk
from maxbrod.errors import CorruptDataError, UnsupportedFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ONE_BATCH: Final = (1 << 31) - 1


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
        undecided = np.full(len(headers), self.since_ms is not None)
        if self.until_ms is not None:
            undecided |= headers["max_timestamp"] >= self.until_ms
        rows = np.flatnonzero(undecided & (headers["magic"] == NEWEST_MAGIC) & ~headers.log_append)
        if rows.size:
            outside[rows], across[rows] = self._by_lowest_time(buffer, headers.take(rows))
        return outside, across

    def _by_lowest_time(self, buffer: NDArray[np.uint8], headers: BatchHeaders) -> tuple[NDArray[Any], NDArray[Any]]:
        from maxbrod.batch.decode import lowest_timestamps  # noqa: PLC0415 - loads numba, and is rarely needed

        lowest, sound = lowest_timestamps(buffer, headers)
        outside, across = np.zeros(len(headers), np.bool_), ~sound
        if self.until_ms is not None:
            outside |= sound & (lowest >= self.until_ms)
            across |= headers["max_timestamp"] >= self.until_ms
        if self.since_ms is not None:
            across |= lowest < self.since_ms
        return outside, across & ~outside


def may_begin_before(headers: BatchHeaders, offset: int) -> bool:
    """True if `offset` lies within the first batch, judged by its header."""
    if not len(headers) or not 0 < offset <= int(headers.last_offset[0]):
        return False
    return int(headers["base_offset"][0]) < offset or _is_wrapper(headers)


def begin_at(data: NDArray[np.uint8], headers: BatchHeaders, offset: int) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """Drop the records before `offset` from the first batch. The caller has checked the checksums.

    The header fields that describe the kept records stay, and so does the codec. Messages of magic 0 and 1 become a
    batch of magic 2. A batch without a record at or after `offset` is dropped. A batch that cannot be decoded stays as
    it is: no consumer can read records from it either.
    """
    if not may_begin_before(headers, offset):
        return data, headers
    # Loading numba costs seconds, and such a batch is rare.
    from maxbrod.batch.columns import number_array, number_column  # noqa: PLC0415
    from maxbrod.batch.decode import decode  # noqa: PLC0415
    from maxbrod.batch.encode import encode  # noqa: PLC0415

    try:
        records = decode(data, headers.take(slice(1)))
    except (CorruptDataError, UnsupportedFormatError):
        return data, headers
    keep = number_column(records.column("offset")) >= offset
    if _is_wrapper(headers) and keep.all():
        return data, headers
    head = encode(records.filter(number_array(keep)), codec=headers.codec_at(0), batch_bytes_max=_ONE_BATCH)
    whole = np.concatenate([head, data[int(headers.position[0] + headers.size[0]) : headers.end]])
    return whole, walk(whole, check_crc=False)


def _is_wrapper(headers: BatchHeaders) -> bool:
    """True if the first is a compressed message of magic 0 or 1, whose header has only its last offset."""
    return bool(headers["magic"][0] != NEWEST_MAGIC and headers["count"][0] < 0)
