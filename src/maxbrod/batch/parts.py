"""Batches from several buffers brought into one, in the order of their source. Loads no numba."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch.headers import BatchHeaders
from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRanges:
    """Runs of source offsets without a hole: where each begins and how many records it has. They do not touch."""

    first_offset: NDArray[np.int64]
    count: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedBatches:
    """Batches of one buffer, the source offset of each one's first record, and the offsets of all their records."""

    data: NDArray[np.uint8]
    headers: BatchHeaders
    source_offset: NDArray[np.int64]
    ranges: SourceRanges


def merged(parts: Sequence[SourcedBatches]) -> tuple[NDArray[np.uint8], BatchHeaders, NDArray[np.int64]]:
    """One copy of all batches, sorted by source offset. What already stands side by side is copied at once."""
    origin = np.repeat(np.arange(len(parts)), [len(part.headers) for part in parts])
    source_offset = np.concatenate([part.source_offset for part in parts])
    order = np.argsort(source_offset, kind="stable")
    origin = origin[order]
    position = np.concatenate([part.headers.position for part in parts])[order]
    size = np.concatenate([part.headers.size for part in parts])[order]
    begins = np.ones(len(order) + 1, np.bool_)
    begins[1:-1] = (origin[1:] != origin[:-1]) | (position[1:] != (position + size)[:-1])
    edges = np.flatnonzero(begins)
    first, last = edges[:-1], edges[1:] - 1
    runs = zip(origin[first].tolist(), position[first].tolist(), (position + size)[last].tolist(), strict=True)
    data = np.concatenate([np.empty(0, np.uint8), *(parts[each].data[start:end] for each, start, end in runs)])
    names = parts[0].headers.fields
    headers = BatchHeaders(
        position=np.cumsum(size) - size,
        size=size,
        fields={name: np.concatenate([part.headers[name] for part in parts])[order] for name in names},
        end=data.size,
        tail=0,
    )
    return data, headers, source_offset[order]


def merged_ranges(parts: Sequence[SourcedBatches], position: int) -> SourceRanges:
    """The ranges of all parts, those that touch made one. CorruptDataError: an offset below `position`, or doubled."""
    first = np.concatenate([part.ranges.first_offset for part in parts])
    order = np.argsort(first, kind="stable")
    first = first[order]
    count = np.concatenate([part.ranges.count for part in parts])[order]
    before = np.append(np.int64(position), first + count)[:-1]
    doubled = np.flatnonzero(first < before)
    if doubled.size:
        row = int(doubled[0])
        raise CorruptDataError(
            f"records stand at an offset where {int(before[row])} or more was due",
            offset=int(first[row]),
            hint="the archive holds these offsets twice, or its batches are out of order; check it",
        )
    begins = first != before
    begins[:1] = True
    rows = np.flatnonzero(begins)
    total = np.add.reduceat(count, rows) if rows.size else np.empty(0, np.int64)
    return SourceRanges(first_offset=first[rows], count=total)
