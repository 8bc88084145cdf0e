"""Decodes record batches to Arrow columns: decompress a few batches, locate every field in one compiled pass, gather.

Pure: bytes in, one `pyarrow.RecordBatch` of `RECORD_SCHEMA` out, records in log order. Control records are rows too
(flag `control`); a batch that compaction has emptied gives none. Batches are decoded in groups that fit a core's cache:
mapping fresh memory for all decompressed bytes at once would take longer than lz4 needs to fill it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch import kernels, legacy
from maxbrod.batch.columns import GrowingBytes, binary_array, headers_array, number_array, project
from maxbrod.batch.compression import (
    DECOMPRESSED_BYTES_MAX,
    ENOUGH_BYTES,
    Arena,
    Unpacked,
    portions,
    unpack,
)
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders, as_bytes_array, walk
from maxbrod.errors import CorruptDataError, naming
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SCRATCH_BYTES: Final = 4 << 20
_PART_BYTES: Final = 64 << 20
"""Unpacked bytes after which a part ends."""
_ROOM: Final = 4
"""Capacity as a multiple of the compressed bytes. Text unpacks to about that; a column that must grow is copied."""

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

_scratch = threading.local()

_GROUP_BYTES: Final = 1 << 20
"""The bytes that are unpacked before they are scanned: they are then still in the core's cache."""


def decode(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders | None = None,
    *,
    columns: list[str] | None = None,
    check_crc: bool = True,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    object_name: str | None = None,
) -> pa.RecordBatch:
    """Decode all batches of `buffer`, or only those in `headers`.

    Without `headers` the buffer is walked first and must hold whole batches only. `columns` limits what is built.
    """
    data = as_bytes_array(buffer)
    if headers is None:
        headers = walk(data, check_crc=check_crc, whole=True, object_name=object_name)
    with naming(object_name):
        parts = [
            legacy.decode(data, headers.take(rows), columns, decompressed_bytes_max)
            if old
            else _decode(data, headers.take(rows), columns, decompressed_bytes_max)[0]
            for old, rows in headers.generations()
        ]
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def decode_in_parts(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    *,
    columns: list[str] | None,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    object_name: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """As `decode`, but a few batches at a time if they unpack to much: each may take as much as a batch may."""
    with naming(object_name):
        for old, rows in headers.generations():
            taken = headers.take(rows)
            if old:
                yield legacy.decode(data, taken, columns, bytes_max)
            while not old and len(taken):
                found, count = _decode(data, taken, columns, bytes_max, enough=_PART_BYTES)
                yield found
                taken = taken.take(slice(count, len(taken)))


def _decode(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    columns: list[str] | None,
    bytes_max: int,
    *,
    enough: int | None = None,
) -> tuple[pa.RecordBatch, int]:
    """The records of the first batches, and how many batches: all, or as many as unpack to `enough` bytes."""
    schema = project(columns)
    # The arena that this thread used last, if any: its memory is mapped already.
    arena: Arena = getattr(_scratch, "arena", None) or Arena(_SCRATCH_BYTES)
    _scratch.arena = None
    done = size = 0
    gathered = _Gathered(data, headers, schema.names)
    for portion, unpacked in portions(data, headers, arena, bytes_max=bytes_max):
        gathered.add(portion, unpacked)
        done, size = done + len(portion), size + arena.size
        if enough is not None and size > enough and done < len(headers):
            gathered.headers = headers.take(slice(done))
            break
    if arena.data.size <= ENOUGH_BYTES:
        _scratch.arena = arena
    return pa.RecordBatch.from_arrays([gathered.column(name) for name in schema.names], schema=schema), done


class _Gathered:
    """The requested columns, filled group by group."""

    def __init__(self, data: NDArray[np.uint8], headers: BatchHeaders, names: list[str]) -> None:
        self._data = data
        self.headers = headers
        """Those of all batches that are added."""
        self._names = names
        packed = int(headers.size.sum())
        # A compressed record usually has at least one byte. If there are more records, `Found` grows.
        self._found = Found(min(int(headers["count"].sum(dtype=np.int64)), packed))
        self._bytes = {name: GrowingBytes(_ROOM * packed) for name in ("key", "value") if name in names}
        self._header_keys, self._header_values = GrowingBytes(0), GrowingBytes(0)
        self._header_ends: list[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]] = []

    def add(self, headers: BatchHeaders, unpacked: Unpacked) -> None:
        found = self._found
        first = scan(self._data, headers, unpacked, found)
        read_from = (*sources(self._data, unpacked), headers["count"])
        for name, out in self._bytes.items():
            ends = found.since(f"{name}_ends", first)
            out.reserve(int(ends[-1]))
            kernels.gather(*read_from, found.since(f"{name}_at", first), ends, out.data)
        if "headers" in self._names:
            self._add_headers(read_from, first)

    def _add_headers(self, read_from: tuple[NDArray[Any], ...], first: int) -> None:
        found = self._found
        ends = found.since("header_ends", first)
        count = int(ends[-1]) - int(ends[0])
        if not count:
            return
        key_ends, value_ends = np.empty(count + 1, np.int32), np.empty(count + 1, np.int32)
        key_ends[0], value_ends[0] = self._header_keys.size, self._header_values.size
        valid = np.empty(count, np.bool_)
        self._header_keys.reserve(found.header_key_bytes)
        self._header_values.reserve(found.header_value_bytes)
        kernels.gather_headers(
            *read_from,
            found.since("header_at", first),
            ends,
            key_ends,
            self._header_keys.data,
            value_ends,
            valid,
            self._header_values.data,
        )
        self._header_ends.append((key_ends, value_ends, valid))

    def column(self, name: str) -> pa.Array:
        found, headers = self._found, self.headers
        match name:
            case "offset":
                return number_array(found["offset"])
            case "timestamp_ms":
                return number_array(found["timestamp"])
            case "key" | "value":
                return binary_array(found[f"{name}_ends"], self._bytes[name].taken(), found[f"{name}_valid"])
            case "headers":
                return self._headers_column()
            case "sequence":
                return number_array(_sequences(headers, found["offset"]))
            case _:
                return number_array(np.repeat(_per_batch(name, headers), headers["count"]))

    def _headers_column(self) -> pa.Array:
        groups = self._header_ends
        key_ends, value_ends = (
            np.concatenate([np.zeros(1, np.int32), *(group[part][1:] for group in groups)]) for part in (0, 1)
        )
        valid = np.concatenate([np.empty(0, np.bool_), *(group[2] for group in groups)])
        keys = binary_array(key_ends, self._header_keys.taken(), None)
        values = binary_array(value_ends, self._header_values.taken(), valid)
        return headers_array(self._found["header_ends"], keys, values)


