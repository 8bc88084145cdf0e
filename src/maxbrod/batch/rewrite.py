"""Rewrites batches whose records must change before a broker accepts them: decode, cut, renumber, encode.

Batch boundaries stay, except where a hole must be between records or a batch is too large. Messages of magic 0 and 1,
most of which hold one record, are combined into batches of magic 2.

For topics that get another number of partitions, no batch stays as it was: `kept_records` decodes, and `encode_shared`
encodes records of several partitions. Only the records and the codec of a batch are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import BATCH_BYTES_MAX, encode
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, as_bytes_array, walk
from maxbrod.batch.provenance import Provenance, passed, with_provenance
from maxbrod.batch.replay import SourcedBatches, SourceRanges, refuse_disorder
from maxbrod.batch.schema_ids import SchemaIdMap, with_mapped_ids
from maxbrod.batch.transactions import committed_batches
from maxbrod.errors import naming
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.batch.cuts import Cut


RECORD_COLUMNS: Final = ["offset", "timestamp_ms", "key", "value", "headers"]
"""The other columns get defaults: no leader epoch, no producer, no transaction, create time."""
_CHUNK_BYTES: Final = 1 << 20
"""The archived bytes that are decoded at once. The columns of more would not fit a worker's memory."""
_UNBOUNDED: Final = (1 << 31) - 1

CONTENT_COLUMNS: Final = [name for name in RECORD_COLUMNS if name != "offset"]
"""The columns of a record that do not depend on its place."""
PORTION_BYTES: Final = 256 << 10
"""The archived bytes that are decoded at once. Readers of several partitions hold this much for each."""


def rewrite(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    codecs: NDArray[np.int16],
    *,
    cut: Cut,
    exact: bool,
    batch_bytes_max: int,
    provenance: Provenance | None = None,
    schema_ids: SchemaIdMap | None = None,
    target: str = "",
) -> list[SourcedBatches]:
    """Rewrite the records that `cut` keeps as batches of `codecs` without holes, with headers of `provenance`.

    `schema_ids`: exchange their schema ids by this map. Errors about that name the partition `target`.
    """
    parts: list[SourcedBatches] = []
    for rows in _jobs(headers, codecs):
        job = headers.take(rows)
        old = bool((job["magic"] != NEWEST_MAGIC).any())
        records = decode(data, job, columns=RECORD_COLUMNS)
        # The batch that each record must stay in. Old messages have no such batch.
        batch = np.zeros(records.num_rows, np.int64) if old else np.repeat(np.arange(len(job)), job["count"])
        offset = number_column(records.column("offset"))
        keep = cut.keeps(offset, number_column(records.column("timestamp_ms")))
        if provenance is not None and provenance.left_out:
            keep &= ~passed(records.column("headers"), provenance.left_out)
        if keep.any():
            records, offset, batch = records.filter(number_array(keep)), offset[keep], batch[keep]
            records = records if schema_ids is None else with_mapped_ids(records, schema_ids, where=target)
            records = records if provenance is None else with_provenance(records, provenance)
            holes = np.flatnonzero(np.diff(offset) != 1) + 1
            starts = np.flatnonzero(np.diff(batch)) + 1
            starts = np.union1d(starts, holes) if exact else starts
            codec = Codec(int(codecs[rows[0]]))
            # Before compression. An archived batch stays whole if its compressed size allows.
            bound = batch_bytes_max if codec is Codec.NONE else BATCH_BYTES_MAX if old else _UNBOUNDED
            encoded, new = encode_dense(records, codec, starts, bound, batch_bytes_max)
            runs = np.append(0, holes)
            ranges = SourceRanges(first_offset=offset[runs], count=np.diff(np.append(runs, len(offset))))
            first = _first_rows(new)
            parts.append(SourcedBatches(data=encoded, headers=new, source_offset=offset[first], ranges=ranges))
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


def _first_rows(headers: BatchHeaders) -> NDArray[np.int64]:
    """The row of the first record of each batch."""
    count = headers["count"].astype(np.int64)
    return np.cumsum(count) - count


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecords:
    """Records in offset order, and the codec of most of their bytes."""

    records: pa.RecordBatch
    codec: Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Batches in one buffer, which the caller may patch, with the row of the first record of each."""

    data: NDArray[np.uint8]
    headers: BatchHeaders
    row: NDArray[np.int64]


def kept_records(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    cut: Cut,
    codec: Codec = Codec.NONE,
    object_name: str | None = None,
) -> Iterator[DecodedRecords]:
    """Yield the committed records of these batches that `cut` keeps, in portions that fit a worker's memory.

    `codec` is the codec reported for uncompressed batches.
    """
    data = as_bytes_array(buffer)
    with naming(object_name):
        refuse_disorder(headers)
        chosen = headers.take(committed_batches(headers, aborted) & cut.touches(headers))
        chunk = (np.cumsum(chosen.size) - chosen.size) // PORTION_BYTES
        for rows in np.split(np.arange(len(chosen)), np.flatnonzero(np.diff(chunk)) + 1):
            if not len(rows):
                continue
            job = chosen.take(rows)
            records = decode(data, job, columns=RECORD_COLUMNS)
            keep = cut.keeps(*(number_column(records.column(name)) for name in ("offset", "timestamp_ms")))
            if keep.any():
                codecs = np.where(job.codec == Codec.NONE, np.int16(codec), job.codec)
                most = Codec(int(np.bincount(codecs, weights=job.size).argmax()))
                yield DecodedRecords(records=records if keep.all() else records.filter(number_array(keep)), codec=most)


def encode_shared(
    records: pa.RecordBatch, target: NDArray[Any], *, codec: Codec, batch_bytes_max: int = BATCH_BYTES_MAX
) -> Shared:
    """Encode `records`, which are sorted by `target`, so that no batch holds records of two targets.

    Offsets are consecutive from 0. Only a batch of one record may be larger than `batch_bytes_max`.
    """
    starts = np.flatnonzero(target[1:] != target[:-1]) + 1
    bound = min(BATCH_BYTES_MAX, batch_bytes_max)
    data, headers = encode_dense(records, codec, starts, bound, batch_bytes_max)
    return Shared(data=data, headers=headers, row=_first_rows(headers))
