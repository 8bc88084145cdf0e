"""The records of batches that an application may see, in portions that fit into memory when they are unpacked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.transactions import committed_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.model import AbortedTransaction

_DECODED_BYTES: Final = 2 << 20
"""So much of a log is decoded at once, as it is stored: ten times as much and more when it is unpacked."""


def decode_committed(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The visible records of some batches, in portions that fit into memory when they are unpacked."""
    yield from decode_portions(data, headers.take(committed_batches(headers, aborted)), columns=columns)


def decode_portions(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    *,
    columns: Sequence[str] | None = None,
    object_name: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """All records of these batches, in such portions."""
    from maxbrod.batch.decode import decode  # noqa: PLC0415 - numba: only where records are looked at

    portion = np.cumsum(headers.size) // _DECODED_BYTES
    wanted = None if columns is None else list(columns)
    for rows in np.split(np.arange(len(headers)), np.flatnonzero(np.diff(portion)) + 1):
        if rows.size:
            yield decode(data, headers.take(rows), columns=wanted, object_name=object_name)
