"""What is compared with what: pairs of partitions, and by which rule their records belong together."""

from __future__ import annotations

from dataclasses import dataclass, field
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

DIFFERENCES_DEFAULT: Final = 10
WHOLE_TOPIC: Final = -1
"""In place of a partition's number, where a topic is compared as a whole."""
UNMAPPED: Final = -1
"""The place of a record that the offset map does not know."""


class Match(StrEnum):
    """Which record of the target a record of the source is compared with."""

    AUTO = "auto"
    """By the map of the restore that made the target, else by offset; as a set where partitions differ in number."""
    EXACT = "exact"
    """The one at the same offset."""
    MAPPED = "mapped"
    """The one at the offset that a restore's map says."""
    APPEND = "append"
    """The one at the same place in the order of its partition, whatever its offset."""
    SET = "set"
    """Any equal one in the topic: for topics with another number of partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """What somebody wants compared, and how. `selection` is as for a restore: its rename says what the target is."""

    selection: RestoreRequest = field(default_factory=RestoreRequest)
    match: Match = Match.AUTO
    ignored: frozenset[Field] = frozenset()
    differences: int = DIFFERENCES_DEFAULT
    """How many are shown."""
    restore: str | None = None
    """The restore that made the target; its own selection is what is compared."""

    def __post_init__(self) -> None:
        if self.match is Match.MAPPED:
            raise UsageError("which restore made the target is not said by --offsets", hint="give --restore ID")
        if self.selection.transform is not None:
            raise UsageError("records are compared as they are: where and select are for restores and conversions")
        if self.differences < 0:
            raise UsageError("a number of differences cannot be negative", hint="give --differences 0 or more")
        if self.restore is not None and self.cuts:
            raise UsageError(
                "what a restore has restored is known: --since, --until, --range, --as-of and names say it again",
                operation="compare",
                hint="give --restore with --topic, --exclude and --partition only",
            )

    @property
    def cuts(self) -> bool:
        """Whether it says itself which records are meant, so that no restore needs to be asked."""
        request = self.selection
        return bool(
            request.ranges
            or request.since_ms is not None
            or request.until_ms is not None
            or request.as_of
            or (self.restore is not None and (request.rename != RestoreRequest().rename or request.topic_ids))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Offsets [first, end) of one partition."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int

    def clipped(self, first: int, end: int) -> Extent:
        begin = min(max(self.first, first), self.end)
        return Extent(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            first=begin,
            end=max(min(self.end, end), begin),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Only records of these times are compared: `since_ms` and later, before `until_ms`."""

    since_ms: int | None = None
    until_ms: int | None = None
    cut_target: bool = False
    """Whether they cut the target as well, which a restore has done already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two partitions, or with `Match.SET` one partition of either side: the other is None then."""

    source_topic: str
    target_topic: str
    partition: int
    match: Match
    source: Extent | None
    target: Extent | None
    times: Times = field(default_factory=Times)
    restored: bool = False
    """Restored records have create time, whatever they had in the archive."""
    offset_map: OffsetMap | None = None
    notes: tuple[str, ...] = ()
    log_starts: tuple[int, int] | None = None
    """Where the log begins at the source and at the target, if that is to be the same."""
    splits: tuple[int, ...] = ()
    """Source offsets at which it may be split, in order."""
    bytes: int = 0


def parse_fields(words: Iterable[str]) -> frozenset[Field]:
    """Fields to be ignored."""
    found = set()
    for word in words:
        for name in word.split(","):
            try:
                found.add(Field(name.strip().replace("-", "_")))
            except ValueError:
                hint = f"give one of {', '.join(Field)}"
                raise UsageError(f"--ignore {name!r} is no field of a record", hint=hint) from None
    if len(found) == len(Field):
        raise UsageError("nothing is left to compare", hint="ignore fewer fields")
    return frozenset(found)


def parse_match(word: str) -> Match:
    try:
        return Match(word)
    except ValueError:
        raise UsageError(f"--offsets {word!r} is unknown", hint="give auto, exact, append or set") from None


def cut_map(found: OffsetMap, first: int, end: int) -> OffsetMap:
    """The ranges that reach into the source offsets [first, end), whole."""
    begin = int(np.searchsorted(found.source + found.count, first, side="right"))
    stop = int(np.searchsorted(found.source, end, side="left"))
    base = int(found.target[begin]) if begin < stop else found.base
    return OffsetMap(found.source[begin:stop], found.count[begin:stop], found.target[begin:stop], base)


def translate_all(found: OffsetMap, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each source offset the target's; UNMAPPED where no record was restored from it."""
    if not len(found):
        return np.full(len(offsets), UNMAPPED, np.int64)
    rows = np.searchsorted(found.source, offsets, side="right") - 1
    inside = (rows >= 0) & (offsets < (found.source + found.count)[rows])
    return np.where(inside, found.target[rows] + offsets - found.source[rows], UNMAPPED)
