"""Decodes archived batches to the selected records, and encodes records of several partitions as batches.

For topics that get another number of partitions: no batch stays as it was. Batches that a broker accepts from no client
are left out, as in `replay`. Only the records and the codec of a batch are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.decode import decode
from maxbrod.batch.encode import BATCH_BYTES_MAX
from maxbrod.batch.headers import BatchHeaders, as_bytes_array
from maxbrod.batch.replay import refuse_disorder
from maxbrod.batch.rewriting import RECORD_COLUMNS, encode_dense
from maxbrod.batch.transactions import committed_batches
from maxbrod.errors import naming
from maxbrod.model import AbortedTransaction, Codec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.cuts import Cut

CONTENT_COLUMNS: Final = [name for name in RECORD_COLUMNS if name != "offset"]
"""The columns of a record that do not depend on its place."""
PORTION_BYTES: Final = 256 << 10
"""The archived bytes that are decoded at once. Readers of several partitions hold this much for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedRecords:
    """Records in offset order, and the codec of most of their bytes."""

    records: pa.RecordBatch
    codec: Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Batches in one buffer, which the caller may patch, with the row of the first record of each."""

    data: NDArray[np.uint8]
    headers: BatchHeaders
    row: NDArray[np.int64]


def kept_records(
    buffer: Any,  # noqa: ANN401 - anything with a buffer
    headers: BatchHeaders,
    aborted: Iterable[AbortedTransaction],
    *,
    cut: Cut,
    codec: Codec = Codec.NONE,
    object_name: str | None = None,
) -> Iterator[DecodedRecords]:
    """Yield the committed records of these batches that `cut` keeps, in portions that fit a worker's memory.

    `codec` is the codec reported for uncompressed batches.
    """
    data = as_bytes_array(buffer)
    with naming(object_name):
        refuse_disorder(headers)
        chosen = headers.take(committed_batches(headers, aborted) & cut.touches(headers))
        chunk = (np.cumsum(chosen.size) - chosen.size) // PORTION_BYTES
        for rows in np.split(np.arange(len(chosen)), np.flatnonzero(np.diff(chunk)) + 1):
            job = chosen.take(rows)
            records = _cut(decode(data, job, columns=RECORD_COLUMNS), cut) if len(rows) else None
            if records is not None:
                yield DecodedRecords(records=records, codec=_codec(job, codec))


def encode_shared(
    records: pa.RecordBatch, target: NDArray[Any], *, codec: Codec, batch_bytes_max: int = BATCH_BYTES_MAX
) -> Shared:
    """Encode `records`, which are sorted by `target`, so that no batch holds records of two targets.

    Offsets are consecutive from 0. Only a batch of one record may be larger than `batch_bytes_max`.
    """
    starts = np.flatnonzero(target[1:] != target[:-1]) + 1
    bound = min(BATCH_BYTES_MAX, batch_bytes_max)
    data, headers = encode_dense(records, codec, starts, bound, batch_bytes_max)
    count = headers["count"].astype(np.int64)
    return Shared(data=data, headers=headers, row=np.cumsum(count) - count)


def _cut(records: pa.RecordBatch, cut: Cut) -> pa.RecordBatch | None:
    keep = cut.keeps(number_column(records.column("offset")), number_column(records.column("timestamp_ms")))
    if not keep.any():
        return None
    return records if keep.all() else records.filter(number_array(keep))


def _codec(headers: BatchHeaders, unpacked: Codec) -> Codec:
    codecs = np.where(headers.codec == Codec.NONE, np.int16(unpacked), headers.codec)
    return Codec(int(np.bincount(codecs, weights=headers.size).argmax()))
