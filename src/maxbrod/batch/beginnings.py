"""Trims the first batch of a log that starts within it: records below the log start offset are dropped.

DeleteRecords can move the log start offset into the middle of a batch. Brokers keep such a batch whole, and consumers
skip the records before the start. Here the other records become a batch of their own, so that readers of the archive
need no log start offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, walk
from maxbrod.errors import CorruptDataError, UnsupportedFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ONE_BATCH: Final = (1 << 31) - 1


def may_begin_before(headers: BatchHeaders, offset: int) -> bool:
    """Whether `offset` lies within the first batch, judged by its header."""
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
    """Whether the first is a compressed message of magic 0 or 1, whose header has only its last offset."""
    return bool(headers["magic"][0] != NEWEST_MAGIC and headers["count"][0] < 0)
