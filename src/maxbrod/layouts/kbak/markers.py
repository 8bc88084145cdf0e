"""Transaction markers that a backup without isolation holds among its records. Told apart by their bytes alone.

A marker has a key of `version i16 · type i16` (0 abort, 1 commit) and a value of `version i16 · coordinator epoch i32`,
both of version 0. Which records a transaction wrote that an abort marker ends, nothing here tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from maxbrod.batch.columns import binary_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

COLUMNS: Final = ("key", "value")
# Of its buffers, because to make it of a list Arrow would load pandas.
_KEYS: Final = binary_array(np.array([0, 4, 8], np.int32), np.frombuffer(b"\0\0\0\0\0\0\0\1", np.uint8), None)
_VALUE_BYTES: Final = 6
_VALUE_VERSION: Final = b"\0\0"


def marked(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The columns `names` of batches that have COLUMNS and `control`, which is true for each marker."""
    for batch in batches:
        index = batch.schema.get_field_index("control")
        control = _markers(batch.column("key"), batch.column("value"))
        yield batch.set_column(index, batch.schema.field(index), control).select(list(names))


def _markers(key: pa.Array, value: pa.Array) -> pa.Array:
    sized = pc.equal(pc.binary_length(value), _VALUE_BYTES)
    found = pc.and_(sized, pc.starts_with(value, pattern=_VALUE_VERSION))
    return pc.and_(pc.is_in(key, value_set=_KEYS), pc.fill_null(found, fill_value=False))
