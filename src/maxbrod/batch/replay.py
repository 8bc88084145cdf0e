"""Prepares archived batches of one partition so that a broker accepts them from a client.

Brokers refuse control batches, transactional batches without a transaction, messages of magic 0 and 1, and batches
whose offsets have holes. Of batches with log-append time they would keep the times that the producers had sent. Most
batches have none of these: they are copied at once and their headers patched. `rewrite`, which is loaded only when
needed, rewrites the others.

Producer id, epoch and sequence stay as archived: the sender of the batches patches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import compress
from maxbrod.batch.headers import (
    ATTRIBUTE_DELETE_HORIZON,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_BYTES,
    NEWEST_MAGIC,
    BatchHeaders,
    as_bytes_array,
    header_rows,
    walk,
)
from maxbrod.batch.patch import join, patch
from maxbrod.batch.transactions import committed_batches
from maxbrod.errors import CorruptDataError, naming
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.batch.cuts import Cut
    from maxbrod.batch.provenance import Provenance
    from maxbrod.batch.schema_ids import SchemaIdMap

_DROPPED: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_DELETE_HORIZON


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversized:
    """A batch that exceeds the size limit of the target and that rewriting cannot make smaller."""

    offset: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRanges:
    """Runs of consecutive source offsets: the first offset and the number of records of each. No two are adjacent."""

    first_offset: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedBatches:
    """Batches of one buffer, the source offset of the first record of each, and the source offsets of all records."""

    data: NDArray[np.uint8]
    headers: BatchHeaders
    source_offset: NDArray[np.int64]
    ranges: SourceRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Batches in one buffer. `hole` is the number of offsets without a record before each.

    `ranges` are the source offsets of all records. In the target they are consecutive except for `hole`. `position` is
    the source offset after the last record, or the position passed in if there is none.
    """

    data: NDArray[np.uint8]
    headers: BatchHeaders
    source_offset: NDArray[np.int64]
    hole: NDArray[np.int64]
    ranges: SourceRanges
    position: int
    oversized: tuple[Oversized, ...]


def replay(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    cut: Cut,
    exact: bool,
    batch_bytes_max: int,
    codec: Codec | None = None,
    position: int = 0,
    provenance: Provenance | None = None,
    schema_ids: SchemaIdMap | None = None,
    target: str = "",
    object_name: str | None = None,
    copied: bool = True,
) -> Replayed:
    """Return the committed records of these batches (whole, checked, in order) that `cut` keeps, for a client to send.

    Pure: `buffer` does not change. With `exact` every record keeps its offset, so a batch ends where a hole begins;
    otherwise holes close. `codec` compresses batches that are archived uncompressed. `position` is the source offset
    that the target has reached, as returned by the previous call. A batch above `batch_bytes_max` is split if it had to
    be rewritten, otherwise listed in `oversized`. With `provenance` every record gets headers that name its source, and
    by `schema_ids` its schema ids are exchanged: then all batches are rewritten. Errors about ids name the partition
    `target`. Without `copied`, batches that need no rewriting stay in `buffer`, with their headers as archived: for a
    caller that copies the batches before it patches them.
    """
    data = as_bytes_array(buffer)
    with naming(object_name):
        refuse_disorder(headers)
        chosen = headers.take(committed_batches(headers, aborted) & cut.touches(headers))
        chosen.refuse_unknown_codecs()
        parts = _parts(
            data,
            chosen,
            cut,
            codec or Codec.NONE,
            batch_bytes_max,
            exact=exact,
            provenance=provenance,
            schema_ids=schema_ids,
            target=target,
        )
        ranges = _merged_ranges(parts, position)
    if copied or len(parts) > 1:
        out, new, source_offset = _merged(parts)
        new = patch(out, new, base_offset=0, leader_epoch=-1, attributes=new["attributes"] & ~np.int16(_DROPPED))
    else:
        out, new, source_offset = parts[0].data, parts[0].headers, parts[0].source_offset
    large = new.size > batch_bytes_max
    before = np.append(np.int64(position), source_offset + new["count"])[:-1]
    return Replayed(
        data=out,
        headers=new,
        source_offset=source_offset,
        hole=source_offset - before if exact else np.zeros(len(new), np.int64),
        ranges=ranges,
        position=int(ranges.first_offset[-1]) + int(ranges.count[-1]) if len(ranges.count) else position,
        oversized=tuple(
            Oversized(offset=offset, bytes=size)
            for offset, size in zip(source_offset[large].tolist(), new.size[large].tolist(), strict=True)
        ),
    )


