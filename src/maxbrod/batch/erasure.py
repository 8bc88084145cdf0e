"""Finds records that were erased, and writes batches without them. Loads numba.

A batch is written as a broker's log cleaner would: the other records, their offsets and the fields of its header stay.
Offsets at both ends of a batch that have no record any more are covered by a batch without records, so that batches
cover the same offsets as before and nothing else about a slice changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch import hmac_kernels
from maxbrod.batch.columns import binary_column, number_array, number_column
from maxbrod.batch.decode import decode, decode_in_parts
from maxbrod.batch.encode import encode
from maxbrod.batch.erased import HASH_BYTES, ErasedPart, ErasedRecords, Ranges
from maxbrod.batch.fillers import emptied
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, walk
from maxbrod.batch.kernels import sealed

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_PORTION_BYTES: Final = 2 << 20
_ONE_BATCH: Final = (1 << 31) - 1
_INNER, _OUTER = 0x36, 0x5C


def find_erased(data: NDArray[np.uint8], headers: BatchHeaders, erased: ErasedRecords) -> NDArray[np.int64]:
    """Return the offsets of records in these batches that were erased, in order. Aborted records count."""
    found = [_find(data, headers, part) for part in erased.parts]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def _find(data: NDArray[np.uint8], headers: BatchHeaders, part: ErasedPart) -> NDArray[np.int64]:
    meant, epochs = ~headers.control & (headers["count"] != 0), headers["leader_epoch"]
    by_offset, by_key = (meant & _meets(headers, ranges) for ranges in (part.offsets, part.unseen))
    if part.offsets_epoch is not None:
        by_offset &= epochs == part.offsets_epoch
    if part.epoch >= 0:
        by_key &= epochs <= part.epoch
    found = [
        offsets[_within(offsets, part.offsets)]
        for records in _decoded(data, headers.take(by_offset), ["offset"])
        for offsets in [number_column(records.column("offset"))]
    ]
    if part.hashes:
        for records in _decoded(data, headers.take(by_key), ["offset", "key"]):
            offsets = number_column(records.column("offset"))
            found.append(offsets[_within(offsets, part.unseen) & _has_key(records.column("key"), part)])
    return np.concatenate([np.empty(0, np.int64), *found])


def _decoded(data: NDArray[np.uint8], headers: BatchHeaders, columns: list[str]) -> Iterator[pa.RecordBatch]:
    portion = np.cumsum(headers.size) // _PORTION_BYTES
    for rows in np.split(np.arange(len(headers)), np.flatnonzero(np.diff(portion)) + 1):
        if rows.size:
            yield from decode_in_parts(data, headers.take(rows), columns=columns)


def _meets(headers: BatchHeaders, ranges: Ranges) -> NDArray[np.bool_]:
    """Batches that have offsets in one of the ranges."""
    if not ranges:
        return np.zeros(len(headers), np.bool_)
    firsts, ends = np.array(ranges, np.int64).T
    at = np.searchsorted(ends, headers["base_offset"], side="right")
    meets: NDArray[np.bool_] = (at < len(ends)) & (firsts[np.minimum(at, len(ends) - 1)] <= headers.last_offset)
    # The offset in the header of an old compressed message is that of its last record.
    meets |= headers["magic"] != NEWEST_MAGIC
    return meets


def _within(offsets: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    if not ranges:
        return np.zeros(len(offsets), np.bool_)
    firsts, ends = np.array(ranges, np.int64).T
    at = np.searchsorted(ends, offsets, side="right")
    within: NDArray[np.bool_] = (at < len(ends)) & (firsts[np.minimum(at, len(ends) - 1)] <= offsets)
    return within


def _has_key(keys: pa.Array, part: ErasedPart) -> NDArray[np.bool_]:
    column = binary_column(keys)
    words = np.zeros((len(keys), HASH_BYTES // 4), np.uint32)
    inner, outer = _states(part.salt)
    hmac_kernels.hash_keys(sealed(column.ends), sealed(column.data), sealed(column.valid), inner, outer, words)
    # Numpy compares strings of bytes as a whole, but cuts zeros off their ends: void values are compared as they are.
    kind = np.dtype((np.void, HASH_BYTES))
    hashes = np.ascontiguousarray(words.astype(">u4")).view(kind).reshape(-1)
    known = np.frombuffer(part.hashes, kind)
    # Eight bytes decide for nearly all records; the rest is compared only where these are equal.
    heads, sought = (np.ascontiguousarray(every.view(np.uint64).reshape(-1, 4)[:, 0]) for every in (hashes, known))
    maybe = np.flatnonzero(column.valid & np.isin(heads, sought, kind="sort"))
    found = np.zeros(len(keys), np.bool_)
    every = set(known.tolist())
    found[maybe] = [value in every for value in hashes[maybe].tolist()]
    return found


@lru_cache(maxsize=8)
def _states(salt: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The states of SHA-256 after the salt, inner and outer, as HMAC pads it."""
    assert len(salt) <= hmac_kernels.BLOCK_BYTES, "a salt fits into a block"  # noqa: S101 - our own mistake
    padded = salt.ljust(hmac_kernels.BLOCK_BYTES, b"\0")
    found = []
    for pad in (_INNER, _OUTER):
        state = hmac_kernels.INITIAL.copy()
        block = np.frombuffer(bytes(byte ^ pad for byte in padded), np.uint8)
        hmac_kernels.compress(state, block, np.empty(64, np.uint32))
        found.append(sealed(state))
    return found[0], found[1]


