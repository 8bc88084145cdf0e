"""The contents of a slice in any layout: as batches, or as the records that an application may see, in portions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.batch.columns import number_column, project
from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX
from maxbrod.batch.erased import ErasedRecords
from maxbrod.batch.headers import BatchHeaders, walk
from maxbrod.batch.transactions import committed_batches
from maxbrod.errors import CorruptDataError, MaxbrodError, ObjectNotFoundError
from maxbrod.layouts.foreign import UNCOMMITTED, described
from maxbrod.layouts.kafka import reader as native
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.registry import layout_of
from maxbrod.model import AbortedTransaction, Codec
from maxbrod.storage.interface import Storage

Batches = tuple[NDArray[np.uint8], BatchHeaders]

Piece = TypeVar("Piece")
_CODEC: Final = Codec.LZ4
"""The codec of records from layouts that do not keep the codec of their source."""


def read_logs(
    storage: Storage,
    stored: Slice,
    *,
    check_crc: bool = True,
    request_bytes: int = native.REQUEST_BYTES,
    ahead: Executor | None = None,
) -> Iterator[Batches]:
    """The log of a slice in pieces of whole batches, each with its headers. The same slice yields the same bytes.

    CorruptDataError names the offsets that are lost; everything before them was yielded. Nothing from `sound_end` on is
    yielded or raised. `request_bytes` and `ahead` apply to slices of the native layout: see there.
    """
    pieces = _read_logs(storage, stored, check_crc=check_crc, request_bytes=request_bytes, ahead=ahead)
    return _sound(storage, stored, pieces, _cut_batches)


def _read_logs(
    storage: Storage, stored: Slice, *, check_crc: bool, request_bytes: int, ahead: Executor | None
) -> Iterator[Batches]:
    if stored.details is None:
        pieces = native.read_logs(storage, stored, check_crc=check_crc, request_bytes=request_bytes, ahead=ahead)
        pieces = _in_place(stored, pieces)
        yield from pieces if stored.erased is None else _without_erased(pieces, stored.erased)
        return
    name, segment = described(stored.details)
    if (read_batches := layout_of(name).read_batches) is not None:
        yield from read_batches(storage, segment, check_crc=check_crc)
        return
    # Loads numba: only here are records encoded.
    from maxbrod.batch.encode import encode  # noqa: PLC0415

    for records in read_foreign(storage, stored.details):
        data = encode(records, codec=_CODEC)
        yield data, walk(data, check_crc=False)


def _without_erased(pieces: Iterator[Batches], erased: ErasedRecords) -> Iterator[Batches]:
    """The gate that erased records do not pass, where a row was not rewritten, or was read again from the source."""
    # Loads numba: only slices with such records are decoded.
    from maxbrod.batch.erasure import without_erased  # noqa: PLC0415

    for data, headers in pieces:
        yield without_erased(data, headers, erased)


def _in_place(stored: Slice, pieces: Iterator[Batches]) -> Iterator[Batches]:
    """Batches up to the first misplaced one. No checksum of a batch covers its base offset."""
    reached = stored.base_offset
    for data, headers in pieces:
        ends = headers.last_offset + 1
        misplaced = (np.diff(ends, prepend=reached) <= 0) | (ends > stored.end_offset)
        if misplaced.any():
            first = int(misplaced.argmax())
            if first:
                yield data, headers.take(slice(first))
            raise CorruptDataError(f"a batch says that it ends with offset {int(ends[first]) - 1}")
        if len(headers):
            reached = int(ends[-1])
        yield data, headers


def read_records(
    storage: Storage, stored: Slice, *, columns: Sequence[str] | None = None, skipped: Skipped | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a slice that an application may see. `skipped` counts aborted records and markers."""
    if stored.details is None:
        for data, headers in read_logs(storage, stored):
            yield from decode_committed(data, headers, stored.aborted, columns=columns, skipped=skipped)
        return
    yield from _sound(storage, stored, read_foreign(storage, stored.details, columns=columns), _cut_records)


def _sound(
    storage: Storage, stored: Slice, pieces: Iterator[Piece], cut: Callable[[Piece, int | None], tuple[Piece, int]]
) -> Iterator[Piece]:
    """The pieces of a slice up to `sound_end`. `cut` returns the part of a piece below an offset, and its end."""
    reached, sound_end = stored.base_offset, stored.sound_end
    try:
        for piece in pieces:
            below, end = cut(piece, sound_end)
            if end > reached or sound_end is None:
                reached = max(end, reached)
                yield below
            if sound_end is not None and end >= sound_end:
                return
    except (CorruptDataError, ObjectNotFoundError) as error:
        if sound_end is None or reached < sound_end:
            # Spark reports the first error of a chain, and this one includes the other.
            raise _lost(storage, stored, reached, error) from None


