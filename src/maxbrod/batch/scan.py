"""Finds every part of every record of unpacked batches, and checks all of it, in one compiled pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch import kernels
from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.batch.unpack import Unpacked

_RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, two lengths, header count: a byte each

_ROW_ARRAYS: Final[dict[str, Any]] = {
    "offset": np.int64,
    "timestamp": np.int64,
    "key_at": np.int64,
    "key_valid": np.bool_,
    "value_at": np.int64,
    "value_valid": np.bool_,
    "header_at": np.int64,
}
_END_ARRAYS: Final = ("key_ends", "value_ends", "header_ends")


class Found:
    """Where each part of each record stands. Grows only for records whose bytes have been seen to be there."""

    __slots__ = ("_arrays", "header_key_bytes", "header_value_bytes", "rows")

    def __init__(self, rows_expected: int) -> None:
        self.rows = 0
        self.header_key_bytes = 0
        self.header_value_bytes = 0
        self._arrays: dict[str, NDArray[Any]] = {
            **{name: np.empty(rows_expected, kind) for name, kind in _ROW_ARRAYS.items()},
            **{name: np.zeros(rows_expected + 1, np.int32) for name in _END_ARRAYS},
        }

    def __getitem__(self, name: str) -> NDArray[Any]:
        """One column of all rows so far; an `ends` column has one value more, and begins with 0."""
        return self.since(name, 0)

    def since(self, name: str, row: int) -> NDArray[Any]:
        return self._arrays[name][row : self.rows + (name in _END_ARRAYS)]

    def add_rows(self, count: int) -> int:
        """Make room for `count` rows more and return the first one's number."""
        first = self.rows
        self.rows += count
        for name, array in self._arrays.items():
            needed = self.rows + (name in _END_ARRAYS)
            if len(array) < needed:
                grown = np.empty(max(needed, 2 * len(array)), array.dtype)
                grown[: len(array)] = array
                self._arrays[name] = grown
        return first


def scan(data: NDArray[np.uint8], headers: BatchHeaders, unpacked: Unpacked, found: Found) -> int:
    """Add the records of these batches to `found` and return the first one's row.

    CorruptDataError names the batch's offset, its position and the record in it.
    """
    _check_counts(headers, unpacked)
    first = found.add_rows(int(headers["count"].sum(dtype=np.int64)))
    log_append = headers.log_append
    status, batch, record, key_bytes, value_bytes = kernels.scan(
        *sources(data, unpacked),
        unpacked.start,
        unpacked.end,
        headers["base_offset"],
        headers["last_offset_delta"],
        np.where(log_append, headers["max_timestamp"], headers["base_timestamp"]),
        log_append,
        headers["count"],
        *(found.since(name, first) for name in (*_ROW_ARRAYS, *_END_ARRAYS)),
    )
    found.header_key_bytes += key_bytes
    found.header_value_bytes += value_bytes
    if status == kernels.OK and max(found.header_key_bytes, found.header_value_bytes) > kernels.INT32_MAX:
        status = kernels.TOO_LARGE
    if status != kernels.OK:
        raise failure(kernels.MEANING[status], headers, batch, f"record {record} of its batch", status)
    return first


def sources(data: NDArray[np.uint8], unpacked: Unpacked) -> tuple[NDArray[Any], ...]:
    """What kernels read from: the buffer, the arena, and which of the two each batch is in."""
    return kernels.sealed(data), kernels.sealed(unpacked.arena.data), unpacked.in_arena


def failure(meaning: str, headers: BatchHeaders, row: int, where: str, status: int) -> MaxbrodError:
    offset, position = int(headers["base_offset"][row]), int(headers.position[row])
    if status == kernels.TOO_LARGE:
        return RefusedError(meaning, offset=offset, position=position, hint="decode fewer batches at a time")
    return CorruptDataError(
        f"{meaning}: {where}",
        offset=offset,
        position=position,
        hint="if the checksum is right, the bytes were written this way, and what wrote them was at fault",
    )


def _check_counts(headers: BatchHeaders, unpacked: Unpacked) -> None:
    """A count is believed only if its records could fit, so that it cannot make us allocate without limit."""
    impossible = headers["count"] * np.int64(_RECORD_BYTES_MIN) > unpacked.end - unpacked.start
    if impossible.any():
        row = int(np.flatnonzero(impossible)[0])
        raise CorruptDataError(
            f"a batch says that it holds {int(headers['count'][row])} records, more than its bytes can",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint="the bytes are damaged; read them again from the source",
        )
