"""Records as people read them: decoded where that is possible, as text or hexadecimal, and never more than was asked.

Nothing of a record is trusted: letters that a browser would not show, or that turn the direction of a line, are
written as their numbers. Pure.
"""

from __future__ import annotations

import json
import unicodedata
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.archive.selection import exact_word
from maxbrod.model import TimestampType
from maxbrod.serve.pages.command_lines import restore_words
from maxbrod.serve.pages.frame import link

if TYPE_CHECKING:
    from maxbrod.inspect.records import PassedGap, RecordPage

COUNTS: Final = (20, 50, 200)
BYTES_MAX: Final = 8 << 20
"""Records of one page, together."""
_TEXT_MAX: Final = 20_000
_HEX_MAX: Final = 1024
_LINE_MAX: Final = 110
_ROW: Final = 16
_JSON_DEPTH: Final = 64
_TIMESTAMPS: Final = {
    TimestampType.CREATE: "set by the producer",
    TimestampType.LOG_APPEND: "set by the broker",
    TimestampType.NONE: "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBytes:
    """A key, a value or a header's value."""

    size: int | None
    """None: null, which is not the same as empty."""
    form: str
    """null, empty, json, text, binary, or the name of a schema."""
    text: str | None
    """None: it is no text."""
    cut: bool
    """True if there is more than is shown."""
    hexadecimal: tuple[str, ...]
    """Lines of an offset, 16 bytes and their letters."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRecord:
    offset: int
    timestamp_ms: int
    timestamp_meaning: str
    key: ShownBytes
    value: ShownBytes
    headers: tuple[tuple[str, ShownBytes], ...]
    leader_epoch: int
    producer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBytes:
    """What a schema makes of some bytes: a value of JSON, or why not."""

    schema: str
    value: Any = None
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsView:
    topic: str
    topic_id: str | None
    partition: int
    partitions: tuple[int, ...]
    first_offset: int
    """The first offset that was asked for."""
    time_ms: int | None
    count: int
    records: tuple[ShownRecord, ...]
    gaps: tuple[PassedGap, ...]
    archived: tuple[int, int]
    """First and end offset of what the archive has of the partition."""
    previous_href: str | None
    next_href: str | None
    json_href: str
    restore_command: str | None
    """The command for exactly these offsets."""
    planner_href: str | None
    topic_href: str
    schemas: str | None
    """Why values are not decoded by schemas, if there are some."""


def visible(text: str) -> str:
    """Text in which every letter can be seen and none changes how the others are shown."""
    return "".join(
        letter
        if letter in "\n\t" or not unicodedata.category(letter).startswith(("C", "Zl", "Zp"))
        else f"\\u{{{ord(letter):x}}}"
        for letter in text
    )


def shown_bytes(data: bytes | None, decoded: DecodedBytes | None = None) -> ShownBytes:
    """How a browser shows some bytes. `decoded`: what a schema made of them."""
    if data is None:
        return ShownBytes(size=None, form="null", text=None, cut=False, hexadecimal=())
    note = None if decoded is None else decoded.why
    if not data:
        return ShownBytes(size=0, form="empty", text="", cut=False, hexadecimal=(), note=note)
    form, text = _text_of(data)
    if decoded is not None and decoded.why is None:
        form, text = decoded.schema, _json_text(decoded.value)
    cut = text is not None and len(text) > _TEXT_MAX
    return ShownBytes(
        size=len(data),
        form=form,
        text=None if text is None else visible(text[:_TEXT_MAX]),
        cut=cut or (text is None and len(data) > _HEX_MAX),
        hexadecimal=hex_lines(data[:_HEX_MAX]),
        note=note,
    )


def _text_of(data: bytes) -> tuple[str, str | None]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "binary", None
    if text.lstrip()[:1] in {"{", "["}:
        try:
            found = strict_json.parse(data, depth_max=_JSON_DEPTH)
            return "json", _json_text(found)
        except (ValueError, TypeError):
            pass
    # Bytes that are text by chance: a number in 8 bytes is mostly zeros.
    control = sum(unicodedata.category(letter) == "Cc" and letter not in "\r\n\t" for letter in text)
    return ("binary", None) if control * 4 > len(text) else ("text", text)


def _json_text(value: Any) -> str:  # noqa: ANN401 - any JSON
    """On one line if that is short: a page of records is read from top to bottom."""
    line = json.dumps(value, ensure_ascii=False, default=_plain)
    return line if len(line) <= _LINE_MAX else json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def hex_lines(data: bytes) -> tuple[str, ...]:
    """As `hexdump -C` prints them."""
    lines = []
    for start in range(0, len(data), _ROW):
        part = data[start : start + _ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{_ROW * 3 - 1}}  {letters}")
    return tuple(lines)


def shown_records(
    rows: Sequence[Mapping[str, Any]],
    decoded: Mapping[str, Sequence[DecodedBytes | None]],
) -> tuple[ShownRecord, ...]:
    """`rows` are records as `RECORD_SCHEMA`; `decoded` has for `key` and `value` what schemas made of each."""
    nothing = [None] * len(rows)
    keys, values = (decoded.get(part, nothing) for part in ("key", "value"))
    return tuple(
        ShownRecord(
            offset=row["offset"],
            timestamp_ms=row["timestamp_ms"],
            timestamp_meaning=_TIMESTAMPS[TimestampType(row["timestamp_type"])],
            key=shown_bytes(row["key"], key),
            value=shown_bytes(row["value"], value),
            headers=tuple(
                (visible(header["key"].decode(errors="replace")), shown_bytes(header["value"]))
                for header in row["headers"] or ()
            ),
            leader_epoch=row["leader_epoch"],
            producer=None if row["producer_id"] < 0 else _producer(row),
        )
        for row, key, value in zip(rows, keys, values, strict=True)
    )


def _producer(row: Mapping[str, Any]) -> str:
    kind = "transactional producer" if row["transactional"] else "producer"
    return f"{kind} {row['producer_id']}, epoch {row['producer_epoch']}, sequence {row['sequence']}"


def records_view(
    slug: str,
    url: str,
    page: RecordPage,
    decoded: Mapping[str, Sequence[DecodedBytes | None]],
    *,
    topic: str,
    topic_id: str | None,
    partition: int,
    partitions: Sequence[int],
    archived: tuple[int, int],
    first: int,
    count: int,
    time_ms: int | None = None,
    schemas: str | None = None,
) -> RecordsView:
    """`topic_id` is None for the newest topic of this name; `archived` is what there is of the partition."""
    records = shown_records(page.records.to_pylist(), decoded)
    given = {"name": topic, "id": topic_id, "partition": partition, "count": count}
    covered = (records[0].offset, records[-1].offset + 1) if records else None
    back = max(first - count, archived[0])
    word = None if covered is None else f"{topic}:{partition}:{covered[0]}..{covered[1]}"
    chosen = {"topics": [exact_word(topic)], "topic_ids": [] if topic_id is None else [topic_id], "ranges": [word]}
    return RecordsView(
        topic=topic,
        topic_id=topic_id,
        partition=partition,
        partitions=tuple(partitions),
        first_offset=first,
        time_ms=time_ms,
        count=count,
        records=records,
        gaps=page.gaps,
        archived=archived,
        previous_href=link(slug, "records", **given, offset=back) if first > archived[0] else None,
        next_href=None if page.next_offset is None else link(slug, "records", **given, offset=page.next_offset),
        json_href=link(slug, "records.json", **given, offset=first),
        restore_command=None if word is None else restore_words(chosen, place=("--archive", url)),
        planner_href=None
        if word is None
        else link(slug, "restore", topics=exact_word(topic), topic_ids=topic_id, ranges=word),
        topic_href=link(slug, "topic", name=topic, id=topic_id),
        schemas=schemas,
    )


def records_document(view: RecordsView, page: RecordPage) -> dict[str, Any]:
    """What the page shows, as JSON: text where the bytes are text, else base64. Nothing is cut."""
    return {
        "topic": view.topic,
        "topic_id": view.topic_id,
        "partition": view.partition,
        "first_offset": view.first_offset,
        "records": [_document(row) for row in page.records.to_pylist()],
        "gaps": [
            {"first_offset": gap.first_offset, "end_offset": gap.end_offset, "reason": gap.reason} for gap in view.gaps
        ],
    }


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "offset": row["offset"],
        "timestamp_ms": row["timestamp_ms"],
        **_value("key", row["key"]),
        **_value("value", row["value"]),
        "headers": [
            {"name": header["key"].decode(errors="replace"), **_value("value", header["value"])}
            for header in row["headers"] or ()
        ],
    }


def _value(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}
