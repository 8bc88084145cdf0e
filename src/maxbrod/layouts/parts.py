"""Records as the flat buffers that compiled loops take and fill, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import (
    BinaryColumn,
    binary_array,
    binary_column,
    headers_array,
    headers_columns,
    number_array,
    number_column,
)
from maxbrod.batch.kernels import sealed
from maxbrod.layouts import kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DEFAULTS: Final[dict[str, Any]] = {
    "timestamp_type": np.int8(0),
    "leader_epoch": np.int32(-1),
    "producer_id": np.int64(-1),
    "producer_epoch": np.int16(-1),
    "sequence": np.int32(-1),
    "transactional": np.bool_(False),
    "control": np.bool_(False),
}


class Parts:
    """The columns of records that every layout has, as the kernels take them."""

    __slots__ = ("_header_key", "_header_value", "_headers", "_key", "_value", "offset", "timestamp")

    def __init__(self, records: pa.RecordBatch) -> None:
        self.offset: NDArray[np.int64] = sealed(number_column(records.column("offset")))
        self.timestamp: NDArray[np.int64] = sealed(number_column(records.column("timestamp_ms")))
        self._key = _sealed(binary_column(records.column("key")))
        self._value = _sealed(binary_column(records.column("value")))
        headers, header_key, header_value = headers_columns(records.column("headers"))
        self._headers = sealed(headers)
        self._header_key, self._header_value = _sealed(header_key), _sealed(header_value)

    def shape(self) -> tuple[NDArray[Any], ...]:
        """All that tells how long a record is."""
        key, value, header_key, header_value = self._key, self._value, self._header_key, self._header_value
        return (
            *(key.ends, key.valid, value.ends, value.valid),
            *(self._headers, header_key.ends, header_value.ends, header_value.valid),
        )

    def contents(self) -> tuple[NDArray[Any], ...]:
        key, value, header_key, header_value = self._key, self._value, self._header_key, self._header_value
        return (
            *(self.offset, self.timestamp),
            *(key.ends, key.data, key.valid, value.ends, value.data, value.valid, self._headers),
            *(header_key.ends, header_key.data, header_value.ends, header_value.data, header_value.valid),
        )


def _sealed(column: BinaryColumn) -> BinaryColumn:
    return BinaryColumn(*(sealed(part) for part in column))


class GatherHeaders(Protocol):
    """Brings the headers together that a scan has found: `header_at`, `header_ends` and what they become."""

    def __call__(  # noqa: PLR0917 - numba takes no keywords in the order of these
        self,
        data: NDArray[np.uint8],
        header_at: NDArray[np.int64],
        header_ends: NDArray[np.int32],
        key_ends: NDArray[np.int32],
        key_out: NDArray[np.uint8],
        value_ends: NDArray[np.int32],
        value_valid: NDArray[np.bool_],
        value_out: NDArray[np.uint8],
        /,
    ) -> None: ...


class Found:
    """Where each part of each record of one buffer stands: what a scan fills. Used again for the next buffer."""

    __slots__ = ("_capacity", "arrays", "header_key_bytes", "header_value_bytes", "rows")

    def __init__(self) -> None:
        self._capacity = 0
        self.rows = 0
        self.header_key_bytes = 0
        self.header_value_bytes = 0
        self.arrays: tuple[NDArray[Any], ...] = ()

    def reserve(self, rows: int) -> tuple[NDArray[Any], ...]:
        """Room for so many rows, which costs no memory before it is written to."""
        if rows > self._capacity or not self.arrays:
            self._capacity = rows
            kinds = (np.int64, np.int64, np.int64, np.bool_, np.int64, np.bool_, np.int64)
            self.arrays = (
                *(np.empty(rows, kind) for kind in kinds),
                *(np.zeros(rows + 1, np.int32) for _ in range(3)),
            )
        return self.arrays

    def records(self, data: NDArray[np.uint8], schema: pa.Schema, gather_headers: GatherHeaders) -> pa.RecordBatch:
        """What was found, as columns of their own."""
        columns = [self._column(name, data, gather_headers) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _column(self, name: str, data: NDArray[np.uint8], gather_headers: GatherHeaders) -> pa.Array:
        offset, timestamp, key_at, key_valid, value_at, value_valid, *_ = (each[: self.rows] for each in self.arrays)
        key_ends, value_ends, _ = (each[: self.rows + 1] for each in self.arrays[7:])
        match name:
            case "offset":
                return number_array(offset.copy())
            case "timestamp_ms":
                return number_array(timestamp.copy())
            case "key":
                return _gathered(data, key_at, key_ends, key_valid)
            case "value":
                return _gathered(data, value_at, value_ends, value_valid)
            case "headers":
                return self._headers(data, gather_headers)
            case _:
                return number_array(np.full(self.rows, _DEFAULTS[name]))

    def _headers(self, data: NDArray[np.uint8], gather_headers: GatherHeaders) -> pa.Array:
        header_at = self.arrays[6][: self.rows]
        ends = self.arrays[9][: self.rows + 1].copy()
        count = int(ends[-1])
        key_ends, value_ends = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
        valid = np.empty(count, np.bool_)
        keys, values = np.empty(self.header_key_bytes, np.uint8), np.empty(self.header_value_bytes, np.uint8)
        if count:
            gather_headers(data, header_at, ends, key_ends, keys, value_ends, valid, values)
        return headers_array(ends, binary_array(key_ends, keys, None), binary_array(value_ends, values, valid))


def _gathered(
    data: NDArray[np.uint8], at: NDArray[np.int64], ends: NDArray[np.int32], valid: NDArray[np.bool_]
) -> pa.Array:
    out = np.empty(int(ends[-1]), np.uint8)
    kernels.gather(data, at, ends, out)
    return binary_array(ends.copy(), out, valid)
