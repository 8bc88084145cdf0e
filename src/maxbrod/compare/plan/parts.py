"""Cuts pairs into parts that tasks read, and derives from the digests of parts which pairs are equal. Pure.

Where records are compared by offset, both sides are cut at the same records, so that parts can be compared one by one
and only those that differ are read again. Where only the order counts, each side is cut independently. A difference
is shown short, on one line, and safe on any terminal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from maxbrod.batch.digest import Digest, Field, join
from maxbrod.compare.plan.pairs import ComparedRange, Match, Pair
from maxbrod.work.windows import spread as spread_by_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


Digests: TypeAlias = "Mapping[tuple[int, Side, int], Digest]"
"""By pair, side and number of the part."""
PART_BYTES: Final = 128 << 20
PART_OFFSETS: Final = 500_000
"""The size of a part of a live topic, whose bytes are unknown."""
_RECORD_BYTES: Final = 256
_PART_COST_BYTES: Final = 1 << 20
"""The cost of opening a connection or an object, and of the first request."""
_TASK_BYTES: Final = 512 << 20
_TASKS_PER_CORE: Final = 3
_CUT_APART: Final = frozenset({Match.APPEND, Match.SET, Match.BROUGHT})
"""It is not known which offsets of the target belong to those of the source."""

BYTES_SHOWN_MAX: Final = 48
_BEFORE: Final = 16
"""The number of bytes that are shown before the first one that differs."""
_HEADERS_SHOWN_MAX: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COLUMNS: Final = {Field.TIMESTAMP: "timestamp_ms"}
RECORD: Final = "record"
"""Stands in place of a field if one side has no such record."""
ABSENT: Final = "no record"


class Side(StrEnum):
    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePart:
    """Offsets [extent.first, extent.end) of one side of a pair. Parts with the same number hold the same records."""

    pair: int
    side: Side
    number: int
    extent: ComparedRange
    split: bool
    """True if this pair has further parts on this side."""
    cost_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairVerdict:
    """The digests of both sides of a pair, and whether they are equal."""

    source: Digest
    target: Digest
    equal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Offsets of both sides whose records differ. `skipped`: the number of equal records before them."""

    pair: int
    source: ComparedRange
    target: ComparedRange
    skipped: int = 0


# Cutting


def cut_parts(pairs: Sequence[Pair]) -> list[ComparePart]:
    """All that has to be read; parts without an offset are left out."""
    return [
        part for number, pair in enumerate(pairs) for part in _cut(number, pair) if part.extent.first < part.extent.end
    ]


