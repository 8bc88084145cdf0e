"""The batches of a slice, whatever layout it stands in: our own as they are, records of others made into batches."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from maxbrod.layouts.foreign import ForeignSegment
from maxbrod.layouts.kafka import reading as native
from maxbrod.layouts.registry import layout_of
from maxbrod.model import Codec, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage

_CODEC: Final = Codec.LZ4
"""Other layouts do not keep the codec of their source."""


def read_logs(
    storage: Storage, stored: Slice, *, check_crc: bool = True
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The log of a slice in pieces of whole batches, each with its headers. The same slice gives the same bytes."""
    if stored.details is None:
        yield from native.read_logs(storage, stored, check_crc=check_crc)
        return
    # Only here are records looked at one by one.
    from maxbrod.batch.encode import encode  # noqa: PLC0415
    from maxbrod.batch.headers import walk  # noqa: PLC0415

    for records in read_foreign(storage, stored.details):
        data = encode(records, codec=_CODEC)
        yield data, walk(data, check_crc=False)


def read_foreign(storage: Storage, details: str, *, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The records of a segment that `describe` has described."""
    layout, segment = segment_of(details)
    return layout_of(layout).read(storage, segment, columns=columns)


def describe(layout: str, segment: ForeignSegment) -> str:
    """All that is needed to read a segment of another layout, as text."""
    return json.dumps({"layout": layout, "segment": asdict(segment)}, sort_keys=True)


def segment_of(details: str) -> tuple[str, ForeignSegment]:
    """The inverse: the layout's name, and the segment."""
    found = json.loads(details)
    fields: dict[str, Any] = found["segment"]
    return str(found["layout"]), ForeignSegment(**{**fields, "where": TopicPartition(**fields["where"])})
