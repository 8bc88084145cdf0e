"""Writes records into a native archive: encodes Arrow columns as batches and appends them.

For new or changed records; copies of archived batches do not need it. Loads numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import number_column
from maxbrod.batch.encode import BATCH_BYTES_MAX, encode
from maxbrod.batch.headers import walk
from maxbrod.errors import RefusedError
from maxbrod.layouts.kafka.writer import PartitionWriter
from maxbrod.model import Codec

_PART_BYTES: Final = 8 << 20
"""The size of columns that are encoded at once: their batches are in memory at the same time."""


def append_records(
    writer: PartitionWriter,
    records: pa.RecordBatch,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> None:
    """Append `records` of one partition at their own offsets, which rise from call to call.

    Columns are those of RECORD_SCHEMA; missing ones get Kafka's defaults. There may be holes between the records: a
    hole that gets a row of its own is never within a batch. Batches without a codec may still be stored in frames,
    depending on the archive's compression. RefusedError: offsets do not rise.
    """
    if not records.num_rows:
        return
    offsets = number_column(records.column("offset"))
    refuse_falling(offsets, str(writer.name))
    for part in _parts(records):
        wide = np.diff(number_column(part.column("offset"))) > writer.limits.hole_offsets_min
        data = encode(part, codec=codec, level=level, batch_bytes_max=batch_bytes_max, starts=np.flatnonzero(wide) + 1)
        # The checksums have just been computed.
        writer.append(data, walk(data, check_crc=False))


def refuse_falling(offsets: NDArray[np.int64], name: str) -> None:
    """RefusedError: names the first record whose offset is not above the previous one."""
    wrong = np.flatnonzero(np.diff(offsets) <= 0)
    if wrong.size:
        raise RefusedError(
            f"a record follows offset {int(offsets[wrong[0]])} without a higher one: offsets must rise",
            operation="archive",
            object_name=name,
            offset=int(offsets[wrong[0] + 1]),
            hint="give the records of one partition in the order of their offsets, each once",
        )


def _parts(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, records.num_rows * _PART_BYTES // max(records.nbytes, 1))
    for start in range(0, records.num_rows, rows):
        yield records.slice(start, rows)
