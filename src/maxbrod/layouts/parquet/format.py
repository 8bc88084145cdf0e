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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from maxbrod.errors import CorruptDataError, UsageError
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping


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
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_REGION: Final = re.compile(r"[a-zA-Z0-9._-]{1,64}")
_INT32_MAX: Final = (1 << 31) - 1
_UINT32_MAX: Final = (1 << 32) - 1
OFFSET_MAX: Final = (1 << 63) - 1


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
    if found["topic"] in {".", ".."} or partition > _INT32_MAX or level > _UINT32_MAX or not start <= end < OFFSET_MAX:
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
    if any(_TOPIC.fullmatch(part) is None or part in {".", ".."} for part in parts):
        raise UsageError(f"{prefix!r} cannot be the folder of a tree", hint="it is a relative path, such as data")
    return "/".join((*parts, region))


def check_topic(topic: str) -> str:
    """The same topic, or UsageError: a name that Kafka does not allow could lead out of its folder."""
    if _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise UsageError(f"{topic!r} cannot be a topic")
    return topic


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