def _parts(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    cut: Cut,
    codec: Codec,
    batch_bytes_max: int,
    *,
    exact: bool,
    provenance: Provenance | None,
    schema_ids: SchemaIdMap | None,
    target: str,
) -> list[SourcedBatches]:
    codecs = np.where(headers.codec == Codec.NONE, np.int16(codec), headers.codec)
    outside, across = cut.outside_and_across(data, headers)
    unfit = (headers["magic"] != NEWEST_MAGIC) | headers.log_append
    unfit |= headers["count"] != headers["last_offset_delta"].astype(np.int64) + 1
    changed = ~outside & (unfit | across | ~cut.whole(headers) | (provenance is not None or schema_ids is not None))
    packed = ~outside & ~changed & (codecs != headers.codec)
    parts = [_dense(data, headers.take(~outside & ~changed & ~packed))]
    if packed.any():
        rows = np.flatnonzero(packed)
        part = _pack(data, headers.take(rows), codec)
        # A batch that has become too large is rewritten too, which splits it.
        fits = (part.headers.size <= batch_bytes_max) | (part.headers["count"] == 1)
        changed[rows[~fits]] = True
        parts.append(_dense(part.data, part.headers.take(fits)))
    if changed.any():
        from maxbrod.batch.rewrite import rewrite  # noqa: PLC0415 - loads numba, which most archives do not need

        parts += rewrite(
            data,
            headers.take(changed),
            codecs[changed],
            cut=cut,
            exact=exact,
            batch_bytes_max=batch_bytes_max,
            provenance=provenance,
            schema_ids=schema_ids,
            target=target,
        )
    return parts


def _dense(data: NDArray[np.uint8], headers: BatchHeaders) -> SourcedBatches:
    """Batches without holes: their headers give all offsets."""
    offset = headers["base_offset"]
    ranges = SourceRanges(first_offset=offset, count=headers["count"].astype(np.int64))
    return SourcedBatches(data=data, headers=headers, source_offset=offset, ranges=ranges)


def _pack(data: NDArray[np.uint8], headers: BatchHeaders, codec: Codec) -> SourcedBatches:
    """Compress the records without decoding them."""
    start, end = (headers.position + HEADER_BYTES).tolist(), (headers.position + headers.size).tolist()
    bodies = [compress(codec, data[first:last]) for first, last in zip(start, end, strict=True)]
    fields = {**headers.fields, "attributes": headers["attributes"] | np.int16(codec)}
    packed = join(header_rows(fields), bodies)
    return _dense(packed, walk(packed, check_crc=False))


def _merged(parts: Sequence[SourcedBatches]) -> tuple[NDArray[np.uint8], BatchHeaders, NDArray[np.int64]]:
    """Copy all batches into one buffer, sorted by source offset. Adjacent batches are copied at once."""
    origin = np.repeat(np.arange(len(parts)), [len(part.headers) for part in parts])
    source_offset = np.concatenate([part.source_offset for part in parts])
    order = np.argsort(source_offset, kind="stable")
    origin = origin[order]
    position = np.concatenate([part.headers.position for part in parts])[order]
    size = np.concatenate([part.headers.size for part in parts])[order]
    begins = np.ones(len(order) + 1, np.bool_)
    begins[1:-1] = (origin[1:] != origin[:-1]) | (position[1:] != (position + size)[:-1])
    edges = np.flatnonzero(begins)
    first, last = edges[:-1], edges[1:] - 1
    runs = zip(origin[first].tolist(), position[first].tolist(), (position + size)[last].tolist(), strict=True)
    data = np.concatenate([np.empty(0, np.uint8), *(parts[part].data[start:end] for part, start, end in runs)])
    names = parts[0].headers.fields
    headers = BatchHeaders(
        position=np.cumsum(size) - size,
        size=size,
        fields={name: np.concatenate([part.headers[name] for part in parts])[order] for name in names},
        end=data.size,
    )
    return data, headers, source_offset[order]


def _merged_ranges(parts: Sequence[SourcedBatches], position: int) -> SourceRanges:
    """The ranges of all parts, with adjacent ones joined. CorruptDataError for an offset below `position` or twice."""
    first = np.concatenate([part.ranges.first_offset for part in parts])
    order = np.argsort(first, kind="stable")
    first = first[order]
    count = np.concatenate([part.ranges.count for part in parts])[order]
    before = np.append(np.int64(position), first + count)[:-1]
    doubled = np.flatnonzero(first < before)
    if doubled.size:
        row = int(doubled[0])
        raise CorruptDataError(
            f"records have an offset where {int(before[row])} or more was expected",
            offset=int(first[row]),
            hint="the archive holds these offsets twice, or its batches are out of order; check it",
        )
    begins = first != before
    begins[:1] = True
    rows = np.flatnonzero(begins)
    total = np.add.reduceat(count, rows) if rows.size else np.empty(0, np.int64)
    return SourceRanges(first_offset=first[rows], count=total)


def refuse_disorder(headers: BatchHeaders) -> None:
    wrong = np.flatnonzero(headers["base_offset"][1:] <= headers.last_offset[:-1])
    if wrong.size:
        row = int(wrong[0]) + 1
        raise CorruptDataError(
            f"a batch follows one that ends at offset {int(headers.last_offset[row - 1])}",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint="the archive holds these offsets twice, or its batches are out of order; check it",
        )
