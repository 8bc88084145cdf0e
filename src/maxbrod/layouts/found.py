"""Records that were found in a buffer, as positions and lengths, and how they become an Arrow batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import binary_array, headers_array, number_array
from maxbrod.batch.kernels import sealed
from maxbrod.errors import RefusedError
from maxbrod.layouts import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_ABSENT: Final[dict[str, tuple[type[np.generic], int]]] = {
    "leader_epoch": (np.int32, -1),
    "producer_id": (np.int64, -1),
    "producer_epoch": (np.int16, -1),
    "sequence": (np.int32, -1),
    "transactional": (np.bool_, 0),
    "control": (np.bool_, 0),
}
"""Kafka's own defaults for what tools that back up as consumers never see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Parts of `data`: where each begins and how long it is, -1 for null."""

    at: NDArray[np.int64]
    length: NDArray[np.int64]

    @classmethod
    def empty(cls, count: int) -> Spans:
        return cls(at=np.empty(count, np.int64), length=np.empty(count, np.int64))

    def until(self, count: int) -> Spans:
        return Spans(at=self.at[:count], length=self.length[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Every part of every record of a buffer. `header_ends` counts the headers up to and with each record's."""

    data: NDArray[np.uint8]
    offset: NDArray[np.int64]
    timestamp_ms: NDArray[np.int64]
    timestamp_type: NDArray[np.int8]
    key: Spans
    value: Spans
    header_ends: NDArray[np.int64]
    header_key: Spans
    header_value: Spans


class Room:
    """What a scan fills, a row a record. Takes no memory before it is written to, and can be filled again."""

    __slots__ = ("header_at", "header_ends", "key", "offset", "timestamp_ms", "timestamp_type", "value")

    def __init__(self, rows: int = 0) -> None:
        self._make(rows)

    def reserve(self, rows: int) -> None:
        """Make it large enough. Fresh memory for each buffer made reading a fifth slower."""
        if rows > len(self.offset):
            self._make(rows)

    def _make(self, rows: int) -> None:
        self.offset, self.timestamp_ms, self.header_at, self.header_ends = (np.empty(rows, np.int64) for _ in range(4))
        self.timestamp_type = np.zeros(rows, np.int8)
        self.key, self.value = Spans.empty(rows), Spans.empty(rows)

    def parts(self) -> tuple[NDArray[np.int64], ...]:
        """Where keys and values stand, as kernels take it."""
        return self.key.at, self.key.length, self.value.at, self.value.length

    def found(self, data: NDArray[np.uint8], rows: int, scan_headers: Callable[..., object]) -> Found:
        """What stands in the first `rows`, to be used before they are filled again.

        `scan_headers` finds the parts of the headers, which have a row each.
        """
        header_at, header_ends = self.header_at[:rows], self.header_ends[:rows]
        headers = int(header_ends[-1]) if rows else 0
        key, value = Spans.empty(headers), Spans.empty(headers)
        scan_headers(data, header_at, header_ends, key.at, key.length, value.at, value.length)
        return Found(
            data=data,
            offset=self.offset[:rows].copy(),
            timestamp_ms=self.timestamp_ms[:rows].copy(),
            timestamp_type=self.timestamp_type[:rows].copy(),
            key=self.key.until(rows),
            value=self.value.until(rows),
            header_ends=header_ends,
            header_key=key,
            header_value=value,
        )


def batch_of(found: Found, schema: pa.Schema) -> pa.RecordBatch:
    """The records as a batch of `schema`, which is RECORD_SCHEMA or some columns of it."""
    return pa.RecordBatch.from_arrays([_column(found, name) for name in schema.names], schema=schema)


def binary_of(data: NDArray[np.uint8], parts: Spans) -> pa.Array:
    """The parts as one binary array."""
    ends = np.empty(len(parts.at) + 1, np.int32)
    total = kernels.running_ends(parts.length, ends)
    if total < 0:
        raise RefusedError("the records need more than 2 GiB of one Arrow column", hint="the records are too large")
    out = np.empty(total, np.uint8)
    kernels.gather(sealed(data), parts.at, ends, out)
    return binary_array(ends, out, parts.length >= 0)


def _column(found: Found, name: str) -> pa.Array:
    match name:
        case "offset" | "timestamp_ms" | "timestamp_type":
            return number_array(getattr(found, name))
        case "key" | "value":
            return binary_of(found.data, getattr(found, name))
        case "headers":
            return _headers(found)
        case _:
            kind, absent = _ABSENT[name]
            return number_array(np.full(len(found.offset), absent, kind))


def _headers(found: Found) -> pa.Array:
    keys = binary_of(found.data, found.header_key)
    values = binary_of(found.data, found.header_value)
    ends: NDArray[Any] = np.zeros(len(found.offset) + 1, np.int32)
    ends[1:] = found.header_ends
    return headers_array(ends, keys, values)
