"""Where records of a source partition stand at the target, once their offsets have changed: a list of ranges.

A range says that `count` records, at `count` consecutive offsets from `source` on, stand at as many from `target` on.
Records that follow each other on both sides are one range, so that a contiguous partition has one, whatever its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

_FIELDS: Final = 3
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    """An offset at the target. `exact`: of the very record; else of the next one that was restored."""

    offset: int
    exact: bool


@dataclass(frozen=True, slots=True, eq=False)
class OffsetMap:
    """Ranges in the order of offsets, which rise on both sides. `base` is where an empty map stands at the target."""

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
        """Of a source offset; one without a record, or before all of them, becomes the next record's.

        Beyond the last record it is the end. A group that goes on there has missed nothing and sees nothing twice.
        """
        place = int(np.searchsorted(self.source, offset, side="right")) - 1
        if place >= 0 and offset < int(self.source[place] + self.count[place]):
            return Translated(offset=int(self.target[place]) + offset - int(self.source[place]), exact=True)
        if place + 1 < len(self):
            return Translated(offset=int(self.target[place + 1]), exact=False)
        return Translated(offset=self.target_end, exact=len(self) > 0 and offset == self.source_end)

    def source_of(self, target: int) -> int | None:
        """The inverse, of a record; None where this map put none."""
        place = int(np.searchsorted(self.target, target, side="right")) - 1
        if place < 0 or target >= int(self.target[place] + self.count[place]):
            return None
        return int(self.source[place]) + target - int(self.target[place])


def build_map(source: Any, count: Any, target: Any, *, base: int) -> OffsetMap:  # noqa: ANN401 - arrays, or lists
    """From columns, one value for each batch or any other run of records; neighbours become one range.

    CorruptDataError: they do not rise, or overlap, on either side.
    """
    columns = [np.asarray(each, np.int64) for each in (source, count, target)]
    kept = columns[1] != 0
    source, count, target = (each[kept] for each in columns)
    _check(source, count, target, base)
    fresh = np.ones(len(source), np.bool_)
    fresh[1:] = (source[1:] != (source + count)[:-1]) | (target[1:] != (target + count)[:-1])
    starts = np.flatnonzero(fresh)
    merged = np.add.reduceat(count, starts) if len(starts) else count
    return OffsetMap(source[starts], merged, target[starts], base)


def join_maps(maps: Iterable[OffsetMap], *, base: int) -> OffsetMap:
    """Of parts that follow each other, such as the tasks of one partition."""
    parts = list(maps)
    columns = ([getattr(part, name) for part in parts] for name in ("source", "count", "target"))
    empty = np.zeros(0, np.int64)
    return build_map(*(np.concatenate([empty, *column]) for column in columns), base=base)


def encode_map(found: OffsetMap) -> dict[str, Any]:
    """As plain JSON values: distances instead of offsets, so that many ranges are small, and smaller in zstd."""
    source_gap = np.diff(found.source + found.count, prepend=0) - found.count
    target_gap = np.diff(found.target + found.count, prepend=found.base) - found.count
    rows = zip(source_gap.tolist(), found.count.tolist(), target_gap.tolist(), strict=True)
    return {"base": found.base, "ranges": list(chain.from_iterable(rows))}


def decode_map(document: dict[str, Any]) -> OffsetMap:
    """The map that `encode_map` wrote; CorruptDataError where it cannot be one."""
    try:
        base, values = document["base"], document["ranges"]
        if type(base) is not int or any(type(each) is not int for each in values) or len(values) % _FIELDS:
            raise TypeError(base)
        source_gap, count, target_gap = np.array(values, np.int64).reshape(-1, _FIELDS).T
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptDataError(f"an offset map cannot be read: {error!r}", operation="read an offset map") from error
    source = np.cumsum(source_gap + count) - count
    target = base + np.cumsum(target_gap + count) - count
    return build_map(source, count, target, base=base)


def _check(source: NDArray[np.int64], count: NDArray[np.int64], target: NDArray[np.int64], base: int) -> None:
    if not len(source):
        return
    fits = (source >= 0) & (count > 0) & (target >= base) & (source <= _INT64_MAX - count)
    fits &= target <= _INT64_MAX - count
    fits[1:] &= (source[1:] >= (source + count)[:-1]) & (target[1:] >= (target + count)[:-1])
    if not fits.all():
        place = int(fits.argmin())
        raise CorruptDataError(
            f"an offset map goes backwards: {count[place]} records stand at {target[place]}",
            operation="make an offset map",
            offset=int(source[place]),
        )
