"""Pairs of partitions to compare, and the rule that matches their records.

Equality is defined here and in `compaction`, once for every verb: two sides are equal if a reader may rely on the same
things. What does not count is named in the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.digest import Field
from maxbrod.errors import UsageError
from maxbrod.restore.plan.mapping import OffsetMap
from maxbrod.restore.plan.request import RestoreRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

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


def parse_match(word: str) -> Match:
    try:
        return Match(word)
    except ValueError:
        raise UsageError(f"--offsets {word!r} is unknown", hint="give auto, exact, append or set") from None


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