def without_erased(
    data: NDArray[np.uint8], headers: BatchHeaders, erased: ErasedRecords
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """Return the batches without records that were erased; the same ones if there are none."""
    return without_offsets(data, headers, find_erased(data, headers, erased))


def without_offsets(
    data: NDArray[np.uint8], headers: BatchHeaders, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """Return the batches without the records at these offsets, which are ordered."""
    if not len(offsets) or not len(headers):
        return data, headers
    last = headers.last_offset
    # An old compressed message does not say where it begins: behind the one before it.
    base = np.where(headers["magic"] == NEWEST_MAGIC, headers["base_offset"], np.concatenate([[0], last[:-1] + 1]))
    holds = np.searchsorted(offsets, base) < np.searchsorted(offsets, last, side="right")
    pieces: list[NDArray[np.uint8]] = []
    start = int(headers.position[0])
    for row in np.flatnonzero(holds).tolist():
        position, size = int(headers.position[row]), int(headers.size[row])
        pieces.append(data[start:position])
        pieces += _rewritten(data, headers.take(slice(row, row + 1)), offsets)
        start = position + size
    pieces.append(data[start : int(headers.position[-1] + headers.size[-1])])
    whole = np.concatenate(pieces)
    return whole, walk(whole, check_crc=False)


def _rewritten(data: NDArray[np.uint8], header: BatchHeaders, offsets: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """One batch without the records at these offsets."""
    records = decode(data, header)
    mine: NDArray[np.int64] = number_column(records.column("offset"))
    at = np.minimum(np.searchsorted(offsets, mine), len(offsets) - 1)
    keep = offsets[at] != mine
    old = bool(header["magic"][0] != NEWEST_MAGIC)
    first = int(mine[0]) if old and len(mine) else int(header["base_offset"][0])
    last, epoch = int(header.last_offset[0]), int(header["leader_epoch"][0])
    if not keep.any():
        return [emptied(first, leader_epoch=epoch, last_offset=last)]
    kept = mine[keep]
    pieces: list[Any] = []
    if kept[0] > first:
        pieces.append(emptied(first, leader_epoch=epoch, last_offset=int(kept[0]) - 1))
    pieces.append(encode(records.filter(number_array(keep)), codec=header.codec_at(0), batch_bytes_max=_ONE_BATCH))
    if kept[-1] < last:
        pieces.append(emptied(int(kept[-1]) + 1, leader_epoch=epoch, last_offset=last))
    return pieces


def epochs_of(headers: BatchHeaders, offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the leader epochs of the records at these offsets of the batches."""
    epochs: NDArray[np.int32] = headers["leader_epoch"][np.searchsorted(headers.last_offset, offsets)]
    return epochs


def as_ranges(offsets: NDArray[np.int64]) -> Ranges:
    """Return ordered offsets as ranges."""
    if not len(offsets):
        return ()
    edges = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts, lasts = offsets[np.append(0, edges)], offsets[np.append(edges - 1, len(offsets) - 1)]
    return tuple(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