def _per_batch(name: str, headers: BatchHeaders) -> NDArray[Any]:
    match name:
        case "timestamp_type":
            return np.where(headers.log_append, TimestampType.LOG_APPEND, TimestampType.CREATE).astype(np.int8)
        case "transactional":
            return headers.transactional
        case "control":
            return headers.control
        case _:
            return headers[name]


def _sequences(headers: BatchHeaders, offset: NDArray[np.int64]) -> NDArray[np.int32]:
    """The sequence number of each record. A producer's counter wraps from 2**31 - 1 to 0."""
    if (headers["base_sequence"] < 0).all():
        return np.repeat(headers["base_sequence"], headers["count"])
    first = np.repeat(headers["base_sequence"].astype(np.int64), headers["count"])
    delta = offset - np.repeat(headers["base_offset"], headers["count"])
    return np.where(first < 0, first, (first + delta) & 0x7FFFFFFF).astype(np.int32)


class Found:
    """The position of each field of each record. It grows only by records whose bytes are known to be there."""

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
        """One column of all rows so far. An `ends` column has one more value and starts with 0."""
        return self.since(name, 0)

    def since(self, name: str, row: int) -> NDArray[Any]:
        return self._arrays[name][row : self.rows + (name in _END_ARRAYS)]

    def add_rows(self, count: int) -> int:
        """Add `count` rows and return the number of the first."""
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

    Every length is checked. CorruptDataError names the batch's offset, its position and the record in it.
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
        raise kernels.failure(kernels.MEANING[status], headers, batch, f"record {record} of its batch", status)
    return first


def sources(data: NDArray[np.uint8], unpacked: Unpacked) -> tuple[NDArray[Any], ...]:
    """The inputs of kernels: the buffer, the arena, and which of the two holds each batch."""
    return kernels.sealed(data), kernels.sealed(unpacked.arena.data), unpacked.in_arena


def _check_counts(headers: BatchHeaders, unpacked: Unpacked) -> None:
    """Refuse a count that its bytes cannot hold, so that a hostile header cannot make us allocate without limit."""
    impossible = headers["count"] * np.int64(_RECORD_BYTES_MIN) > unpacked.end - unpacked.start
    if impossible.any():
        row = int(np.flatnonzero(impossible)[0])
        raise CorruptDataError(
            f"a batch claims to hold {int(headers['count'][row])} records, more than its bytes can",
            offset=int(headers["base_offset"][row]),
            position=int(headers.position[row]),
            hint="the bytes are damaged; read them again from the source",
        )


def lowest_timestamps(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    *,
    look_into_all: bool = False,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The lowest timestamp of each batch of magic 2, and whether it is known.

    It is unknown if there are no records, or if they cannot be unpacked or their lengths do not add up. The header of a
    batch with log-append time has it, so such a batch is unpacked only if `look_into_all`.
    """
    data = as_bytes_array(buffer)
    lowest = headers["max_timestamp"].astype(np.int64)
    sound = (headers["count"] > 0) & (headers["magic"] == NEWEST_MAGIC)
    rows = np.flatnonzero(sound if look_into_all else sound & ~headers.log_append)
    done = 0
    arena = Arena(2 * _GROUP_BYTES)
    while done < len(rows):
        taken = headers.take(rows[done:])
        readable = np.ones(len(taken), np.bool_)
        arena.size = 0
        unpacked = unpack(
            data, taken, arena, bytes_max=DECOMPRESSED_BYTES_MAX, enough_bytes=_GROUP_BYTES, readable=readable
        )
        group = slice(done, done + len(unpacked))
        found, readable = lowest[rows[group]], readable[: len(unpacked)]
        kernels.lowest_timestamps(
            *sources(data, unpacked),
            unpacked.start,
            unpacked.end,
            taken["base_timestamp"][: len(unpacked)],
            taken["count"][: len(unpacked)],
            found,
            readable,
        )
        lowest[rows[group]], sound[rows[group]] = found, readable
        done += len(unpacked)
    return np.where(headers.log_append, headers["max_timestamp"], lowest), sound
