"""The names of millions of objects in little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray


def hash_paths(paths: Iterable[str]) -> NDArray[np.int64]:
    """64 bits for each name: Python's own keyed hash (SipHash), which differs from process to process.

    Two of five million names have the same hash with a probability of less than one in a million.
    """
    return np.fromiter(map(hash, paths), np.int64)


class PathSet:
    """A set of names, in 8 bytes for each. It may contain a name that was not added, but never lacks one that was.

    So whoever deletes what is not in it deletes nothing that is named.
    """

    def __init__(self) -> None:
        self._new: list[NDArray[np.int64]] = []
        self._sorted: NDArray[np.int64] = np.empty(0, np.int64)

    def add(self, paths: Iterable[str]) -> None:
        self._new.append(np.unique(hash_paths(paths)))

    def __contains__(self, path: object) -> bool:
        hashed = hash(path)
        known = self._all()
        place = int(np.searchsorted(known, hashed))
        return place < len(known) and int(known[place]) == hashed

    def _all(self) -> NDArray[np.int64]:
        if self._new:
            self._sorted = np.unique(np.concatenate([self._sorted, *self._new]))
            self._new = []
        return self._sorted
