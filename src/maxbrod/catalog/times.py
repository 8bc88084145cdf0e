"""What the timestamps of a row say about its records. Pure.

The highest timestamp of a row comes from headers of batches. Some clients sent batches whose header has a highest
timestamp below that of the first record. Then the row does not say how new its records are, and nobody may leave it out
or delete it by its time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds


def newest_times(rows: pa.Table) -> pa.ChunkedArray:
    """The highest timestamp of each row; null if the row has none, or one below its lowest."""
    contradicts = pc.fill_null(pc.greater(rows["min_timestamp"], rows["max_timestamp"]), False)
    return pc.if_else(contradicts, None, rows["max_timestamp"])


def newest_time(lowest: int | None, highest: int | None) -> int | None:
    """The same of one row."""
    return None if lowest is not None and highest is not None and lowest > highest else highest


def may_have_since(first_ms: int) -> ds.Expression:
    """Whether a row may have a record of this time or later."""
    highest = pc.field("max_timestamp")
    return highest.is_null() | (highest >= first_ms) | _contradicts()


def may_have_until(last_ms: int) -> ds.Expression:
    """Whether a row may have a record of this time or earlier. It may, unless its lowest timestamp is exact."""
    later = pc.field("min_timestamp_exact") & (pc.field("min_timestamp") > last_ms)
    return ~pc.coalesce(later, pc.scalar(False)) | _contradicts()


def _contradicts() -> ds.Expression:
    return pc.coalesce(pc.field("min_timestamp") > pc.field("max_timestamp"), pc.scalar(False))
