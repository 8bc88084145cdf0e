"""Walks and decodes messages of magic 0 and 1, as brokers before Kafka 0.11 stored them.

A message is plain, or a wrapper whose value is a compressed run of messages. Inside a wrapper of magic 1, offsets count
from 0 and the wrapper has the last offset; inside magic 0 they are absolute. Read only: everything is written as
magic 2.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch import kernels, legacy_kernels
from maxbrod.batch.columns import binary_array, conform, number_array, project
from maxbrod.batch.compression import ENOUGH_BYTES, Arena, append, fix_lz4_header
from maxbrod.batch.headers import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_LOG_APPEND,
    HEADER_DTYPE,
    LOG_OVERHEAD_BYTES,
    BatchHeaders,
    refuse_wrong_crc,
)
from maxbrod.errors import CorruptDataError, MaxbrodError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from numpy.typing import NDArray


_SMALLEST_ENTRY: Final = 26
_WALK_ROWS: Final = 1 << 16


def walk(data: NDArray[np.uint8], position: int, batch_bytes_max: int, *, check_crc: bool) -> BatchHeaders:
    """The messages of magic 0 and 1 from `position` up to a batch of magic 2 or a cut message."""
    chunks: list[dict[str, NDArray[Any]]] = []
    while True:
        chunk, end = _walk_chunk(data, position, batch_bytes_max)
        chunks.append(chunk)
        if len(chunk["position"]) < _WALK_ROWS:
            break
        position = end
    columns = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    headers = BatchHeaders(
        position=columns["position"],
        size=columns["size"],
        fields=_fields(columns),
        end=end,
        tail=data.size - end,
    )
    if check_crc:
        refuse_wrong_crc(headers, columns["computed"])
    wrong = np.flatnonzero(headers["base_offset"] < 0)
    if wrong.size:
        offset, position = (int(column[wrong[0]]) for column in (headers["base_offset"], headers.position))
        raise CorruptDataError("a message has a negative offset", offset=offset, position=position)
    return headers


def _walk_chunk(data: NDArray[np.uint8], position: int, batch_bytes_max: int) -> tuple[dict[str, NDArray[Any]], int]:
    rows = min(_WALK_ROWS, (data.size - position) // _SMALLEST_ENTRY + 1)
    kinds = {
        "position": np.int64,
        "size": np.int64,
        "base_offset": np.int64,
        "magic": np.int8,
        "attributes": np.int16,
        "timestamp": np.int64,
        "crc": np.uint32,
        "computed": np.uint32,
    }
    columns: dict[str, NDArray[Any]] = {name: np.empty(rows, kind) for name, kind in kinds.items()}
    found, end = legacy_kernels.walk(kernels.sealed(data), position, batch_bytes_max, *columns.values())
    return {name: column[:found] for name, column in columns.items()}, int(end)


def _fields(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    rows = len(columns["position"])
    names = HEADER_DTYPE.names or ()
    return {
        **{name: np.full(rows, -1, HEADER_DTYPE[name].newbyteorder("=")) for name in names if name != "crc"},
        **{name: columns[name] for name in ("crc", "base_offset", "magic", "attributes")},
        "batch_length": (columns["size"] - LOG_OVERHEAD_BYTES).astype(np.int32),
        "last_offset_delta": np.zeros(rows, np.int32),
        "base_timestamp": columns["timestamp"],
        "max_timestamp": columns["timestamp"],
        "count": np.where(columns["attributes"] & ATTRIBUTE_CODEC, -1, 1).astype(np.int32),
    }


@dataclass(slots=True)
class _Runs:
    """Messages to scan. A run is adjacent plain messages in the buffer, or the content of one wrapper in the arena."""

    in_arena: NDArray[np.bool_]
    start: NDArray[np.int64]
    base_offset: NDArray[np.int64]
    fixed_timestamp: NDArray[np.bool_]
    timestamp: NDArray[np.int64]
    count: NDArray[np.int64]
    first_header: NDArray[np.int64]

    def first(self, runs: int) -> _Runs:
        return _Runs(*(getattr(self, field.name)[:runs] for field in fields(self)))


def decode(data: NDArray[np.uint8], headers: BatchHeaders, columns: list[str] | None, bytes_max: int) -> pa.RecordBatch:
    """Decode all messages of these headers to records as of magic 2. Magic 0 has no timestamp: -1, type -1."""
    parts: list[pa.RecordBatch] = []
    done = 0
    arena = Arena(0)
    while done < len(headers):
        arena.size = 0
        rest = headers.take(slice(done, None))
        runs, rows = _runs(data, rest, arena, bytes_max)
        parts.append(_decode(data, rest, arena, runs).select(project(columns).names))
        done += rows
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def _decode(data: NDArray[np.uint8], headers: BatchHeaders, arena: Arena, runs: _Runs) -> pa.RecordBatch:
    rows = int(runs.count.sum())
    offset, timestamp = np.empty(rows, np.int64), np.empty(rows, np.int64)
    kind = np.empty(rows, np.int8)
    at = {name: np.empty(rows, np.int64) for name in ("key", "value")}
    ends = {name: np.empty(rows + 1, np.int32) for name in ("key", "value")}
    valid = {name: np.empty(rows, np.bool_) for name in ("key", "value")}
    buffers = (kernels.sealed(data), kernels.sealed(arena.data))
    status, run, message = legacy_kernels.scan(
        *(*buffers, runs.in_arena, runs.start, runs.base_offset, runs.fixed_timestamp, runs.timestamp, runs.count),
        *(offset, timestamp, kind, at["key"], ends["key"], valid["key"], at["value"], ends["value"], valid["value"]),
    )
    if status != kernels.OK:
        raise _failure(status, headers, int(runs.first_header[run]), message)
    arrays = {
        "offset": number_array(offset),
        "timestamp_ms": number_array(timestamp),
        "timestamp_type": number_array(kind),
    }
    for name in ("key", "value"):
        out = np.empty(int(ends[name][-1]), np.uint8)
        kernels.gather(*buffers, runs.in_arena, runs.count.astype(np.int32), at[name], ends[name], out)
        arrays[name] = binary_array(ends[name], out, valid[name])
    return conform(pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays)))


def _runs(data: NDArray[np.uint8], headers: BatchHeaders, arena: Arena, bytes_max: int) -> tuple[_Runs, int]:
    """The runs of these messages with wrappers unpacked, and the number of messages. Stops at ENOUGH_BYTES."""
    wrapper = headers.codec != Codec.NONE
    begins = np.ones(len(headers), np.bool_)
    neighbours = headers.position[1:] == (headers.position + headers.size)[:-1]
    begins[1:] = wrapper[1:] | wrapper[:-1] | ~neighbours
    first = np.flatnonzero(begins)
    runs = _Runs(
        in_arena=wrapper[first],
        start=headers.position[first],
        base_offset=np.zeros(len(first), np.int64),
        fixed_timestamp=np.zeros(len(first), np.bool_),
        timestamp=headers["base_timestamp"][first],
        count=np.diff(np.append(first, len(headers))),
        first_header=first,
    )
    for run in np.flatnonzero(runs.in_arena).tolist():
        if arena.size > ENOUGH_BYTES:
            return runs.first(run), int(first[run])
        _unwrap(data, headers, int(first[run]), arena, bytes_max, runs, run)
    return runs, len(headers)


def _unwrap(
    data: NDArray[np.uint8], headers: BatchHeaders, row: int, arena: Arena, bytes_max: int, runs: _Runs, run: int
) -> None:
    offset, position, magic = int(headers["base_offset"][row]), int(headers.position[row]), int(headers["magic"][row])
    attributes = int(headers["attributes"][row])
    codec = headers.codec_at(row)
    packed = _value(data[position : position + int(headers.size[row])], magic, offset, position)
    if codec is Codec.LZ4 and magic == 0:
        packed = fix_lz4_header(packed)
    start = arena.size
    append(arena, headers, row, packed, bytes_max)
    status, count, last = legacy_kernels.count_inner(kernels.sealed(arena.data), start, arena.size, magic, True)
    if status != kernels.OK:
        raise _failure(status, headers, row, count)
    runs.start[run] = start
    runs.count[run] = count
    if magic == 1 and count:
        if last > offset:
            raise CorruptDataError(
                "the offsets inside a compressed message exceed its own", offset=offset, position=position
            )
        runs.base_offset[run] = offset - last
        runs.fixed_timestamp[run] = attributes & ATTRIBUTE_LOG_APPEND != 0


def _value(entry: NDArray[np.uint8], magic: int, offset: int, position: int) -> NDArray[np.uint8]:
    """The value of a wrapper: its compressed messages."""
    at = 26 if magic == 1 else 18
    key_length = int.from_bytes(entry[at : at + 4].tobytes(), "big", signed=True)
    at += 4 + max(key_length, 0)
    length = int.from_bytes(entry[at : at + 4].tobytes(), "big", signed=True)
    at += 4
    if key_length < -1 or length < 0 or at + length != entry.size:
        raise CorruptDataError("the lengths of a compressed message disagree", offset=offset, position=position)
    return entry[at:]


def _failure(status: int, headers: BatchHeaders, row: int, message: int) -> MaxbrodError:
    meaning = legacy_kernels.MEANING.get(status) or kernels.MEANING[status]
    return kernels.failure(meaning, headers, row, f"message {message} from there", status)
