"""Writes batch headers: patches fields of existing batches in place, and seals new batches. Loads no numba.

A patch reads no record. The new CRC follows from the change alone (see `crc`), so a batch that was damaged before is
still detectably damaged: patching never hides corruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.crc import crc32c, crc32c_change
from maxbrod.batch.headers import (
    ATTRIBUTE_CODEC,
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NEWEST_MAGIC,
    BatchHeaders,
    header_rows,
)
from maxbrod.errors import UnsupportedFormatError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LENGTH_MAX: Final = (1 << 31) - 1
PATCHABLE: Final = frozenset(
    {
        "base_offset",
        "leader_epoch",
        "attributes",
        "max_timestamp",
        "producer_id",
        "producer_epoch",
        "base_sequence",
    }
)
"""Fields that can change without changing the records."""


def patch(data: NDArray[np.uint8], headers: BatchHeaders, **changes: NDArray[Any] | int) -> BatchHeaders:
    """Write `changes` (a value, or one a batch, for each field) into the batches of `data`; return the new headers."""
    unknown = sorted(set(changes) - PATCHABLE)
    if unknown:
        raise ValueError(f"cannot patch {', '.join(unknown)}: the records depend on it")
    _refuse_legacy(headers)
    if not len(headers):
        return headers
    fields = dict(headers.fields)
    for name, value in changes.items():
        fields[name] = np.broadcast_to(np.asarray(value, fields[name].dtype), len(headers)).copy()
        if not (fields[name] == value).all():
            raise ValueError(f"a value does not fit the field {name}")
    if ((fields["attributes"] ^ headers["attributes"]) & ATTRIBUTE_CODEC).any():
        raise ValueError("cannot patch the codec: the records depend on it")
    old, new = (header_rows(columns) for columns in (headers.fields, fields))
    change = _as_bytes(old)[:, CRC_START:] ^ _as_bytes(new)[:, CRC_START:]
    new["crc"] = fields["crc"] = headers["crc"] ^ crc32c_change(change, headers.size - HEADER_BYTES)
    data[headers.position[:, None] + np.arange(HEADER_BYTES)] = _as_bytes(new)
    return BatchHeaders(position=headers.position, size=headers.size, fields=fields, end=headers.end, tail=headers.tail)


def join(headers: NDArray[Any], bodies: Sequence[bytes | NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Build batches from their headers and their (compressed) records."""
    ends = np.cumsum([0, *(HEADER_BYTES + len(body) for body in bodies)], dtype=np.int64)
    out = np.empty(int(ends[-1]), np.uint8)
    for (start, end), body in zip(pairs(ends), bodies, strict=True):
        out[start + HEADER_BYTES : end] = np.frombuffer(body, np.uint8)
    return seal(out, ends, headers)


def seal(out: NDArray[np.uint8], positions: NDArray[np.int64], headers: NDArray[Any]) -> NDArray[np.uint8]:
    """Write the header of each batch: its length, and last its CRC."""
    lengths = np.diff(positions) - LOG_OVERHEAD_BYTES
    if lengths.max(initial=0) > _LENGTH_MAX:
        raise UsageError("a batch would exceed 2 GiB", hint="choose a smaller batch_bytes_max")
    headers["batch_length"] = lengths
    places = positions[:-1, None] + np.arange(HEADER_BYTES)
    out[places] = _as_bytes(headers)
    headers["crc"] = [crc32c(out[start + CRC_START : end]) for start, end in pairs(positions)]
    out[places] = _as_bytes(headers)
    return out


def pairs(edges: NDArray[np.int64]) -> list[tuple[int, int]]:
    """The start and end of each batch."""
    return list(pairwise(edges.tolist()))


def _as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    return rows.view(np.uint8).reshape(-1, HEADER_BYTES)


def _refuse_legacy(headers: BatchHeaders) -> None:
    old = headers["magic"] != NEWEST_MAGIC
    if old.any():
        row = int(np.flatnonzero(old)[0])
        raise UnsupportedFormatError(
            f"a message of magic {int(headers['magic'][row])} has no producer fields to patch",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint="decode it and encode it again",
        )