def _cut_batches(piece: Batches, end: int | None) -> tuple[Batches, int]:
    data, headers = piece
    if end is not None:
        headers = headers.take(slice(int(np.count_nonzero(headers.last_offset < end))))
    return (data, headers), int(headers.last_offset[-1]) + 1 if len(headers) else 0


def _cut_records(records: pa.RecordBatch, end: int | None) -> tuple[pa.RecordBatch, int]:
    if "offset" not in records.schema.names:
        return records, 0
    offsets = number_column(records.column("offset"))
    count = len(offsets) if end is None else int(np.searchsorted(offsets, end))
    return records.slice(0, count), int(offsets[count - 1]) + 1 if count else 0


def _lost(storage: Storage, stored: Slice, reached: int, error: MaxbrodError) -> CorruptDataError:
    """The same error, with all offsets that are lost."""
    missing = isinstance(error, ObjectNotFoundError)
    lost = f"offsets {reached} to {stored.end_offset}" if reached < stored.end_offset else "what was written"
    return CorruptDataError(
        f"{lost} cannot be read: {'the object is not there' if missing else error.message}",
        operation=error.operation,
        object_name=error.object_name or storage.name_of(stored.path),
        offset=min(reached, stored.end_offset),
        position=error.position,
        hint=error.hint or (native.HINT_MISSING if missing else native.HINT),
    )


def read_foreign(storage: Storage, details: str, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a segment that `foreign.describe` has described, without transaction markers."""
    name, segment = described(details)
    layout = layout_of(name)
    if not segment.details.get(UNCOMMITTED):
        yield from layout.read(storage, segment, columns=columns)
        return
    names = project(None if columns is None else list(columns)).names
    for batch in layout.read(storage, segment, columns=project([*names, "control"]).names):
        records = batch.filter(pc.invert(batch.column("control"))).select(names)
        if records.num_rows:
            yield records


_DECODED_BYTES: Final = 2 << 20
"""The stored bytes of a log that are decoded at once. Decompressed they may be ten times as much and more."""


class Counts(NamedTuple):
    control: int
    aborted: int


class Skipped:
    """The number of records that no application sees, by place: of control batches, and of aborted transactions."""

    def __init__(self) -> None:
        self._offsets, self._records, self._control = (np.empty(0, np.int64) for _ in range(3))

    def note(self, headers: BatchHeaders) -> None:
        """Adds batches that were left out. They follow those that are noted already."""
        self._offsets = np.concatenate([self._offsets, headers["base_offset"]])
        self._records = np.concatenate([self._records, headers["count"].clip(min=0)])
        self._control = np.concatenate([self._control, headers.control])

    def pop_before(self, end: int) -> Counts:
        """The counts of batches that begin before an offset, which are then removed."""
        count = int(np.searchsorted(self._offsets, end))
        records, control = self._records[:count], self._control[:count].astype(np.bool_)
        counts = Counts(control=int(records[control].sum()), aborted=int(records[~control].sum()))
        self._offsets, self._records, self._control = (
            column[count:] for column in (self._offsets, self._records, self._control)
        )
        return counts


@runtime_checkable
class Tallied(Protocol):
    """Records of the offsets [start, end). After they were iterated, `skipped` has the counts of those left out."""

    skipped: Skipped

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


def decode_committed(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    columns: Sequence[str] | None = None,
    skipped: Skipped | None = None,
) -> Iterator[pa.RecordBatch]:
    """The visible records of some batches, in portions that fit into memory when decompressed."""
    visible = committed_batches(headers, aborted)
    if skipped is not None and not visible.all():
        skipped.note(headers.take(~visible))
    yield from decode_portions(data, headers.take(visible), columns=columns)


def decode_portions(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    *,
    columns: Sequence[str] | None = None,
    object_name: str | None = None,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """All records of these batches, in such portions. BatchLimitError: one unpacks to more than `bytes_max`."""
    from maxbrod.batch.decode import decode_in_parts  # noqa: PLC0415 - numba: only to decode records

    portion = np.cumsum(headers.size) // _DECODED_BYTES
    names = None if columns is None else list(columns)
    for rows in np.split(np.arange(len(headers)), np.flatnonzero(np.diff(portion)) + 1):
        if rows.size:
            yield from decode_in_parts(
                data, headers.take(rows), columns=names, bytes_max=bytes_max, object_name=object_name
            )
