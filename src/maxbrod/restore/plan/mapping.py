"""The target offsets of a source partition's records, where a restore changes offsets: a list of ranges.

A range says that `count` records at consecutive offsets from `source` on are at consecutive offsets from `target` on.
Records that are adjacent on both sides form one range, so a contiguous partition has one range, whatever its size.

In a topic that gets another number of partitions, keys are hashed again, so the records of a source partition are
distributed among the target's partitions. A share is a run of records in a target partition that come from one source
partition. A group continues at the first share that may hold a record which the group has not processed: it skips
nothing, and the records that it may see twice are counted. Shares end where an archived group stood, so for archived
groups both are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from maxbrod.errors import CorruptDataError

_FIELDS: Final = 3
_INT64_MAX: Final = 2**63 - 1

_SHARE_FIELDS: Final = 4


class Translated(NamedTuple):
    """A target offset. `exact`: it is the offset of the same record, not of the next record that was restored."""

    offset: int
    exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class OffsetMap:
    """Ranges in the order of offsets, which rise on both sides. `base` is the target offset of the first record."""

    source: NDArray[np.int64]
    count: NDArray[np.int64]
    target: NDArray[np.int64]
    base: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.source.tolist(), self.count.tolist(), self.target.tolist(), strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetMap) and (self.base, list(self)) == (other.base, list(other))

    def __hash__(self) -> int:
        return hash((self.base, len(self), self.target_end))

    @property
    def records(self) -> int:
        return int(self.count.sum())

    @property
    def target_end(self) -> int:
        """The first offset at the target that no restored record has."""
        return int(self.target[-1] + self.count[-1]) if len(self) else self.base

    @property
    def source_end(self) -> int:
        """The first source offset after the last restored record."""
        return int(self.source[-1] + self.count[-1]) if len(self) else 0

    def translate(self, offset: int) -> Translated:
        """The target offset for a source offset; without a record there, that of the next restored record.

        Beyond the last record it is the end. A group that continues there misses no record and sees none twice.
        """
        place = int(np.searchsorted(self.source, offset, side="right")) - 1
        if place >= 0 and offset < int(self.source[place] + self.count[place]):
            return Translated(offset=int(self.target[place]) + offset - int(self.source[place]), exact=True)
        if place + 1 < len(self):
            return Translated(offset=int(self.target[place + 1]), exact=False)
        return Translated(offset=self.target_end, exact=len(self) > 0 and offset == self.source_end)


def build_map(source: Any, count: Any, target: Any, *, base: int) -> OffsetMap:  # noqa: ANN401 - arrays, or lists
    """A map from columns with one value for each batch or other run of records; adjacent runs become one range.

    CorruptDataError: offsets overlap or go backwards on either side.
    """
    columns = [np.asarray(column, np.int64) for column in (source, count, target)]
    kept = columns[1] != 0
    source, count, target = (column[kept] for column in columns)
    _check(source, count, target, base)
    fresh = np.ones(len(source), np.bool_)
    fresh[1:] = (source[1:] != (source + count)[:-1]) | (target[1:] != (target + count)[:-1])
    starts = np.flatnonzero(fresh)
    merged = np.add.reduceat(count, starts) if len(starts) else count
    return OffsetMap(source[starts], merged, target[starts], base)


def encode_map(found: OffsetMap) -> dict[str, Any]:
    """The map as plain JSON values: distances instead of offsets, which are short and compress well."""
    source_gap = np.diff(found.source + found.count, prepend=0) - found.count
    target_gap = np.diff(found.target + found.count, prepend=found.base) - found.count
    rows = zip(source_gap.tolist(), found.count.tolist(), target_gap.tolist(), strict=True)
    return {"base": found.base, "ranges": list(chain.from_iterable(rows))}


def decode_map(document: Mapping[str, Any]) -> OffsetMap:
    """The map that `encode_map` wrote. CorruptDataError: it is not one."""
    base, (source_gap, count, target_gap) = decode_columns(document, "ranges", _FIELDS)
    source = np.cumsum(source_gap + count) - count
    target = base + np.cumsum(target_gap + count) - count
    return build_map(source, count, target, base=base)


def decode_columns(document: Mapping[str, Any], name: str, width: int) -> tuple[int, NDArray[np.int64]]:
    """`base`, and as columns the numbers that are stored row by row under `name`. CorruptDataError: not numbers."""
    try:
        base, values = document["base"], document[name]
        if type(base) is not int or any(type(value) is not int for value in values):
            raise TypeError(base)
        return base, np.array(values, np.int64).reshape(-1, width).T
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptDataError(f"an offset map cannot be read: {error!r}", operation="read an offset map") from error


def _check(source: NDArray[np.int64], count: NDArray[np.int64], target: NDArray[np.int64], base: int) -> None:
    if not len(source):
        return
    fits = (source >= 0) & (count > 0) & (target >= base) & (source <= _INT64_MAX - count)
    fits &= target <= _INT64_MAX - count
    fits[1:] &= (source[1:] >= (source + count)[:-1]) & (target[1:] >= (target + count)[:-1])
    if not fits.all():
        place = int(fits.argmin())
        raise CorruptDataError(
            f"an offset map goes backwards: {count[place]} records are at {target[place]}",
            operation="make an offset map",
            offset=int(source[place]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordShare:
    """All records of source offsets [first, end) in one target partition, at `count` offsets from `base` on."""

    partition: int
    """The source partition."""
    first: int
    end: int
    base: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePosition:
    offset: int
    seen_twice_max: int


def find_position(shares: Sequence[RecordShare], committed: Mapping[int, int], *, base: int) -> SharePosition:
    """The offset of a group in one target partition, whose shares are in the order of the log from `base` on.

    `committed` is the group's offset in each source partition. The group has read nothing of partitions without one.
    """
    for place, share in enumerate(shares):
        if share.count > 0 and committed.get(share.partition, 0) < share.end:
            seen_twice_max = sum(_processed(later, committed) for later in shares[place:])
            return SharePosition(offset=share.base, seen_twice_max=seen_twice_max)
    return SharePosition(offset=shares[-1].base + shares[-1].count if shares else base, seen_twice_max=0)


def encode_shares(shares: Sequence[RecordShare], *, base: int) -> dict[str, Any]:
    """The shares as plain JSON values. They are adjacent in the log from `base` on, so only counts are stored."""
    rows = ((share.partition, share.first, share.end - share.first, share.count) for share in shares)
    return {"base": base, "shares": list(chain.from_iterable(rows))}


def decode_shares(document: Mapping[str, Any]) -> tuple[int, tuple[RecordShare, ...]]:
    """The base and the shares that `encode_shares` wrote. CorruptDataError: it did not write them."""
    base, columns = decode_columns(document, "shares", _SHARE_FIELDS)
    if (columns < 0).any():
        raise CorruptDataError("an offset map cannot be read: it has a number below 0", operation="read an offset map")
    partition, first, length, count = columns
    rows = (partition, first, first + length, base + np.cumsum(count) - count, count)
    return base, tuple(
        RecordShare(partition=partition, first=first, end=end, base=start, count=count)
        for partition, first, end, start, count in zip(*(row.tolist() for row in rows), strict=True)
    )


def _processed(share: RecordShare, committed: Mapping[int, int]) -> int:
    """An upper bound: the offsets of the share below the group's, as if all their records were in this share."""
    return min(share.count, max(committed.get(share.partition, 0) - share.first, 0))
