"""The position of a stream: how far each partition is read, and which gaps below that may still be filled. Pure.

Spark writes it into the stream's checkpoint, as one line of JSON. It holds offsets, and never objects, rows or versions
of the catalog. So folding, compaction and `gc` do not affect it, and a batch that is planned again has the same
records. See docs/table.md for the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from maxbrod.bounds import count_partitions
from maxbrod.errors import UnsupportedFormatError
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT_FIELD: Final = "maxbrod.stream"
FORMAT_VERSION: Final = 1
Range: TypeAlias = tuple[int, int]
"""Offsets [first, end)."""


@dataclass(frozen=True, slots=True)
class StreamMark:
    """The offset up to which one partition is read."""

    end: int
    epoch: int
    """The highest leader epoch that was read. A log that was truncated and written again has higher ones."""
    open: tuple[Range, ...] = ()
    """Gaps below `end` that a later run may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    marks: Mapping[PartitionId, StreamMark]
    begins: Mapping[PartitionId, int] = field(default_factory=dict)
    """The first offsets of the batch that ends here, for partitions that did not begin at the mark before."""


def encode_start(starting: str) -> dict[str, Any]:
    """The start of a new stream, before the archive is opened. The end of the first batch records what it means."""
    return {FORMAT_FIELD: FORMAT_VERSION, "starting": starting}


def is_start(document: Mapping[str, Any]) -> bool:
    return "starting" in _checked(document)


def encode_position(position: StreamPosition) -> dict[str, Any]:
    """The same document for the same position, in whatever order it was made, because Spark compares the text."""
    marks = dict(sorted(position.marks.items()))
    opened = {each: [list(gap) for gap in mark.open] for each, mark in marks.items() if mark.open}
    document: dict[str, Any] = {
        FORMAT_FIELD: FORMAT_VERSION,
        "ends": _lists({each: [mark.end, mark.epoch] for each, mark in marks.items()}),
    }
    if opened:
        document["open"] = _by_number(opened)
    if position.begins:
        document["from"] = _by_number(dict(sorted(position.begins.items())))
    return document


def decode_position(document: Mapping[str, Any]) -> StreamPosition:
    """UnsupportedFormatError: not written by this source, or by a newer release."""
    _checked(document)
    opened = document.get("open", {})
    marks = {
        PartitionId(topic_id=topic_id, partition=number): StreamMark(
            pair[0], pair[1], tuple((first, end) for first, end in opened.get(topic_id, {}).get(str(number), ()))
        )
        for topic_id, pairs in document["ends"].items()
        for number, pair in enumerate(pairs)
        if pair is not None
    }
    begins = {
        PartitionId(topic_id=topic_id, partition=int(number)): offset
        for topic_id, offsets in document.get("from", {}).items()
        for number, offset in offsets.items()
    }
    return StreamPosition(marks=marks, begins=begins)


def without(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """The ranges minus those `taken`, in order. Neither list may overlap itself."""
    left: list[Range] = []
    for first, end in sorted(ranges):
        at = first
        for taken_first, taken_end in sorted(taken):
            if taken_first >= end or taken_end <= at:
                continue
            if taken_first > at:
                left.append((at, taken_first))
            at = min(taken_end, end)
        if at < end:
            left.append((at, end))
    return left


def ranges_between(start: StreamPosition | None, end: StreamPosition) -> dict[PartitionId, list[Range]]:
    """The offsets of the batch from `start` (None: the stream's beginning) to `end`, by partition."""
    found: dict[PartitionId, list[Range]] = {}
    for each, mark in end.marks.items():
        before = None if start is None else start.marks.get(each)
        first = end.begins[each] if before is None or each in end.begins else before.end
        # An open gap beyond a truncation belongs to a history that no longer exists.
        again = [] if before is None else [(low, min(high, first)) for low, high in before.open if low < first]
        fresh = [(first, mark.end)] if first < mark.end else []
        if ranges := without([*again, *fresh], mark.open):
            found[each] = ranges
    return found


def _checked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    version = document.get(FORMAT_FIELD)
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise UnsupportedFormatError(
            f"the checkpoint holds no position that this release can read: its version is {version!r}",
            operation="follow an archive",
            hint="it belongs to another query or to a newer release; give the stream a checkpoint of its own",
        )
    return document


def _lists(values: Mapping[PartitionId, list[int]]) -> dict[str, list[list[int] | None]]:
    """By partition number; null for a partition that is not followed."""
    lists: dict[str, list[list[int] | None]] = {}
    count_partitions((each.topic_id, each.partition) for each in values)
    for each, value in values.items():
        numbers = lists.setdefault(each.topic_id, [])
        numbers.extend([None] * (each.partition - len(numbers)))
        numbers.append(value)
    return lists


def _by_number(values: Mapping[PartitionId, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each, value in values.items():
        found.setdefault(each.topic_id, {})[str(each.partition)] = value
    return found
