"""A log that begins within a batch: the records before its beginning are left out, as every consumer leaves them out.

Brokers keep such a batch whole, and DeleteRecords moves the beginning into one easily. Its other records are made a
batch of their own, so that whoever reads the log from there on needs to know nothing of it.
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
    """Whether, as far as its header tells, `offset` lies within the first batch."""
    if not len(headers) or not 0 < offset <= int(headers.last_offset[0]):
        return False
    return int(headers["base_offset"][0]) < offset or _is_wrapper(headers)


def begin_at(data: NDArray[np.uint8], headers: BatchHeaders, offset: int) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """The same batches, the first one without its records before `offset`; checksums were looked at before.

    What the header says of the kept records stays as it is, and so does the codec. Messages of magic 0 and 1 become
    a batch of magic 2. A batch without a record from `offset` on goes; one that cannot be read stays as it is, for
    there are no records in it for anybody.
    """
    if not may_begin_before(headers, offset):
        return data, headers
    # Compiled: loading it costs seconds, and it is rarely met.
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
    """Of a compressed message of magic 0 or 1, whose offset is that of its last record: it may begin anywhere."""
    return bool(headers["magic"][0] != NEWEST_MAGIC and headers["count"][0] < 0)
