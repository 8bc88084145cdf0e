"""Puts batches together from headers and records: lengths and checksums are made here. Loads no numba."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.crc import crc32c
from maxbrod.batch.headers import CRC_START, HEADER_BYTES, LOG_OVERHEAD_BYTES
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_LENGTH_MAX: Final = (1 << 31) - 1


def join(headers: NDArray[Any], bodies: Sequence[bytes | NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Batches from their headers and their (compressed) records."""
    ends = np.cumsum([0, *(HEADER_BYTES + len(body) for body in bodies)], dtype=np.int64)
    out = np.empty(int(ends[-1]), np.uint8)
    for (start, end), body in zip(pairs(ends), bodies, strict=True):
        out[start + HEADER_BYTES : end] = np.frombuffer(body, np.uint8)
    return seal(out, ends, headers)


def seal(out: NDArray[np.uint8], positions: NDArray[np.int64], headers: NDArray[Any]) -> NDArray[np.uint8]:
    """Fill in each batch's header: its length, and last its CRC."""
    lengths = np.diff(positions) - LOG_OVERHEAD_BYTES
    if lengths.max(initial=0) > _LENGTH_MAX:
        raise UsageError("a batch would have more than 2 GiB", hint="choose a smaller batch_bytes_max")
    headers["batch_length"] = lengths
    places = positions[:-1, None] + np.arange(HEADER_BYTES)
    out[places] = headers.view(np.uint8).reshape(-1, HEADER_BYTES)
    headers["crc"] = [crc32c(out[start + CRC_START : end]) for start, end in pairs(positions)]
    out[places] = headers.view(np.uint8).reshape(-1, HEADER_BYTES)
    return out


def pairs(edges: NDArray[np.int64]) -> list[tuple[int, int]]:
    """From where to where each batch goes."""
    return list(pairwise(edges.tolist()))
