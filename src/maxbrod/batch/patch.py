"""Rewrites header fields of batches in place, with their new CRC, without touching or reading a record.

The CRC follows from the change alone (see `crc`), so a batch that was damaged before stays detectably
damaged: patching never blesses corruption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.crc import crc32c_change
from maxbrod.batch.headers import ATTRIBUTE_CODEC, CRC_START, HEADER_BYTES, NEWEST_MAGIC, BatchHeaders, header_rows
from maxbrod.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
"""Fields that can change while the records stay as they are."""


def patch(data: NDArray[np.uint8], headers: BatchHeaders, **changes: NDArray[Any] | int) -> BatchHeaders:
    """Write `changes` (field = one value, or one a batch) into the batches of `data`; returns their new headers."""
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
    old, new = (header_rows(each) for each in (headers.fields, fields))
    change = _as_bytes(old)[:, CRC_START:] ^ _as_bytes(new)[:, CRC_START:]
    new["crc"] = fields["crc"] = headers["crc"] ^ crc32c_change(change, headers.size - HEADER_BYTES)
    data[headers.position[:, None] + np.arange(HEADER_BYTES)] = _as_bytes(new)
    return BatchHeaders(position=headers.position, size=headers.size, fields=fields, end=headers.end, tail=headers.tail)


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
