"""The columns, the name and the footer of a segment.

The tool's own five columns come first, because its reader finds columns by position.
Every field is required, because the tool has no null. What that would lose is in additional columns, which the tool
ignores and any Parquet engine shows: null flags, the timestamp type, and the rest of a time that 64 bits of nanoseconds
cannot hold (before 1677, after 2262).

Objects are named `<folder>/<topic>/<partition>/<level>/<range>`. The folder is a configurable prefix (`data` by
default) and the region. A storage that is opened at a region's own folder has neither: then only the footers contain
the region.

The footer has eight keys. The tool opens no segment that lacks one or has another name. Two more keys are ours, and the
tool ignores them. One says from which offset on the writer has read everything. Offsets between that one and the first
record never had a record, so that a reader need not wait for a segment with them. The other one says from which offset
on the source had deleted everything before that. Both travel with the segment, also if the writer is killed before it
publishes anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.batch.columns import (
    RECORD_SCHEMA,
    binary_array,
    binary_column,
    default_column,
    headers_array,
    headers_columns,
    number_array,
    number_column,
)
from maxbrod.errors import CorruptDataError, UnsupportedFormatError, UsageError
from maxbrod.model import INT32_MAX, INT64_MAX, TimestampType, TopicPartition, is_topic_name

_HEADER: Final = pa.struct(
    [pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
)
HEADERS: Final = pa.list_(pa.field("element", _HEADER, nullable=False))
FLAGS: Final = pa.list_(pa.field("element", pa.bool_(), nullable=False))

TOOL_COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")

FILE_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("headers", HEADERS, nullable=False),
        pa.field("key_null", pa.bool_(), nullable=False),
        pa.field("value_null", pa.bool_(), nullable=False),
        pa.field("header_value_null", FLAGS, nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("timestamp_beyond_ms", pa.int64(), nullable=False),
    ]
)

SOURCES: Final[dict[str, tuple[str, ...]]] = {
    "offset": ("offset",),
    "timestamp_ms": ("timestamp", "timestamp_beyond_ms"),
    "timestamp_type": ("timestamp", "timestamp_type"),
    "key": ("key", "key_null"),
    "value": ("value", "value_null"),
    "headers": ("headers", "header_value_null"),
}
"""The columns of the file from which a column of records is made. Others have Kafka's defaults."""

NANOSECONDS: Final = 1_000_000
"""Per millisecond."""
TIMESTAMP_MS_MAX: Final = ((1 << 63) - 1) // NANOSECONDS
"""The last millisecond that nanoseconds can represent; the first one is its negative."""
NO_TIMESTAMP: Final = -6_795_364_578_871_345_152
"""The tool's value for a message without a timestamp: the zero time of Go, truncated to 64 bits of nanoseconds.

No whole millisecond has this value.
"""

PREFIX: Final = "data"
REGION: Final = "local"
"""Our default region. The tool has none."""
STREAMING: Final = 0
"""The level of segments written from a topic; compaction creates higher ones."""
_NAME: Final = re.compile(
    r"(?:(?P<folder>(?:.*/)?(?P<region>[^/]+))/)?"
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})/(?P<partition>0|[1-9][0-9]{0,9})/(?P<level>0|[1-9][0-9]{0,9})/"
    r"(?P<start>[0-9]{20})-(?P<end>[0-9]{20})"
)
_REGION: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
_UINT32_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """`start` and `end` are the offsets of the first and the last record, both inclusive."""

    folder: str
    """Everything before the topic; empty if the storage is a region's own folder."""
    where: TopicPartition
    level: int
    start: int
    end: int

    @property
    def region(self) -> str | None:
        """The region; None if the name does not contain it."""
        return self.folder.rpartition("/")[2] or None

    @property
    def path(self) -> str:
        parts = (self.where.topic, str(self.where.partition), str(self.level), f"{self.start:020d}-{self.end:020d}")
        return "/".join((self.folder, *parts) if self.folder else parts)


