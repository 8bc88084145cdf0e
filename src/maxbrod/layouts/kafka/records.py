"""Records on their way into a native archive: Arrow columns become batches, which a partition's writer takes.

What stands in an archive already goes from batch to batch without this; here is for records that somebody made or
changed. Loads numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.batch.encode import BATCH_BYTES_MAX, encode
from maxbrod.batch.headers import walk
from maxbrod.errors import RefusedError
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.layouts.kafka.partition import PartitionWriter

_PORTION_BYTES: Final = 8 << 20
"""So much, as columns, is encoded at once: the batches stand in memory beside it."""


def append_records(
    writer: PartitionWriter,
    records: pa.RecordBatch,
    *,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> None:
    """Append `records` of one partition at the offsets that they name, which rise from call to call.

    Columns are those of RECORD_SCHEMA; what is left out gets Kafka's default. Holes may be between the records: one so
    wide that the writer gives it a row of its own is never within a batch. Batches without a codec may still go into
    frames, as the archive's compression says. RefusedError: offsets do not rise.
    """
    if not records.num_rows:
        return
    offsets = number_column(records.column("offset"))
    refuse_falling(offsets, str(writer.name))
    for portion in _portions(records):
        wide = np.diff(number_column(portion.column("offset"))) > writer.hole_offsets_min
        data = encode(
            portion, codec=codec, level=level, batch_bytes_max=batch_bytes_max, starts=np.flatnonzero(wide) + 1
        )
        # The checksums were computed a moment ago.
        writer.append(data, walk(data, check_crc=False))


def refuse_falling(offsets: NDArray[np.int64], name: str) -> None:
    """RefusedError names the first record that stands at or below the one before it."""
    wrong = np.flatnonzero(np.diff(offsets) <= 0)
    if wrong.size:
        raise RefusedError(
            f"a record stands behind offset {int(offsets[wrong[0]])}, where offsets must rise",
            operation="archive",
            object_name=name,
            offset=int(offsets[wrong[0] + 1]),
            hint="give the records of one partition in the order of their offsets, each once",
        )


def _portions(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, records.num_rows * _PORTION_BYTES // max(records.nbytes, 1))
    for start in range(0, records.num_rows, rows):
        yield records.slice(start, rows)
