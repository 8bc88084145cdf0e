"""The names and the bytes of a binlog archive, except its records.

A topic is a folder. File names contain partition and offset. Partition index, segment index and the committed offsets
of groups are encoded and decoded here.
"""

from __future__ import annotations

import json
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.foreign import check_topic
from maxbrod.model import INT32_MAX, INT64_MAX, TopicPartition, is_topic_name
from maxbrod.storage.interface import ObjectInfo

RECORDS: Final = "_records"
INDEX: Final = "_index"

_PARTITION_FILE: Final = re.compile(r"(index|consumer_offsets)_partition_(\d{3,10})")
_SEGMENT_FILE: Final = re.compile(r"segment_partition_(\d{3,10})_from_offset_(\d{10,19})(_records|_index)?")
MAGIC: Final = b"\x01"
"""The first byte of every binary file: the version of the format."""
ENTRY_BYTES: Final = 24
RECORD_BYTES_MIN: Final = 24
"""An empty record: offset, timestamp type, two lengths and the header count."""
_LENGTH: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")


@dataclass(slots=True)
class PartitionObjects:
    """The files of a partition, as far as they exist."""

    files: dict[str, ObjectInfo] = field(default_factory=dict)
    """`index` and `consumer_offsets`."""
    segments: dict[int, dict[str, ObjectInfo]] = field(default_factory=dict)
    """By the offset in their names: the files RECORDS and INDEX of each."""

    @property
    def backed_up(self) -> bool:
        return "index" in self.files or bool(self.segments)


def index_path(where: TopicPartition) -> str:
    return f"{check_topic(where.topic)}/index_partition_{where.partition:03d}"


def groups_path(where: TopicPartition) -> str:
    return f"{check_topic(where.topic)}/consumer_offsets_partition_{where.partition:03d}"


def segment_prefix(partition: int, start_offset: int) -> str:
    """The name of a segment in the partition index: that of its files without their suffixes."""
    return f"segment_partition_{partition:03d}_from_offset_{start_offset:010d}"


def segment_path(where: TopicPartition, start_offset: int, kind: str) -> str:
    return f"{check_topic(where.topic)}/{segment_prefix(where.partition, start_offset)}{kind}"


def start_offset_of(prefix: str, partition: int) -> int | None:
    """The offset in a segment's name; None if it is not the name of a segment of this partition."""
    found = _SEGMENT_FILE.fullmatch(prefix)
    if found is None or found[3] is not None:
        return None
    start_offset = int(found[2])
    return start_offset if prefix == segment_prefix(partition, start_offset) and start_offset <= INT64_MAX else None


def is_ours(path: str) -> bool:
    """True if an object is named as in this layout."""
    topic, slash, name = path.partition("/")
    known = _PARTITION_FILE.fullmatch(name) or _SEGMENT_FILE.fullmatch(name)
    return bool(slash and is_topic_name(topic) and known)


def arrange(objects: Iterable[ObjectInfo]) -> dict[TopicPartition, PartitionObjects]:
    """Return the archive's objects by partition, in order. Others are skipped."""
    tree: defaultdict[TopicPartition, PartitionObjects] = defaultdict(PartitionObjects)
    for info in objects:
        topic, _, name = info.path.partition("/")
        if not is_topic_name(topic):
            continue
        if found := _PARTITION_FILE.fullmatch(name):
            number = int(found[2])
            if number <= INT32_MAX and found[2] == f"{number:03d}":
                tree[TopicPartition(topic=topic, partition=number)].files[found[1]] = info
        elif (found := _SEGMENT_FILE.fullmatch(name)) and found[3]:
            number, start_offset = int(found[1]), start_offset_of(name.removesuffix(found[3]), int(found[1]))
            if start_offset is not None and number <= INT32_MAX:
                segments = tree[TopicPartition(topic=topic, partition=number)].segments
                segments.setdefault(start_offset, {})[found[3]] = info
    return dict(sorted(tree.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The files of a segment and their sizes; `index` is None if there is none."""

    records: str
    records_bytes: int
    index: str | None
    index_bytes: int


def decode_partition_index(data: bytes, partition: int) -> tuple[list[int], str | None]:
    """Return the start offsets of a partition's segments, and what is wrong with the file, if anything.

    They are all entries up to the first that is cut, does not rise or does not name a segment of the partition.
    """
    if data[:1] != MAGIC:
        return [], "does not begin with the byte 01" if data else "is empty"
    start_offsets: list[int] = []
    position = 1
    while position < len(data):
        name_at = position + _LENGTH.size
        length = _LENGTH.unpack_from(data, position)[0] if name_at <= len(data) else -1
        end = name_at + length + _OFFSET.size
        if length < 0 or end > len(data):
            return start_offsets, f"is cut at byte {position}"
        start_offset = start_offset_of(data[name_at : name_at + length].decode("utf-8", "replace"), partition)
        if start_offset is None or start_offset != _OFFSET.unpack_from(data, name_at + length)[0]:
            return start_offsets, f"does not name a segment of its partition at byte {position}"
        if start_offsets and start_offset <= start_offsets[-1]:
            return start_offsets, f"has offsets that do not rise at byte {position}"
        start_offsets.append(start_offset)
        position = end
    return start_offsets, None


def encode_partition_index(partition: int, start_offsets: Iterable[int]) -> bytes:
    parts = [MAGIC]
    for start_offset in start_offsets:
        name = segment_prefix(partition, start_offset).encode()
        parts += [_LENGTH.pack(len(name)), name, _OFFSET.pack(start_offset)]
    return b"".join(parts)


def encode_segment_index(offset: NDArray[np.int64], start: NDArray[np.int64], size: NDArray[np.int64]) -> bytes:
    return MAGIC + np.stack([offset, start, size], axis=1).astype(">i8").tobytes()


def decode_groups(data: bytes) -> dict[str, int]:
    """The next offset of each group. An empty file has no groups. CorruptDataError: it has other contents."""
    if not data:
        return {}
    try:
        document: Any = strict_json.parse(data, wide=True)
    except ValueError as error:
        raise CorruptDataError(f"the groups' offsets are not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptDataError("the groups' offsets are not a JSON object")
    for group, offset in document.items():
        if type(offset) is not int or not 0 <= offset <= INT64_MAX:
            raise CorruptDataError(f"the offset of the group {group!r} is not an offset")
    return document


def encode_groups(offsets: Mapping[str, int]) -> bytes:
    """As the tool writes it: compact, raw UTF-8, no newline."""
    return json.dumps(dict(sorted(offsets.items())), ensure_ascii=False, separators=(",", ":")).encode()
