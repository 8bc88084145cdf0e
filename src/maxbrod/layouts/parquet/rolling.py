"""When a segment is full: cuts a run of records into segments by their bytes, their number and the time that passes.

The bytes are those of keys, values and headers, before Parquet and compression make something else of them, as the
tool counts them. A segment has one record at least, however large that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from maxbrod.batch.columns import binary_column, headers_columns, number_column
from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

BYTES_MAX: Final = 64 << 20
"""The tool's own default is 100 MiB. A segment is built in memory, and several may be at once."""
RECORDS_MAX: Final = 1_000_000
SECONDS_MAX: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """A segment is complete when it has reached one of them. `seconds` counts from its first record's arrival."""

    bytes_max: int = BYTES_MAX
    records_max: int = RECORDS_MAX
    seconds_max: float = SECONDS_MAX

    def __post_init__(self) -> None:
        if self.bytes_max < 1 or self.records_max < 1 or self.seconds_max <= 0:
            raise UsageError(f"a segment cannot be limited to {self}")


def roll(
    records: Iterable[pa.RecordBatch],
    thresholds: Thresholds,
    *,
    after: int = -1,
    clock: Callable[[], float] = monotonic,
) -> Iterator[list[pa.RecordBatch]]:
    """The records of one segment after the other. UsageError: one does not come behind the last, or behind `after`."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_records = 0
    began = clock()
    for batch in records:
        rest = _data(batch)
        if rest.num_rows:
            after = _check_order(rest, after)
        while rest.num_rows:
            began = began if held else clock()
            sizes = np.cumsum(record_bytes(rest))
            room = (thresholds.bytes_max - held_bytes, thresholds.records_max - held_records)
            rows = min(int(np.searchsorted(sizes, room[0])) + 1, room[1], rest.num_rows)
            held.append(rest.slice(0, rows))
            held_bytes, held_records = held_bytes + int(sizes[rows - 1]), held_records + rows
            rest = rest.slice(rows)
            full = held_bytes >= thresholds.bytes_max or held_records >= thresholds.records_max
            if full or clock() - began >= thresholds.seconds_max:
                yield held
                held, held_bytes, held_records = [], 0, 0
    if held:
        yield held


def record_bytes(records: pa.RecordBatch) -> NDArray[np.int64]:
    """The bytes of each record: key, value, and keys and values of its headers."""
    sizes = np.zeros(records.num_rows, np.int64)
    for name in ("key", "value"):
        sizes += np.diff(binary_column(records.column(name)).ends)
    ends, keys, values = headers_columns(records.column("headers"))
    for column in (keys, values):
        if column.valid.size:
            sizes += np.diff(column.ends[ends])
    return sizes


def _data(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without control records: no consumer ever sees them, so the tool never wrote one."""
    control = batch.column("control")
    return batch.filter(pc.invert(control)) if batch.num_rows and number_column(control).any() else batch


def _check_order(batch: pa.RecordBatch, after: int) -> int:
    offsets = number_column(batch.column("offset"))
    if offsets[0] <= after or (np.diff(offsets) <= 0).any():
        raise UsageError(
            f"records from offset {int(offsets[0])} on do not follow offset {after} in order",
            offset=int(offsets[0]),
            hint="go on behind what the archive has",
        )
    return int(offsets[-1])
