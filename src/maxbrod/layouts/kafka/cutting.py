"""Where a run of batches is cut: at wide holes, and where a segment is full. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.layouts.kafka.pieces import DescribedBatches
    from maxbrod.layouts.kafka.slices import SegmentLimits


def at_holes(piece: DescribedBatches, limits: SegmentLimits) -> Iterator[DescribedBatches]:
    """The runs between wide holes."""
    facts = piece.facts
    wide = facts.first_offset[1:] - facts.last_offset[:-1] > limits.hole_offsets_min
    if not wide.any():
        yield piece
        return
    edges = [0, *(np.flatnonzero(wide) + 1).tolist(), len(piece)]
    for start, end in pairwise(edges):
        yield piece.take(slice(start, end))


def where_full(piece: DescribedBatches, limits: SegmentLimits, raw_bytes: int, records: int) -> int | None:
    """How many batches go into a segment that holds `raw_bytes` and `records` already; None: all, with room left."""
    full = np.flatnonzero(np.cumsum(piece.headers.size) + raw_bytes >= limits.bytes_max)
    if limits.records_max is not None:
        counted = np.flatnonzero(np.cumsum(piece.facts.records) + records >= limits.records_max)
        full = counted if not full.size or (counted.size and counted[0] < full[0]) else full
    return int(full[0]) + 1 if full.size else None
