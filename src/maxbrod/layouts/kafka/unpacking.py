"""Decompresses batches, so that frames can compress them better. Only the codec bits, the length and the CRC change.

A batch that cannot be decompressed stays as it is: the archive keeps what the broker has.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.compression import Arena
from maxbrod.batch.crc import crc32c
from maxbrod.batch.headers import (
    ATTRIBUTE_CODEC,
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NEWEST_MAGIC,
    BatchHeaders,
    header_rows,
)
from maxbrod.errors import CorruptDataError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

GROUP_BYTES: Final = 1 << 20
"""The size that is decompressed before it is passed on: it is still in the core's cache then."""
BATCH_BYTES_MAX: Final = 64 << 20
"""A larger batch stays compressed, so that a few hostile kilobytes cannot exhaust memory."""


class Unpacker:
    """Reuses one buffer."""

    def __init__(self) -> None:
        self._arena = Arena(4 * GROUP_BYTES)

    def unpack(
        self, data: NDArray[np.uint8], headers: BatchHeaders
    ) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders, NDArray[np.int16]]]:
        """The batches, a few at a time, with the former codec of each. Each step overwrites the previous one."""
        packed = _compressed(headers)
        if not packed.any():
            yield data, headers, headers.codec
            return
        rows = packed.tolist()
        start = 0
        while start < len(headers):
            self._arena.size = 0
            ends, unpacked = [0], []
            for row in range(start, len(headers)):
                unpacked.append(rows[row] and self._append_unpacked(data, headers, row))
                if not unpacked[-1]:
                    self._arena.append(Codec.NONE, _entry(data, headers, row))
                ends.append(self._arena.size)
                if self._arena.size > GROUP_BYTES:
                    break
            group = headers.take(slice(start, start + len(unpacked)))
            yield *_sealed(self._arena, group, ends, np.array(unpacked)), group.codec
            start += len(unpacked)

    def _append_unpacked(self, data: NDArray[np.uint8], headers: BatchHeaders, row: int) -> bool:
        before = self._arena.size
        entry = _entry(data, headers, row)
        self._arena.append(Codec.NONE, entry[:HEADER_BYTES])
        try:
            self._arena.append(headers.codec_at(row), entry[HEADER_BYTES:], bytes_max=BATCH_BYTES_MAX)
        except CorruptDataError:
            self._arena.size = before
            return False
        return True


def _compressed(headers: BatchHeaders) -> NDArray[np.bool_]:
    """Which batches to decompress: not markers, and none without records."""
    current = (headers["magic"] == NEWEST_MAGIC) & ~headers.control
    mask: NDArray[np.bool_] = current & (headers.codec != Codec.NONE) & (headers.size > HEADER_BYTES)
    return mask


def _entry(data: NDArray[np.uint8], headers: BatchHeaders, row: int) -> NDArray[np.uint8]:
    position = int(headers.position[row])
    return data[position : position + int(headers.size[row])]


def _sealed(
    arena: Arena, headers: BatchHeaders, ends: list[int], unpacked: NDArray[np.bool_]
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    """The arena's batches with their new headers."""
    out = arena.data[: arena.size]
    edges = np.array(ends, np.int64)
    position, size = edges[:-1], edges[1:] - edges[:-1]
    fields: dict[str, NDArray[Any]] = dict(headers.fields)
    codec_off = headers["attributes"] & ~np.int16(ATTRIBUTE_CODEC)
    fields["attributes"] = np.where(unpacked, codec_off, headers["attributes"])
    fields["batch_length"] = (size - LOG_OVERHEAD_BYTES).astype(np.int32)
    _write_headers(out, fields, position, unpacked)
    changed = [
        crc32c(out[start + CRC_START : end]) if new else old
        for (start, end), new, old in zip(pairwise(ends), unpacked.tolist(), headers["crc"].tolist(), strict=True)
    ]
    fields["crc"] = np.array(changed, np.uint32)
    _write_headers(out, fields, position, unpacked)
    return out, BatchHeaders(position=position, size=size, fields=fields, end=out.size, tail=0)


def _write_headers(
    out: NDArray[np.uint8], fields: dict[str, NDArray[Any]], position: NDArray[np.int64], rows: NDArray[np.bool_]
) -> None:
    places = position[rows, None] + np.arange(HEADER_BYTES)
    out[places] = header_rows(fields)[rows].view(np.uint8).reshape(-1, HEADER_BYTES)
