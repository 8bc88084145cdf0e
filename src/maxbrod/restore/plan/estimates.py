"""How much of a row is wanted, where a range of offsets or a time cuts it: for sums that a person reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.restore.plan.columns import RowColumns
    from maxbrod.restore.plan.request import RestoreRequest


def estimate_shares(
    columns: RowColumns, span: slice, asked: tuple[int, int], request: RestoreRequest
) -> NDArray[np.float64]:
    """Which part of each row is about wanted, as if offsets and times were spread evenly in it."""
    base, end = columns.base[span], columns.end[span]
    inside = np.clip(np.minimum(end, asked[1]) - np.maximum(base, asked[0]), 0, None)
    shares: NDArray[np.float64] = inside / np.maximum(end - base, 1)
    if request.since_ms is None and request.until_ms is None:
        return shares
    low, high = columns.lowest[span].astype(np.float64), columns.highest[span].astype(np.float64)
    length = np.maximum(high - low, 0) + 1
    since = low if request.since_ms is None else np.maximum(low, request.since_ms)
    until = high + 1 if request.until_ms is None else np.minimum(high + 1, request.until_ms)
    return np.where(columns.dated[span], shares * np.clip((until - since) / length, 0, 1), shares)


def add_shares(values: NDArray[np.int64], shares: NDArray[np.float64]) -> int:
    """Rows that are taken whole count exactly."""
    whole = shares == 1
    if whole.all():
        return int(values.sum())
    return int(values[whole].sum()) + int(np.ceil((values[~whole] * shares[~whole]).sum()))
