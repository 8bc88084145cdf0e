"""The batches of a partition's log file, between two bytes of it, in bounded memory; their records; and the check."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.cuts import begin_at
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, walk
from maxbrod.errors import CorruptDataError, MaxbrodError, TruncatedDataError, UnsupportedFormatError, naming
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.visible_records import decode_committed
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.storage.interface import Storage

CHUNK_BYTES: Final = 4 << 20
"""Larger buffers are mapped anew each time, which took as long as everything else together."""
MIDDLE_UNREAD: Final = "middle_unread"
"""In the details of a segment whose survey has read the ends of the file only: its leader epochs and their starts."""
_BATCH_BYTES_MAX: Final = (1 << 31) - 1


def batches(
    storage: Storage, path: str, start: int, stop: int, *, check_crc: bool = True
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """Whole batches of the bytes [start, stop), a chunk at a time.

    CorruptDataError, UnsupportedFormatError: the batch at `position` of the file is not sound. Everything before it has
    been yielded by then.
    """
    at, size = start, CHUNK_BYTES
    with naming(storage.name_of(path)):
        while at < stop:
            data = np.frombuffer(storage.get_range(path, at, min(size, stop - at)), np.uint8)
            headers, error = _sound(data, stop - at, check_crc=check_crc)
            if len(headers):
                yield data[: headers.end], replace(headers, tail=0)
                at, size = at + headers.end, CHUNK_BYTES
            elif error is None:
                if at + data.size >= stop:
                    raise TruncatedDataError(f"the last batch is cut: {data.size} bytes of it exist", position=at)
                size *= 2
            if error is not None:
                error.position = at
                raise error


def _sound(
    data: NDArray[np.uint8], rest: int, *, check_crc: bool
) -> tuple[BatchHeaders, CorruptDataError | UnsupportedFormatError | None]:
    """The sound batches at the beginning, and the error that ends them, if any.

    No batch is longer than the rest of its file, so a damaged length does not make all of it be read at once.
    """
    try:
        return walk(data, check_crc=check_crc, batch_bytes_max=min(rest, _BATCH_BYTES_MAX)), None
    except (CorruptDataError, UnsupportedFormatError) as error:
        return walk(data[: error.position or 0], check_crc=False), error


def read_batches(
    storage: Storage, segment: ForeignSegment, *, check_crc: bool = True
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The batches of a segment as the broker stored them, as far as the survey has found them sound.

    If the log begins within the first batch, the records before are removed from it. CorruptDataError also if the
    survey has read the ends of the file only, and its middle is not plain.
    """
    start, log_start = int(segment.details["position"]), segment.details.get("log_start")
    found = batches(storage, segment.path, start, start + segment.bytes, check_crc=check_crc)
    if (epochs := segment.details.get(MIDDLE_UNREAD)) is not None:
        found = _proved(segment, epochs, found)
    try:
        if log_start is not None and (first := next(found, None)) is not None:
            yield begin_at(*first, int(log_start))
        yield from found
    except MaxbrodError as error:
        error.offset = segment.base_offset if error.offset is None else error.offset
        raise


def is_plain(headers: BatchHeaders, epochs: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return a mask of the batches that are complete, of no transaction, and of the leader epoch expected there.

    `epochs` are those of the file with their first offsets, in order.
    """
    numbers, starts = np.array(epochs, np.int64).T
    expected = numbers[np.searchsorted(starts, headers["base_offset"], side="right") - 1]
    complete = headers["count"].astype(np.int64) == headers["last_offset_delta"].astype(np.int64) + 1
    special = headers.transactional | headers.control | (headers.codec > max(Codec))
    plain: NDArray[np.bool_] = (
        (headers["magic"] == NEWEST_MAGIC) & (headers["leader_epoch"] == expected) & complete & ~special
    )
    return plain


def _proved(
    segment: ForeignSegment,
    epochs: Sequence[tuple[int, int]],
    pieces: Iterator[tuple[NDArray[np.uint8], BatchHeaders]],
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The pieces of a segment, if they are what its survey has assumed: plain batches without a hole."""
    reached = segment.base_offset
    for data, headers in pieces:
        follows = headers["base_offset"] == np.append(np.int64(reached), headers.last_offset[:-1] + 1)
        wrong = np.flatnonzero(~(is_plain(headers, epochs) & follows))
        if wrong.size:
            raise _not_plain(int(headers["base_offset"][wrong[0]]))
        reached = int(headers.last_offset[-1]) + 1
        yield data, headers
    if reached != segment.end_offset:
        raise _not_plain(reached)


def _not_plain(offset: int) -> CorruptDataError:
    return CorruptDataError(
        f"from offset {offset} on the log differs from what the ends of its file showed: a hole, a transaction, "
        "another leader epoch, or damage",
        offset=offset,
        hint="survey it with check_crc=true, which reads all of it",
    )


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The records that an application may see."""
    for data, headers in read_batches(storage, segment):
        yield from decode_committed(data, headers, segment.aborted, columns=columns)


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """The survey has verified every batch already. A deep check also decodes the records."""
    yield from survey.faults
    for segment in survey.segments if deep else ():
        try:
            for _ in read(storage, segment, None):
                pass
        except MaxbrodError as error:
            yield Fault(path=segment.path, message=error.message, offset=error.offset)
