"""The eight keys in the footer of a segment. The tool opens no segment that lacks one or has another name.

Two more keys are ours, and the tool ignores them. One says from which offset on the writer has read everything. Offsets
between that one and the first record never had a record, so that a reader need not wait for a segment with them. The
other one says from which offset on the source had deleted everything before that. Both travel with the segment, also if
the writer is killed before it publishes anything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maxbrod.layouts.parquet.names import SegmentName

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
    """What a segment says about itself. Both offsets are inclusive."""

    region: str
    topic: str
    partition: int
    level: int
    start: int
    end: int
    records: int
    created: str
    """RFC 3339 with up to nine fractional digits, kept as text: our clocks have fewer."""
    follows: int | None = None
    """The writer read everything from this offset on; None: not recorded, as by the tool itself."""
    deleted: int | None = None
    """The source had deleted the offsets from this one up to `follows` before they were read; None: it had not."""

    def keys(self) -> dict[str, str]:
        numbers = (self.partition, self.level, self.start, self.end, self.records)
        keys = dict(
            zip(_KEYS, (self.region, self.topic, *(str(number) for number in numbers), self.created), strict=True)
        )
        ours = {FOLLOWS: self.follows, DELETED: self.deleted}
        return keys | {key: str(offset) for key, offset in ours.items() if offset is not None}


def footer_of(
    name: SegmentName,
    *,
    region: str,
    records: int,
    follows: int | None = None,
    deleted: int | None = None,
    now: datetime | None = None,
) -> Footer:
    return Footer(
        region=region,
        topic=name.where.topic,
        partition=name.where.partition,
        level=name.level,
        start=name.start,
        end=name.end,
        records=records,
        created=rfc3339(now or datetime.now(UTC)),
        follows=follows,
        deleted=deleted,
    )


def parse_footer(found: Mapping[bytes, bytes] | None) -> Footer:
    """The values of the keys; others are ignored, as the tool does."""
    texts = {key: _text(key, (found or {}).get(key.encode())) for key in _KEYS}
    region, topic, *rest, created = (texts[key] for key in _KEYS)
    partition, level, start, end, records = (_number(key, text) for key, text in zip(_KEYS[2:7], rest, strict=True))
    follows = _offset((found or {}).get(FOLLOWS.encode()), start)
    deleted = None if follows is None else _offset((found or {}).get(DELETED.encode()), follows - 1)
    return Footer(
        region=region,
        topic=topic,
        partition=partition,
        level=level,
        start=start,
        end=end,
        records=records,
        created=created,
        follows=follows,
        deleted=deleted,
    )


def check_footer(footer: Footer, name: SegmentName) -> None:
    """CorruptDataError: the object has the name of another segment. The tool refuses it, too."""
    said = (footer.region, footer.topic, footer.partition, footer.level, footer.start, footer.end)
    region = name.region or footer.region
    named = (region, name.where.topic, name.where.partition, name.level, name.start, name.end)
    if said != named:
        raise CorruptDataError(
            f"the footer is that of another segment: {_shown(said)}",
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


def _shown(said: tuple[object, ...]) -> str:
    return "/".join(str(each)[:_SHOWN_MAX] for each in said)
