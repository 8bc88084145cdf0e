"""Rewrites batches whose records must change before a broker accepts them: decode, cut, renumber, encode.

Batch boundaries stay, except where a hole must be between records or a batch is too large. Messages of magic 0 and 1,
most of which hold one record, are combined into batches of magic 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import BATCH_BYTES_MAX, encode
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, walk
from maxbrod.batch.provenance import Provenance, passed, with_provenance
from maxbrod.batch.replay import SourcedBatches, SourceRanges
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.cuts import Cut

RECORD_COLUMNS: Final = ["offset", "timestamp_ms", "key", "value", "headers"]
"""The other columns get defaults: no leader epoch, no producer, no transaction, create time."""
_CHUNK_BYTES: Final = 1 << 20
"""The archived bytes that are decoded at once. The columns of more would not fit a worker's memory."""
_UNBOUNDED: Final = (1 << 31) - 1


def rewrite(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    codecs: NDArray[np.int16],
    *,
    cut: Cut,
    exact: bool,
    batch_bytes_max: int,
    provenance: Provenance | None = None,
) -> list[SourcedBatches]:
    """Rewrite the records that `cut` keeps as batches of `codecs` without holes, with headers of `provenance`."""
    parts: list[SourcedBatches] = []
    for rows in _jobs(headers, codecs):
        job = headers.take(rows)
        records, batch = _decoded(data, job)
        offset = number_column(records.column("offset"))
        keep = cut.keeps(offset, number_column(records.column("timestamp_ms")))
        if provenance is not None and provenance.left_out:
            keep &= ~passed(records.column("headers"), provenance.left_out)
        if keep.any():
            records, offset, batch = records.filter(number_array(keep)), offset[keep], batch[keep]
            records = records if provenance is None else with_provenance(records, provenance)
            holes = np.flatnonzero(np.diff(offset) != 1) + 1
            starts = np.flatnonzero(np.diff(batch)) + 1
            starts = np.union1d(starts, holes) if exact else starts
            codec = Codec(int(codecs[rows[0]]))
            bound = batch_bytes_max if codec is Codec.NONE else _bound(job)
            encoded, new = encode_dense(records, codec, starts, bound, batch_bytes_max)
            parts.append(_part(encoded, new, offset, np.append(0, holes)))
    return parts


def _jobs(headers: BatchHeaders, codecs: NDArray[np.int16]) -> Iterator[NDArray[np.int64]]:
    """Groups of rows that are rewritten together: of one codec and bounded size.

    Old messages are combined into batches, so only adjacent ones may be in one group, or their order would be lost.
    """
    chunk = (np.cumsum(headers.size) - headers.size) // _CHUNK_BYTES
    kind = chunk * (max(Codec) + 1) + codecs
    old = headers["magic"] != NEWEST_MAGIC
    apart = headers.position[1:] != (headers.position + headers.size)[:-1]
    begins = np.append(True, (kind[1:] != kind[:-1]) | (old[1:] != old[:-1]) | apart)
    group = np.where(old, -np.cumsum(begins), kind)
    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order])) + 1
    yield from np.split(order, edges)


def _decoded(data: NDArray[np.uint8], headers: BatchHeaders) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """The records, and for each the batch that it must stay in. Old messages have no such batch."""
    records = decode(data, headers, columns=RECORD_COLUMNS)
    if (headers["magic"] != NEWEST_MAGIC).any():
        return records, np.zeros(records.num_rows, np.int64)
    return records, np.repeat(np.arange(len(headers)), headers["count"])


def _bound(headers: BatchHeaders) -> int:
    """The size limit of a batch before compression. An archived batch stays whole if its compressed size allows."""
    return BATCH_BYTES_MAX if (headers["magic"] != NEWEST_MAGIC).any() else _UNBOUNDED


def encode_dense(
    records: pa.RecordBatch, codec: Codec, starts: NDArray[np.int64], bound: int, batch_bytes_max: int
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """Encode with consecutive offsets. Batches that are too large when compressed are split until each part fits."""
    rows = np.arange(records.num_rows, dtype=np.int64)
    dense = records.set_column(0, records.schema.field(0), number_array(rows))
    while True:
        encoded = encode(dense, codec=codec, batch_bytes_max=bound, starts=starts)
        headers = walk(encoded, check_crc=False)
        large = np.flatnonzero((headers.size > batch_bytes_max) & (headers["count"] > 1))
        if not large.size:
            return encoded, headers
        edges = np.append(0, np.cumsum(headers["count"], dtype=np.int64))
        parts = -(-headers.size // batch_bytes_max)
        new = [np.linspace(edges[row], edges[row + 1], parts[row] + 1, dtype=np.int64)[:-1] for row in large.tolist()]
        starts = np.union1d(starts, np.concatenate(new))


def _part(
    encoded: NDArray[np.uint8], headers: BatchHeaders, offset: NDArray[np.int64], runs: NDArray[np.int64]
) -> SourcedBatches:
    count = headers["count"].astype(np.int64)
    first = np.cumsum(count) - count
    return SourcedBatches(
        data=encoded,
        headers=headers,
        source_offset=offset[first],
        ranges=SourceRanges(first_offset=offset[runs], count=np.diff(np.append(runs, len(offset)))),
    )
