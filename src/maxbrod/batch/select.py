"""Batches cut to a set of their records, rewritten only where needed.

A batch whose records are all kept is copied as it stands. Of the others the kept records are copied byte for
byte, packed again with their own codec, under a header that is changed only where it must be.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch import kernels
from maxbrod.batch.columns import number_array
from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX, Arena, compress
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import (
    ATTRIBUTE_DELETE_HORIZON,
    HEADER_BYTES,
    BatchHeaders,
    as_bytes_array,
    header_rows,
)
from maxbrod.batch.joining import join
from maxbrod.batch.scan import Found, scan
from maxbrod.batch.unpack import Unpacked, portions
from maxbrod.errors import UsageError, naming

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_INT64_MIN: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    dense: bool
    level: int | None
    decompressed_bytes_max: int


def select(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    keep: NDArray[np.bool_],
    *,
    dense: bool = False,
    level: int | None = None,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    object_name: str | None = None,
) -> NDArray[np.uint8]:
    """The batches of `headers` with only the records that `keep` (one value for each that `decode` gives) names.

    A batch left without records is dropped. Kept records keep their offsets, unless `dense` numbers them anew
    from their batch's base offset on, without holes, as a broker demands of a producer. `dense` also drops
    batches that were empty before, and a delete horizon, which would make a broker forget tombstones too early.
    Messages of magic 0 and 1 come out as batches of magic 2.
    """
    data = as_bytes_array(buffer)
    keep = np.asarray(keep, np.bool_)
    how = _How(dense=dense, level=level, decompressed_bytes_max=decompressed_bytes_max)
    parts: list[NDArray[np.uint8]] = []
    row = 0
    with naming(object_name):
        for old, rows in headers.generations():
            part, records = (_cut_legacy if old else _cut)(data, headers.take(rows), keep[row:], how)
            parts.append(part)
            row += records
    if row != len(keep):
        raise UsageError(f"the batches hold {row} records, but the mask is for {len(keep)}")
    return np.concatenate(parts)


def _cut(
    data: NDArray[np.uint8], headers: BatchHeaders, keep: NDArray[np.bool_], how: _How
) -> tuple[NDArray[np.uint8], int]:
    """The cut batches, and how many values of `keep` were theirs."""
    count = headers["count"].astype(np.int64)
    total = int(count.sum())
    if total > len(keep):
        raise UsageError(f"the batches hold {total} records or more, but the mask is for {len(keep)}")
    keep = keep[:total]
    batch_of = np.repeat(np.arange(len(headers)), count)
    kept = np.bincount(batch_of[keep], minlength=len(headers))
    as_is = kept == count
    if how.dense:
        as_is &= (count == headers["last_offset_delta"] + np.int64(1)) & ~headers.delete_horizon
    changed = ~as_is & (kept > 0)
    rewritten = _rewrite(data, headers.take(changed), keep[changed[batch_of]], how)
    sources = zip(as_is, changed, headers.position.tolist(), headers.size.tolist(), strict=True)
    parts = [
        data[start : start + size] if whole else next(rewritten) for whole, new, start, size in sources if whole or new
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8), total


def _rewrite(
    data: NDArray[np.uint8], headers: BatchHeaders, keep: NDArray[np.bool_], how: _How
) -> Iterator[NDArray[np.uint8]]:
    done = 0
    for portion, unpacked in portions(data, headers, Arena(0), bytes_max=how.decompressed_bytes_max):
        count = portion["count"].astype(np.int64)
        mask = keep[done : done + int(count.sum())]
        done += len(mask)
        found = Found(len(mask))
        scan(data, portion, unpacked, found)
        rows = np.cumsum(count) - count
        bodies = [_body(data, portion, unpacked, batch, mask[row:], how) for batch, row in enumerate(rows.tolist())]
        joined = join(_new_headers(portion, mask, found["timestamp"], rows, dense=how.dense), bodies)
        edges = np.cumsum([0, *(HEADER_BYTES + len(body) for body in bodies)]).tolist()
        yield from (joined[start:end] for start, end in pairwise(edges))


def _body(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    unpacked: Unpacked,
    batch: int,
    keep: NDArray[np.bool_],
    how: _How,
) -> bytes:
    source = kernels.sealed(unpacked.source(data, batch))
    start, end = int(unpacked.start[batch]), int(unpacked.end[batch])
    out = np.empty(end - start, np.uint8)
    size = kernels.cut(source, start, int(headers["count"][batch]), keep, how.dense, out)
    return compress(headers.codec_at(batch), out[:size], how.level)


def _new_headers(
    headers: BatchHeaders,
    keep: NDArray[np.bool_],
    timestamp: NDArray[np.int64],
    rows: NDArray[np.int64],
    *,
    dense: bool,
) -> NDArray[Any]:
    fields = dict(headers.fields)
    fields["count"] = np.add.reduceat(keep, rows, dtype=np.int32)
    newest = np.maximum.reduceat(np.where(keep, timestamp, _INT64_MIN), rows)
    fields["max_timestamp"] = np.where(headers.log_append, headers["max_timestamp"], newest)
    if dense:
        fields["last_offset_delta"] = fields["count"] - np.int32(1)
        fields["attributes"] = headers["attributes"] & ~np.int16(ATTRIBUTE_DELETE_HORIZON)
    return header_rows(fields)


def _cut_legacy(
    data: NDArray[np.uint8], headers: BatchHeaders, keep: NDArray[np.bool_], how: _How
) -> tuple[NDArray[np.uint8], int]:
    records = decode(data, headers, decompressed_bytes_max=how.decompressed_bytes_max)
    count = records.num_rows
    if len(keep) < count:
        raise UsageError(f"the messages hold {count} records or more, but the mask is for {len(keep)}")
    records = records.filter(number_array(keep[:count]))
    if how.dense and records.num_rows:
        offsets = records.column("offset")[0].as_py() + np.arange(records.num_rows, dtype=np.int64)
        records = records.set_column(0, records.schema.field(0), number_array(offsets))
    codec = headers.codec_at(int(np.argmax(headers.codec)))
    return encode(records, codec=codec, level=how.level), count