def spread(parts: Sequence[ComparePart], parallelism: int) -> list[list[ComparePart]]:
    """Tasks of about the same cost, a few for each core."""
    cost = sum(part.cost_bytes for part in parts)
    count = max(_TASKS_PER_CORE * parallelism, cost // _TASK_BYTES)
    return spread_by_size([(part.cost_bytes, part) for part in parts], count)


def split_evenly(first: int, end: int) -> tuple[int, ...]:
    """Offsets to cut a live topic at."""
    return tuple(range(first + PART_OFFSETS, end - PART_OFFSETS // 2, PART_OFFSETS))


def _cut(number: int, pair: Pair) -> Iterator[ComparePart]:
    source, target = pair.source, pair.target
    if source is not None:
        yield from _parts(number, Side.SOURCE, source, _bounds(source, pair.splits), pair.bytes)
    if target is None:
        return
    if source is None or pair.match in _CUT_APART:
        yield from _parts(number, Side.TARGET, target, _bounds(target, split_evenly(target.first, target.end)), 0)
        return
    cuts = _bounds(source, pair.splits)[1:-1]
    if pair.offset_map is not None:
        cuts = [pair.offset_map.translate(offset).offset for offset in cuts]
    yield from _parts(number, Side.TARGET, target, [target.first, *cuts, target.end], pair.bytes)


def _bounds(extent: ComparedRange, splits: Sequence[int]) -> list[int]:
    return [extent.first, *(split for split in splits if extent.first < split < extent.end), extent.end]


def _parts(pair: int, side: Side, extent: ComparedRange, bounds: Sequence[int], size: int) -> Iterator[ComparePart]:
    for number, (first, end) in enumerate(pairwise(bounds)):
        part = extent.clipped(first, end)
        share = size // (len(bounds) - 1) if size else (part.end - part.first) * _RECORD_BYTES
        yield ComparePart(
            pair=pair,
            side=side,
            number=number,
            extent=part,
            split=len(bounds) > 2,
            cost_bytes=share + _PART_COST_BYTES,
        )


# Verdicts


def judge(number: int, pair: Pair, parts: Sequence[ComparePart], digests: Digests) -> PairVerdict:
    """The verdict on one pair. `parts` may include those of other pairs. A part without an offset has no digest."""
    source, target = (
        join(digests[number, side, part.number] for part in _in_order(number, side, parts)) for side in Side
    )
    # One partition proves nothing about a set: see `judge_set`.
    equal = pair.match is Match.SET or _same(source, target)
    return PairVerdict(source=source, target=target, equal=equal)


def judge_set(verdicts: Sequence[PairVerdict]) -> PairVerdict:
    """The verdict on all partitions of a topic together, in any order."""
    source, target = join(verdict.source for verdict in verdicts), join(verdict.target for verdict in verdicts)
    equal = (source.records, source.total) == (target.records, target.total)
    return PairVerdict(source=source, target=target, equal=equal)


def log_start_notes(pair: Pair) -> tuple[str, ...]:
    """A note if the logs should begin at the same offset and do not."""
    if pair.log_starts is None or pair.log_starts[0] == pair.log_starts[1]:
        return ()
    source, target = pair.log_starts
    return (f"the log starts at offset {source} in the source, and at {target} in the target",)


def log_append_notes(verdict: PairVerdict) -> tuple[str, ...]:
    """A note if brokers gave records of one side their times, and not the same ones of the other."""
    mine, its = verdict.source.log_append, verdict.target.log_append
    if mine == its:
        return ()
    told = f"{mine:,} records of the source and {its:,} of the target have log append time"
    return (f"{told}: the type of timestamps is not compared, their values are",)


def find_suspects(number: int, pair: Pair, parts: Sequence[ComparePart], digests: Digests, limit: int) -> list[Suspect]:
    """Return the ranges that hold the first differences of a pair that is not equal, at least one in each."""
    source, target = pair.source, pair.target
    if source is None or target is None or pair.match is Match.SET:
        return []
    if pair.match in _CUT_APART:
        return [_after_equal_beginning(number, source, target, parts, digests)]
    # A side without a part of some number has no records there.
    empty = {Side.SOURCE: replace(source, end=source.first), Side.TARGET: replace(target, end=target.first)}
    extents = {side: {part.number: part.extent for part in _in_order(number, side, parts)} for side in Side}
    found = []
    for each in sorted(extents[Side.SOURCE].keys() | extents[Side.TARGET].keys()):
        if not _same(*(digests.get((number, side, each), Digest()) for side in Side)):
            first, second = (extents[side].get(each, empty[side]) for side in Side)
            found.append(Suspect(pair=number, source=first, target=second))
    return found[: max(limit, 1)]


def _same(source: Digest, target: Digest) -> bool:
    return (source.records, source.sequence) == (target.records, target.sequence)


def _in_order(pair: int, side: Side, parts: Sequence[ComparePart]) -> list[ComparePart]:
    return sorted((part for part in parts if (part.pair, part.side) == (pair, side)), key=lambda part: part.number)


def _after_equal_beginning(
    number: int, source: ComparedRange, target: ComparedRange, parts: Sequence[ComparePart], digests: Digests
) -> Suspect:
    """The sides are cut at different records, so an equal beginning is known only where two cuts happen to agree."""
    starts = [_starts(number, side, parts, digests) for side in Side]
    common = [count for count in starts[0].keys() & starts[1].keys() if starts[0][count][0] == starts[1][count][0]]
    skipped = max(common, default=0)
    (_, first), (_, second) = (start.get(skipped, (Digest(), None)) for start in starts)
    return Suspect(
        pair=number,
        source=replace(source, first=source.first if first is None else first),
        target=replace(target, first=target.first if second is None else second),
        skipped=skipped,
    )


def _starts(pair: int, side: Side, parts: Sequence[ComparePart], digests: Digests) -> dict[int, tuple[Digest, int]]:
    """For each part, by the number of records before it: the digest of those records, and the part's first offset."""
    found, before = {}, Digest()
    for part in _in_order(pair, side, parts):
        found[before.records] = (before, part.extent.first)
        before = before.then(digests[pair, side, part.number])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field of one record on both sides. The offset is None on a side that has no such record."""

    source_topic: str
    target_topic: str
    partition: int
    source_offset: int | None
    target_offset: int | None
    field: str
    source: str
    target: str


def show_field(field: Field, source: dict[str, Any], target: dict[str, Any]) -> tuple[str, str]:
    """Both values of a field in which two records differ. Records are as Arrow returns them."""
    name = _COLUMNS.get(field, str(field))
    first, second = source[name], target[name]
    match field:
        case Field.TIMESTAMP:
            return _show_time(first), _show_time(second)
        case Field.KEY | Field.VALUE:
            start = _start(first, second)
            shown = show_bytes(first, start), show_bytes(second, start)
            plain = _look_alike(*shown)
            return (show_bytes(first, start, plain=True), show_bytes(second, start, plain=True)) if plain else shown
        case Field.HEADERS:
            return _show_headers(first), _show_headers(second)
        case _:
            return str(first), str(second)


def show_record(record: dict[str, Any]) -> str:
    """The whole record, if the other side has none."""
    return f"key {show_bytes(record['key'])}, value {show_bytes(record['value'])}, {_show_time(record['timestamp_ms'])}"


def show_bytes(value: bytes | None, start: int = 0, *, plain: bool = False) -> str:
    """The bytes from `start` on: text as text, all else in hexadecimal. `plain`: only ASCII counts as text."""
    if value is None:
        return "null"
    part = value[start : start + BYTES_SHOWN_MAX]
    # JSON is full of double quotes and rarely has single ones.
    quote = "'" if b'"' in part and b"'" not in part else '"'
    text = "".join(_letter(each, quote, plain=plain) for each in part.decode("utf-8", "surrogateescape"))
    whole = len(part) == len(value)
    place = "" if whole else f" (byte {start} on, of {len(value)})" if start else f" (of {len(value)} bytes)"
    return f"{'…' if start else ''}{quote}{text}{quote}{'' if start + len(part) >= len(value) else '…'}{place}"


def _letter(each: str, quote: str, *, plain: bool) -> str:
    """Python calls neither control characters nor broken UTF-8 printable, so a terminal gets none."""
    if each in {"\\", quote}:
        return f"\\{each}"
    if each.isprintable() and (each.isascii() or not plain):
        return each
    return "".join(f"\\x{byte:02x}" for byte in each.encode("utf-8", "surrogateescape"))


def _look_alike(first: str, second: str) -> bool:
    """True if two texts may look the same: accents can be composed, and other alphabets have the same shapes."""
    return _foreign(first) != _foreign(second)


def _foreign(text: str) -> list[str]:
    return sorted(each for each in text if not each.isascii())


def _start(first: bytes | None, second: bytes | None) -> int:
    if first is None or second is None or max(len(first), len(second)) <= BYTES_SHOWN_MAX:
        return 0
    shorter = min(len(first), len(second))
    equal = next((at for at in range(shorter) if first[at] != second[at]), shorter)
    return max(0, equal - _BEFORE)


def _show_headers(headers: list[dict[str, Any]]) -> str:
    shown = [f"{show_bytes(header['key'])}={show_bytes(header['value'])}" for header in headers[:_HEADERS_SHOWN_MAX]]
    more = [f"and {len(headers) - _HEADERS_SHOWN_MAX} more"] if len(headers) > _HEADERS_SHOWN_MAX else []
    return f"[{', '.join(shown + more)}]"


def _show_time(timestamp_ms: int) -> str:
    try:
        return f"{timestamp_ms} ({(_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec='milliseconds')})"
    except OverflowError:
        return str(timestamp_ms)
