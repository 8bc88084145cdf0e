"""The rows that go so that topics, and the archive, fit their limits of size: the oldest first. Pure.

Such a limit is about rows of many partitions, but rows are read in portions of some. So of every row only a few numbers
are kept, 20 bytes in all, until all portions are known; then each portion is told which of its rows go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TOPIC_BYTES: Final = 11
ARCHIVE_BYTES: Final = 12
"""The reasons for which rows go: see `plan.Reason`."""
_ELIGIBLE, _STAYS, _ASKED = 1, 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRows:
    """Rows of some partitions, in order."""

    topic_ids: Sequence[str]
    topic: NDArray[np.int64]
    """The number of each row's topic in `topic_ids`."""
    reached: NDArray[np.int64]
    """The time by which rows are ordered."""
    bytes: NDArray[np.int64]
    eligible: NDArray[np.bool_]
    """Whether the row may go."""
    stays: NDArray[np.bool_]
    """Whether no other rule takes it."""
    asked: NDArray[np.bool_]
    """Whether the policy is about its topic."""


class Oversize:
    """Give it all rows by `add`, then `take` the decisions for them in the same order."""

    def __init__(self, topic_bytes_max: int | None, archive_bytes_max: int | None) -> None:
        self._topic_max, self._archive_max = topic_bytes_max, archive_bytes_max
        self._numbers: dict[str, int] = {}
        self._topic: list[NDArray[np.int32]] = []
        self._reached: list[NDArray[np.int64]] = []
        self._bytes: list[NDArray[np.int64]] = []
        self._flags: list[NDArray[np.int8]] = []
        self._reasons: NDArray[np.int8] | None = None
        self._taken = 0

    def add(self, rows: SizedRows) -> None:
        numbers = [self._numbers.setdefault(each, len(self._numbers)) for each in rows.topic_ids]
        self._topic.append(np.array(numbers, np.int32)[rows.topic])
        self._reached.append(rows.reached)
        self._bytes.append(rows.bytes)
        flags = rows.eligible * _ELIGIBLE + rows.stays * _STAYS + rows.asked * _ASKED
        self._flags.append(flags.astype(np.int8))

    def take(self, count: int) -> NDArray[np.int8]:
        """The reason why each of the next rows goes, or 0."""
        if self._reasons is None:
            self._reasons = self._decide()
        self._taken += count
        return self._reasons[self._taken - count : self._taken]

    def _decide(self) -> NDArray[np.int8]:
        topic, flags = _joined(self._topic, np.int32), _joined(self._flags, np.int8)
        reached, size = _joined(self._reached, np.int64), _joined(self._bytes, np.int64)
        for gathered in (self._topic, self._flags, self._reached, self._bytes):
            gathered.clear()
        reasons = np.zeros(len(topic), np.int8)
        if self._topic_max is not None:
            counted = (flags & _STAYS > 0) & (flags & _ASKED > 0)
            total = np.bincount(topic, weights=np.where(counted, size, 0), minlength=1).astype(np.int64)
            eligible = np.flatnonzero(flags & _ELIGIBLE)
            gone = _oldest(eligible, topic, reached, size, total - self._topic_max)
            reasons[gone] = TOPIC_BYTES
            flags[gone] = 0
        if self._archive_max is not None:
            total = np.array([size[flags & _STAYS > 0].sum()], np.int64)
            eligible = np.flatnonzero(flags & _ELIGIBLE)
            nowhere = np.zeros(len(topic), np.int8)
            reasons[_oldest(eligible, nowhere, reached, size, total - self._archive_max)] = ARCHIVE_BYTES
        return reasons


def _oldest(
    eligible: NDArray[np.int64],
    group: NDArray[np.signedinteger],
    reached: NDArray[np.int64],
    size: NDArray[np.int64],
    excess: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The oldest rows of each group, until they are as large as its excess. Rows of one age keep their order."""
    order = eligible[np.lexsort((eligible, reached[eligible], group[eligible]))]
    before = running_sum(group[order], size[order]) - size[order]
    gone: NDArray[np.int64] = order[before < excess[group[order]]]
    return gone


def running_sum(group: NDArray[np.signedinteger], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the group so far, this value included. Equal groups are neighbours."""
    if not len(values):
        return values
    sums = np.cumsum(values)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    before = np.repeat(sums[first] - values[first], np.diff(np.append(first, len(values))))
    found: NDArray[np.int64] = sums - before
    return found


def _joined(pieces: Sequence[NDArray[np.signedinteger]], kind: type[np.signedinteger]) -> NDArray[np.signedinteger]:
    return np.concatenate([np.empty(0, kind), *pieces])
