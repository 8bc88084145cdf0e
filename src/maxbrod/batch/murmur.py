"""Chooses the partition of a record by its key as Kafka's Java client does: murmur2 of the key's bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maxbrod.batch import hash_kernels
from maxbrod.batch.columns import binary_column
from maxbrod.batch.kernels import sealed

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def partition_for(keys: pa.Array, count: int, *, null_partition: int) -> NDArray[np.int32]:
    """The partition, out of `count`, of each key of a binary column. A null key gets `null_partition`."""
    if count < 1 or not 0 <= null_partition < count:
        raise ValueError(f"there is no partition {null_partition} among {count}")
    column = binary_column(keys)
    chosen = np.full(len(keys), null_partition, np.int32)
    hash_kernels.partitions(*(sealed(each) for each in column), count, chosen)
    return chosen
