"""What a slice holds, whatever layout it stands in: as batches, or as the records that an application may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.headers import walk
from maxbrod.batch.transactions import committed_batches
from maxbrod.layouts.kafka import reading as native
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.travelling import segment_of
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import AbortedTransaction
    from maxbrod.storage.interface import Storage

_CODEC: Final = Codec.LZ4
"""Other layouts do not keep the codec of their source."""
_DECODED_BYTES: Final = 2 << 20
"""So much of a log is decoded at once, as it is stored: ten times as much and more when it is unpacked."""


def read_logs(
    storage: Storage,
    stored: Slice,
    *,
    check_crc: bool = True,
    request_bytes: int = native.REQUEST_BYTES,
    ahead: Executor | None = None,
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The log of a slice in pieces of whole batches, each with its headers. The same slice gives the same bytes.

    `request_bytes` and `ahead` are for slices of the native layout: see there.
    """
    if stored.details is None:
        yield from native.read_logs(storage, stored, check_crc=check_crc, request_bytes=request_bytes, ahead=ahead)
        return
    # Only here are records looked at one by one.
    from maxbrod.batch.encode import encode  # noqa: PLC0415

    for records in read_foreign(storage, stored.details):
        data = encode(records, codec=_CODEC)
        yield data, walk(data, check_crc=False)


def read_records(storage: Storage, stored: Slice, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a slice that an application may see: nothing aborted, no markers."""
    if stored.details is not None:
        yield from read_foreign(storage, stored.details, columns=columns)
        return
    for data, headers in native.read_logs(storage, stored):
        yield from decode_committed(data, headers, stored.aborted, columns=columns)


def read_foreign(storage: Storage, details: str, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a segment that `travelling.describe` has described."""
    layout, segment = segment_of(details)
    return layout_of(layout).read(storage, segment, columns=columns)


def decode_committed(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The visible records of some batches, in portions that fit into memory when they are unpacked."""
    yield from decode_portions(data, headers.take(committed_batches(headers, aborted)), columns=columns)


def decode_portions(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    *,
    columns: Sequence[str] | None = None,
    object_name: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """All records of these batches, in such portions."""
    from maxbrod.batch.decode import decode  # noqa: PLC0415 - numba: only where records are looked at

    portion = np.cumsum(headers.size) // _DECODED_BYTES
    wanted = None if columns is None else list(columns)
    for rows in np.split(np.arange(len(headers)), np.flatnonzero(np.diff(portion)) + 1):
        if rows.size:
            yield decode(data, headers.take(rows), columns=wanted, object_name=object_name)
