"""Where one segment ends and the next begins: before the next record, once the segment exceeds its maximum size.

The cut depends on the records alone, not on the batches that bring them. Writing the same records again therefore
results in the same segments with the same names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_NO_LIMIT: Final = 1 << 62


@dataclass(slots=True, kw_only=True)
class Rotation:
    """The size of the current segment. `bytes` includes what precedes its first record."""

    bytes_max: int
    records_max: int | None
    bytes_fresh: int
    bytes: int = 0
    records: int = 0

    def __post_init__(self) -> None:
        self.bytes = self.bytes_fresh

    def pieces(self, sizes: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Rows [first, last) that go into one segment, by the sizes of records, and whether they begin a new one."""
        ends = np.cumsum(sizes)
        row, done = 0, 0
        while row < len(sizes):
            begins = not self.records or self._full()
            if begins:
                self.bytes, self.records = self.bytes_fresh, 0
            fits = int(np.searchsorted(ends, done + self.bytes_max - self.bytes, side="right")) + 1
            room = _NO_LIMIT if self.records_max is None else self.records_max - self.records
            last = min(max(fits, row + 1), row + room, len(sizes))
            self.bytes += int(ends[last - 1]) - done
            self.records += last - row
            yield row, last, begins
            row, done = last, int(ends[last - 1])

    def _full(self) -> bool:
        return self.bytes > self.bytes_max or (self.records_max is not None and self.records >= self.records_max)
