"""How many objects a prune would leave without a slice that stays. Pure.

A pack has slices of many partitions, and partitions are read in portions: so objects are remembered over all portions,
by 64-bit hashes of their names, in 17 bytes for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.portions import hash_paths
from maxbrod.prune.plan import Reason, SegmentPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FreedObjects:
    """The objects of all rows that were added."""

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.int64]] = []
        self._going: list[NDArray[np.int64]] = []
        self._kept: list[NDArray[np.bool_]] = []

    def add(self, plan: SegmentPlan) -> None:
        goes = pa.array(plan.reasons >= Reason.AGE)
        size = pc.if_else(goes, plan.rows["bytes"].combine_chunks(), 0)
        rows = pa.table({"path": plan.rows["path"], "going": size, "kept": pc.invert(goes).cast(pa.int8())})
        found = rows.group_by("path").aggregate([("going", "sum"), ("kept", "max")])
        self._hashes.append(hash_paths(found["path"].to_pylist()))
        self._going.append(found["going_sum"].to_numpy())
        self._kept.append(found["kept_max"].to_numpy().astype(np.bool_))

    def total(self) -> tuple[int, int]:
        """How many objects lose all their slices, and the size of those slices."""
        hashes = np.concatenate([np.empty(0, np.int64), *self._hashes])
        if not len(hashes):
            return 0, 0
        order = np.argsort(hashes)
        hashes = hashes[order]
        first = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
        kept = np.logical_or.reduceat(np.concatenate(self._kept)[order], first)
        going = np.add.reduceat(np.concatenate(self._going)[order], first)
        return int((~kept).sum()), int(going[~kept].sum())
