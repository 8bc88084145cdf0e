"""What a slice holds, whatever layout it stands in: as batches, or as the records that an application may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from maxbrod.batch.headers import walk
from maxbrod.batch.schema import project
from maxbrod.layouts.decoding import decode_committed
from maxbrod.layouts.foreign import UNCOMMITTED, BatchLayout
from maxbrod.layouts.kafka import reading as native
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.travelling import segment_of
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.decoding import Skipped
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage

_CODEC: Final = Codec.LZ4
"""Other layouts do not keep the codec of their source."""


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
    layout, segment = segment_of(stored.details)
    if isinstance(found := layout_of(layout), BatchLayout):
        yield from found.read_batches(storage, segment, check_crc=check_crc)
        return
    # Only here are records looked at one by one.
    from maxbrod.batch.encode import encode  # noqa: PLC0415

    for records in read_foreign(storage, stored.details):
        data = encode(records, codec=_CODEC)
        yield data, walk(data, check_crc=False)


def read_records(
    storage: Storage, stored: Slice, *, columns: Sequence[str] | None = None, skipped: Skipped | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a slice that an application may see: nothing aborted, no markers; `skipped` counts those."""
    if stored.details is not None:
        yield from read_foreign(storage, stored.details, columns=columns)
        return
    for data, headers in native.read_logs(storage, stored):
        yield from decode_committed(data, headers, stored.aborted, columns=columns, skipped=skipped)


def read_foreign(storage: Storage, details: str, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a segment that `travelling.describe` has described, without markers that stand among them."""
    name, segment = segment_of(details)
    layout = layout_of(name)
    if not segment.details.get(UNCOMMITTED):
        yield from layout.read(storage, segment, columns=columns)
        return
    wanted = project(None if columns is None else list(columns)).names
    for batch in layout.read(storage, segment, columns=project([*wanted, "control"]).names):
        records = batch.filter(pc.invert(batch.column("control"))).select(wanted)
        if records.num_rows:
            yield records
