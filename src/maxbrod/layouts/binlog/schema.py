"""The bytes of a binlog archive besides its records: partition index, segment index, committed offsets of groups."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.binlog.names import OFFSET_MAX, segment_prefix, start_offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

MAGIC: Final = b"\x01"
"""The first byte of every binary file: the version of the format."""
ENTRY_BYTES: Final = 24
RECORD_BYTES_MIN: Final = 24
"""Offset, timestamp type, two lengths and the header count of a record that has nothing else."""

_LENGTH: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionIndex:
    """The segments of a partition by their start offsets, and what is wrong with the file, if anything is."""

    start_offsets: tuple[int, ...]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The files of a segment and how long they are; `index` is None where there is none."""

    records: str
    records_bytes: int
    index: str | None
    index_bytes: int


def decode_partition_index(data: bytes, partition: int) -> PartitionIndex:
    """All entries up to the first that is cut, does not rise or names no segment of the partition."""
    if data[:1] != MAGIC:
        return PartitionIndex(start_offsets=(), problem="does not begin with the byte 01" if data else "is empty")
    start_offsets: list[int] = []
    position = 1
    while position < len(data):
        name_at = position + _LENGTH.size
        length = _LENGTH.unpack_from(data, position)[0] if name_at <= len(data) else -1
        end = name_at + length + _OFFSET.size
        if length < 0 or end > len(data):
            return PartitionIndex(start_offsets=tuple(start_offsets), problem=f"is cut at byte {position}")
        prefix = data[name_at : name_at + length].decode("utf-8", "replace")
        start_offset = start_offset_of(prefix, partition)
        if start_offset is None or start_offset != _OFFSET.unpack_from(data, name_at + length)[0]:
            problem = f"names no segment of its partition at byte {position}"
            return PartitionIndex(start_offsets=tuple(start_offsets), problem=problem)
        if start_offsets and start_offset <= start_offsets[-1]:
            problem = f"has offsets that do not rise at byte {position}"
            return PartitionIndex(start_offsets=tuple(start_offsets), problem=problem)
        start_offsets.append(start_offset)
        position = end
    return PartitionIndex(start_offsets=tuple(start_offsets))


def encode_partition_index(partition: int, start_offsets: Iterable[int]) -> bytes:
    parts = [MAGIC]
    for start_offset in start_offsets:
        name = segment_prefix(partition, start_offset).encode()
        parts += [_LENGTH.pack(len(name)), name, _OFFSET.pack(start_offset)]
    return b"".join(parts)


def encode_segment_index(offset: NDArray[np.int64], start: NDArray[np.int64], size: NDArray[np.int64]) -> bytes:
    return MAGIC + np.stack([offset, start, size], axis=1).astype(">i8").tobytes()


def decode_groups(data: bytes) -> dict[str, int]:
    """Each group's next offset. No bytes at all: no groups. CorruptDataError: it is something else."""
    if not data:
        return {}
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"the groups' offsets are no JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptDataError("the groups' offsets are no JSON object")
    for group, offset in document.items():
        if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
            raise CorruptDataError(f"the group {group!r} is said to stand at something that is no offset")
    return document


def encode_groups(offsets: Mapping[str, int]) -> bytes:
    """As the tool writes it: compact, raw UTF-8, no newline."""
    return json.dumps(dict(sorted(offsets.items())), ensure_ascii=False, separators=(",", ":")).encode()
