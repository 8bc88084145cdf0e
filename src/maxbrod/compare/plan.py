"""Pairs of partitions to compare, and the rule that matches their records.

Equality is defined here and in `compaction`, once for every verb: two sides are equal if a reader may rely on the same
things. What does not count is named in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.digest import Digest, Field, join
from maxbrod.errors import UsageError
from maxbrod.restore.plan.mapping import OffsetMap
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.work.windows import spread as spread_by_size

if TYPE_CHECKING:
    from maxbrod.batch.erased import ErasedRecords
    from maxbrod.batch.schema_ids import SchemaIdMap
    from maxbrod.layouts.kafka.format import Slice

DIFFERENCES_DEFAULT: Final = 10
WHOLE_TOPIC: Final = -1
"""Stands in place of a partition number if a topic is compared as a whole."""
NEVER_COMPARED: Final = frozenset({Field.TIMESTAMP_TYPE})
"""Who gave a record its time. Restored and mirrored records keep the time that brokers gave them, as their create time:
the value counts, its type does not."""
UNMAPPED: Final = -1
"""The place of a record that the offset map does not contain."""


class Match(StrEnum):
    """The rule that gives the record of the target with which a record of the source is compared."""

    AUTO = "auto"
    """By the map of the restore that made the target, else by offset; as a set if the partition counts differ."""
    EXACT = "exact"
    """The record at the same offset."""
    MAPPED = "mapped"
    """The record at the offset that a restore's map gives."""
    APPEND = "append"
    """The record at the same position in its partition, whatever its offset."""
    SET = "set"
    """Any equal record of the topic: for topics with different partition counts."""
    BROUGHT = "brought"
    """The record whose headers name the offset: for topics that a replication link appends to, and others as well."""


BY_OFFSET: Final = frozenset({Match.EXACT, Match.MAPPED, Match.BROUGHT})
"""The place of a record is an offset; otherwise only its order counts, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """A request for a comparison. `selection` is that of a restore: its rename names the target topics."""

    selection: RestoreRequest = field(default_factory=RestoreRequest)
    match: Match = Match.AUTO
    ignored: frozenset[Field] = frozenset()
    differences: int = DIFFERENCES_DEFAULT
    """The number of differences that are shown."""
    schema_registry: str | None = None
    """Compare the captured schemas with the registry at this URL, too."""
    restore: str | None = None
    """The restore that made the target; what it selected is compared."""
    shared: bool = False
    """The ranges are what both sides are known to have, and nobody's question: what was pruned since is not missed."""

    def __post_init__(self) -> None:
        if self.match is Match.MAPPED:
            raise UsageError("--offsets does not name the restore that made the target", hint="give --restore ID")
        if self.match is Match.BROUGHT:
            raise UsageError("--offsets does not name the link", hint="give 'maxbrod replicate verify' its options")
        if self.selection.transform is not None:
            raise UsageError(
                "a comparison does not transform records: where and select are for restores and conversions"
            )
        if self.differences < 0:
            raise UsageError("a number of differences cannot be negative", hint="give --differences 0 or more")
        if self.restore is not None and self.cuts:
            raise UsageError(
                "--restore selects the records: --since, --until, --range, --as-of and names cannot be given too",
                operation="compare",
                hint="give --restore with --topic, --exclude and --partition only",
            )

    @property
    def cuts(self) -> bool:
        """True if the request itself selects the records, so that no restore has to be found."""
        request = self.selection
        return bool(
            request.ranges
            or request.since_ms is not None
            or request.until_ms is not None
            or request.as_of
            or (self.restore is not None and (request.rename != RestoreRequest().rename or request.topic_ids))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRange:
    """Offsets [first, end) of one partition."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int

    def clipped(self, first: int, end: int) -> ComparedRange:
        begin = min(max(self.first, first), self.end)
        return replace(self, first=begin, end=max(min(self.end, end), begin))


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtRecords:
    """The records that a link has appended to a topic: those of source offsets [first, end)."""

    restore_id: str
    """Their headers name it."""
    left_out: tuple[str, ...]
    """Records of the source that have been at one of these places were not appended."""
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Compare only records with timestamps in [since_ms, until_ms)."""

    since_ms: int | None = None
    until_ms: int | None = None
    cut_target: bool = False
    """True if records of the target are selected by time too; a restore has done so already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two partitions, or with `Match.SET` one partition of either side: the other is None then."""

    source_topic: str
    target_topic: str
    partition: int
    match: Match
    source: ComparedRange | None
    target: ComparedRange | None
    times: Times = field(default_factory=Times)
    offset_map: OffsetMap | None = None
    brought: BroughtRecords | None = None
    """The records of the target that are compared, if others have written to it too."""
    notes: tuple[str, ...] = ()
    log_starts: tuple[int, int] | None = None
    """The offsets at which the logs of source and target begin, if both must begin at the same offset."""
    splits: tuple[int, ...] = ()
    """Source offsets at which the pair may be split, ascending."""
    bytes: int = 0
    slices: tuple[Slice, ...] = ()
    """Those that the source is read from, if it is an archive."""
    revision: int = 0
    """The revision of the archive's rows."""
    compacted: bool = False
    """True if the archive says that compaction removed records before they were archived."""
    schema_ids: SchemaIdMap | None = None
    """Compare the records of the source with these schema ids, which a restore has given them."""
    erased: ErasedRecords | None = None
    """Records that the archive leaves out, and so must the target, where offsets are the same."""

    def extent(self, side: Side) -> ComparedRange | None:
        return self.source if side is Side.SOURCE else self.target

    def topic(self, side: Side) -> str:
        return self.source_topic if side is Side.SOURCE else self.target_topic


def parse_fields(words: Iterable[str]) -> frozenset[Field]:
    """The fields to ignore, from words such as `key,timestamp-type`."""
    fields = set()
    for word in words:
        for name in word.split(","):
            try:
                fields.add(Field(name.strip().replace("-", "_")))
            except ValueError:
                hint = f"give one of {', '.join(Field)}"
                raise UsageError(f"--ignore {name!r} is not a field of a record", hint=hint) from None
    if fields | NEVER_COMPARED == set(Field):
        raise UsageError("--ignore names every field, so nothing is left to compare", hint="ignore fewer fields")
    return frozenset(fields)


def cut_map(found: OffsetMap, first: int, end: int) -> OffsetMap:
    """The map with only those ranges, whole, that overlap the source offsets [first, end)."""
    begin = int(np.searchsorted(found.source + found.count, first, side="right"))
    stop = int(np.searchsorted(found.source, end, side="left"))
    base = int(found.target[begin]) if begin < stop else found.base
    return OffsetMap(found.source[begin:stop], found.count[begin:stop], found.target[begin:stop], base)


def translate_all(found: OffsetMap, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The target offset of each source offset; UNMAPPED where no record was restored from it."""
    if not len(found):
        return np.full(len(offsets), UNMAPPED, np.int64)
    rows = np.searchsorted(found.source, offsets, side="right") - 1
    inside = (rows >= 0) & (offsets < (found.source + found.count)[rows])
    return np.where(inside, found.target[rows] + offsets - found.source[rows], UNMAPPED)


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
    for partition in sorted(extents[Side.SOURCE].keys() | extents[Side.TARGET].keys()):
        if not _same(*(digests.get((number, side, partition), Digest()) for side in Side)):
            first, second = (extents[side].get(partition, empty[side]) for side in Side)
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
