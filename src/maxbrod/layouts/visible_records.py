"""The records of batches that an application may see, in portions that fit into memory when decompressed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX
from maxbrod.batch.transactions import committed_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.model import AbortedTransaction

_DECODED_BYTES: Final = 2 << 20
"""The stored bytes of a log that are decoded at once. Decompressed they may be ten times as much and more."""


class Counts(NamedTuple):
    control: int
    aborted: int


class Skipped:
    """The number of records that no application sees, by place: of control batches, and of aborted transactions."""

    def __init__(self) -> None:
        self._offsets, self._records, self._control = (np.empty(0, np.int64) for _ in range(3))

    def note(self, headers: BatchHeaders) -> None:
        """Adds batches that were left out. They follow those that are noted already."""
        self._offsets = np.concatenate([self._offsets, headers["base_offset"]])
        self._records = np.concatenate([self._records, headers["count"].clip(min=0)])
        self._control = np.concatenate([self._control, headers.control])

    def pop_before(self, end: int) -> Counts:
        """The counts of batches that begin before an offset, which are then removed."""
        count = int(np.searchsorted(self._offsets, end))
        records, control = self._records[:count], self._control[:count].astype(np.bool_)
        counts = Counts(control=int(records[control].sum()), aborted=int(records[~control].sum()))
        self._offsets, self._records, self._control = (
            each[count:] for each in (self._offsets, self._records, self._control)
        )
        return counts


@runtime_checkable
class Tallied(Protocol):
    """Records of the offsets [start, end). After they were iterated, `skipped` has the counts of those left out."""

    skipped: Skipped

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


def decode_committed(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    columns: Sequence[str] | None = None,
    skipped: Skipped | None = None,
) -> Iterator[pa.RecordBatch]:
    """The visible records of some batches, in portions that fit into memory when decompressed."""
    visible = committed_batches(headers, aborted)
    if skipped is not None and not visible.all():
        skipped.note(headers.take(~visible))
    yield from decode_portions(data, headers.take(visible), columns=columns)


def decode_portions(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    *,
    columns: Sequence[str] | None = None,
    object_name: str | None = None,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """All records of these batches, in such portions. BatchLimitError: one unpacks to more than `bytes_max`."""
    from maxbrod.batch.decode import decode_in_parts  # noqa: PLC0415 - numba: only to decode records

    portion = np.cumsum(headers.size) // _DECODED_BYTES
    names = None if columns is None else list(columns)
    for rows in np.split(np.arange(len(headers)), np.flatnonzero(np.diff(portion)) + 1):
        if rows.size:
            yield from decode_in_parts(
                data, headers.take(rows), columns=names, bytes_max=bytes_max, object_name=object_name
            )