def parse_name(path: str) -> SegmentName | None:
    """The parts of a name; None if it is not that of a segment."""
    found = _NAME.fullmatch(path)
    if found is None:
        return None
    partition, level, start, end = (int(found[part]) for part in ("partition", "level", "start", "end"))
    possible = partition <= INT32_MAX and level <= _UINT32_MAX and start <= end < INT64_MAX
    if not possible or not is_topic_name(found["topic"]):
        return None
    where = TopicPartition(topic=found["topic"], partition=partition)
    return SegmentName(folder=found["folder"] or "", where=where, level=level, start=start, end=end)


def region_folder(region: str, prefix: str = PREFIX) -> str:
    """The folder of a region's segments."""
    if _REGION.fullmatch(region) is None or region in {".", ".."}:
        raise UsageError(
            f"{region!r} cannot be a region", hint="it has 1 to 64 of the characters a-z, A-Z, 0-9, '.', '_' and '-'"
        )
    parts = prefix.split("/") if prefix else []
    if not all(map(is_topic_name, parts)):
        raise UsageError(f"{prefix!r} cannot be the folder of a tree", hint="it is a relative path, such as data")
    return "/".join((*parts, region))


_KEYS: Final = (
    "region",
    "topic",
    "partition",
    "level",
    "startOffset",
    "endOffset",
    "messageCount",
    "createdTimestamp",
)
FOLLOWS: Final = "maxbrod.follows"
DELETED: Final = "maxbrod.deleted"
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_SHOWN_MAX: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The description of a segment in its own footer."""

    name: SegmentName
    """Its folder is not in the footer."""
    region: str
    records: int
    created: str = field(default_factory=lambda: rfc3339(datetime.now(UTC)))
    """RFC 3339 with up to nine fractional digits, kept as text: our clocks have fewer."""
    follows: int | None = None
    """The writer read everything from this offset on; None: not recorded, as by the tool itself."""
    deleted: int | None = None
    """The source had deleted the offsets from this one up to `follows` before they were read; None: it had not."""

    def keys(self) -> dict[str, str]:
        name = self.name
        numbers = (name.where.partition, name.level, name.start, name.end, self.records)
        texts = (self.region, name.where.topic, *(str(number) for number in numbers), self.created)
        keys = dict(zip(_KEYS, texts, strict=True))
        ours = {FOLLOWS: self.follows, DELETED: self.deleted}
        return keys | {key: str(offset) for key, offset in ours.items() if offset is not None}


def parse_footer(found: Mapping[bytes, bytes] | None) -> Footer:
    """The values of the keys; others are ignored, as the tool does."""
    texts = {key: _text(key, (found or {}).get(key.encode())) for key in _KEYS}
    region, topic, *rest, created = (texts[key] for key in _KEYS)
    partition, level, start, end, records = (_number(key, text) for key, text in zip(_KEYS[2:7], rest, strict=True))
    follows = _offset((found or {}).get(FOLLOWS.encode()), start)
    deleted = None if follows is None else _offset((found or {}).get(DELETED.encode()), follows - 1)
    where = TopicPartition(topic=topic, partition=partition)
    name = SegmentName(folder="", where=where, level=level, start=start, end=end)
    return Footer(name=name, region=region, records=records, created=created, follows=follows, deleted=deleted)


def check_footer(footer: Footer, name: SegmentName) -> None:
    """CorruptDataError: the object has the name of another segment. The tool refuses it, too."""
    said = footer.name
    if footer.region != (name.region or footer.region) or replace(said, folder="") != replace(name, folder=""):
        parts = (footer.region, said.where.topic, said.where.partition, said.level, said.start, said.end)
        raise CorruptDataError(
            f"the footer is that of another segment: {'/'.join(str(part)[:_SHOWN_MAX] for part in parts)}",
            offset=name.start,
            hint="the object was copied to a wrong name; move it to the one in its footer",
        )


def rfc3339(time: datetime) -> str:
    """A time in UTC as Go prints it: no trailing zeros in the fraction."""
    fraction = f".{time.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _text(key: str, value: bytes | None) -> str:
    if not value:
        raise CorruptDataError(
            f"the footer lacks the key {key}", hint="this Parquet file is not a segment of kafka-replicator"
        )
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"the footer's key {key} is not UTF-8") from error


def _number(key: str, text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise CorruptDataError(f"the footer's key {key} is not a number: {text[:_SHOWN_MAX]!r}")
    return int(text)


def _offset(value: bytes | None, last: int) -> int | None:
    """A value that cannot be right says nothing."""
    text = (value or b"").decode(errors="replace")
    return int(text) if _NUMBER.fullmatch(text) is not None and int(text) <= last else None


def to_file(records: pa.RecordBatch) -> pa.RecordBatch:
    """Records of RECORD_SCHEMA as the columns of a file."""
    kinds = number_column(records.column("timestamp_type"))
    nanoseconds, beyond = _nanoseconds(number_column(records.column("timestamp_ms")), kinds)
    headers, header_nulls = _headers_to_file(records.column("headers"))
    arrays = [
        _filled(records.column("key")),
        _filled(records.column("value")),
        number_array(number_column(records.column("offset")).view(np.uint64)),
        number_array(nanoseconds),
        headers,
        pc.is_null(records.column("key")),
        pc.is_null(records.column("value")),
        header_nulls,
        records.column("timestamp_type"),
        number_array(beyond),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=FILE_SCHEMA)


def from_file(found: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a file, the tool's or ours, as records of `schema`, which is RECORD_SCHEMA or a part of it."""
    arrays = [
        _BUILDERS[field.name](found) if field.name in _BUILDERS else default_column(field, found.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_written(found: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a file, the tool's or ours, as we write them. Timestamps keep their precision."""
    ours = to_file(from_file(found, RECORD_SCHEMA))
    times = number_array(_numbers(found, "timestamp"))
    return ours.set_column(ours.schema.get_field_index("timestamp"), ours.schema.field("timestamp"), times)


def offsets_of(found: pa.RecordBatch) -> NDArray[np.int64]:
    """The offsets. CorruptDataError: one exceeds Kafka's 63 bits."""
    offsets = _numbers(found, "offset")
    if offsets.size and offsets.min() < 0:
        raise CorruptDataError("an offset has more than 63 bits")
    return offsets


def _nanoseconds(
    milliseconds: NDArray[np.int64], kinds: NDArray[np.int8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Timestamps in nanoseconds, and the milliseconds to add if they do not fit."""
    fitting = np.clip(milliseconds, -TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX)
    nanoseconds = fitting * NANOSECONDS
    nothing = kinds == TimestampType.NONE
    nanoseconds[nothing] = NO_TIMESTAMP
    return nanoseconds, milliseconds - np.where(nothing, -1, fitting)


def _milliseconds(found: pa.RecordBatch) -> pa.Array:
    nanoseconds = _numbers(found, "timestamp")
    milliseconds = nanoseconds // NANOSECONDS  # rounds down, before 1970 too: Kafka has no fractions
    milliseconds[nanoseconds == NO_TIMESTAMP] = -1
    if "timestamp_beyond_ms" in found.schema.names:
        milliseconds = milliseconds + _numbers(found, "timestamp_beyond_ms")
    return number_array(milliseconds)


def _timestamp_types(found: pa.RecordBatch) -> pa.Array:
    if "timestamp_type" not in found.schema.names:
        nothing = _numbers(found, "timestamp") == NO_TIMESTAMP
        return number_array(np.where(nothing, TimestampType.NONE, TimestampType.CREATE).astype(np.int8))
    kinds = _numbers(found, "timestamp_type")
    if kinds.size and (kinds.min() < TimestampType.NONE or kinds.max() > TimestampType.LOG_APPEND):
        raise CorruptDataError(f"a timestamp has the unknown type {kinds.min()} or {kinds.max()}")
    return number_array(kinds.astype(np.int8))


def _blobs(found: pa.RecordBatch, name: str) -> pa.Array:
    column = _binary(found.column(name))
    flags = f"{name}_null"
    return _with_nulls(column, _flags(found.column(flags))) if flags in found.schema.names else column


def _headers_from_file(found: pa.RecordBatch) -> pa.Array:
    column = found.column("headers")
    is_list = pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type)
    if not is_list or not {"key", "value"} <= {field.name for field in column.type.value_type}:
        raise UnsupportedFormatError(f"the column headers is {column.type}, not a list of keys and values")
    if column.null_count:
        raise CorruptDataError("a record has null for its headers")
    ends = _list_ends(column)
    entries = column.values
    keys, values = _binary(pc.struct_field(entries, "key")), _binary(pc.struct_field(entries, "value"))
    if entries.null_count or keys.null_count:
        raise CorruptDataError("a header, or the key of one, is null")
    if "header_value_null" in found.schema.names:
        values = _with_nulls(values, _header_flags(found.column("header_value_null"), ends, len(values)))
    return headers_array(np.ascontiguousarray(ends), keys, values)


def _header_flags(column: pa.Array, ends: NDArray[np.int32], entries: int) -> NDArray[np.bool_]:
    """One flag for each of the `entries` headers in the buffers, of which those within `ends` count."""
    if not column.type.equals(FLAGS) and not pa.types.is_list(column.type):
        raise UnsupportedFormatError(f"the column header_value_null is {column.type}, not a list of flags")
    own = _list_ends(column)
    if column.null_count or not np.array_equal(own - own[0], ends - ends[0]):
        raise CorruptDataError("the number of header value flags differs from the number of headers")
    flags = np.zeros(entries, np.bool_)
    flags[ends[0] : ends[-1]] = _flags(column.values)[own[0] : own[-1]]
    return flags


def _headers_to_file(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    ends, _, values = headers_columns(headers)
    ends = np.ascontiguousarray(ends)
    entries = headers.values
    pair = [_filled(entries.field(0)), _filled(entries.field(1))] if len(headers) else [pa.nulls(0, pa.binary())] * 2
    children = pa.StructArray.from_arrays(pair, fields=list(HEADERS.value_type))
    flags = number_array(~values.valid)
    buffers = [None, pa.py_buffer(ends)]
    return (
        pa.Array.from_buffers(HEADERS, len(headers), buffers, 0, children=[children]),
        pa.Array.from_buffers(FLAGS, len(headers), buffers, 0, children=[flags]),
    )


def _filled(column: pa.Array) -> pa.Array:
    """Nulls as empty bytes, without the bytes that a null may have in its buffers."""
    return pc.fill_null(column, _EMPTY) if column.null_count else column


def _with_nulls(column: pa.Array, nulls: NDArray[np.bool_]) -> pa.Array:
    if not nulls.any():
        return column
    ends, data, valid = binary_column(column)
    return binary_array(np.ascontiguousarray(ends), data, valid & ~nulls)


def _binary(column: pa.Array) -> pa.Array:
    if column.type.equals(pa.binary()):
        return column
    try:
        return column.cast(pa.binary())
    except pa.ArrowException as error:
        raise UnsupportedFormatError(f"a column of bytes is {column.type}") from error


def _numbers(found: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    """A column of integers. Unsigned 64-bit values are reinterpreted: those that are too large become negative."""
    column = found.column(name)
    if not pa.types.is_integer(column.type):
        raise UnsupportedFormatError(f"the column {name} is {column.type}, not an integer")
    if column.null_count:
        raise CorruptDataError(f"the column {name} has a null")
    if not len(column):
        return np.empty(0, np.int64)
    return number_column(column).astype(np.int64, copy=False)


def _flags(column: pa.Array) -> NDArray[np.bool_]:
    if not pa.types.is_boolean(column.type) or column.null_count:
        raise UnsupportedFormatError(f"a column of flags is {column.type}, or has nulls")
    return number_column(column) if len(column) else np.empty(0, np.bool_)


def _list_ends(column: pa.Array) -> NDArray[np.int32]:
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


_EMPTY: Final = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.zeros(2, np.int32)), pa.py_buffer(b"")])[0]
_BUILDERS: Final[dict[str, Callable[[pa.RecordBatch], pa.Array]]] = {
    "offset": lambda found: number_array(offsets_of(found)),
    "timestamp_ms": _milliseconds,
    "timestamp_type": _timestamp_types,
    "key": lambda found: _blobs(found, "key"),
    "value": lambda found: _blobs(found, "value"),
    "headers": _headers_from_file,
}
