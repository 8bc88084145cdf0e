"""Hashes of decoded records, field by field, and digests of them: the compiled half of `digest`.

Also the partition of a record by its key, as Kafka's Java client chooses it: murmur2 of the key's bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from maxbrod.batch import hash_kernels
from maxbrod.batch.columns import BinaryColumn, binary_column, headers_columns, number_column
from maxbrod.batch.digest import BASES, Digest, Field
from maxbrod.batch.kernels import sealed
from maxbrod.model import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray


Words: TypeAlias = "NDArray[np.uint64]"
COLUMNS: Final = ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers")
"""The columns of the record schema that a digest covers."""


def hash_fields(records: pa.RecordBatch) -> dict[Field, Words]:
    """Two words for each record and field, in two rows. `records` has the `COLUMNS`, none of them sliced."""
    return {
        Field.TIMESTAMP: _numbers(records, "timestamp_ms"),
        Field.TIMESTAMP_TYPE: _numbers(records, "timestamp_type"),
        Field.KEY: _values(binary_column(records.column("key"))),
        Field.VALUE: _values(binary_column(records.column("value"))),
        Field.HEADERS: _headers(records.column("headers")),
    }


def hash_keys(keys: pa.Array) -> Words:
    """Two words for each key, in two rows, as in `hash_fields`."""
    return _values(binary_column(keys))


def digest_records(
    hashes: dict[Field, Words], places: NDArray[np.int64] | None, ignored: Collection[Field] = ()
) -> Digest:
    """The digest of consecutive records, from their `hash_fields`. If `places` is None, only their order counts."""
    words = np.stack([hashes[field] for field in Field])
    count = words.shape[2]
    places = np.zeros(count, np.int64) if places is None else places
    used = np.array([field not in ignored for field in Field])
    state = np.zeros(4, np.uint64)
    bases = np.array(BASES, np.uint64)
    hash_kernels.fold_records(sealed(places), sealed(words), sealed(used), sealed(bases), state)
    first, second, low, high = state.tolist()
    log_append = int(np.count_nonzero(hashes[Field.TIMESTAMP_TYPE][0] == TimestampType.LOG_APPEND))
    return Digest(records=count, sequence=(first, second), total=(low, high), log_append=log_append)


def _numbers(records: pa.RecordBatch, name: str) -> Words:
    values = number_column(records.column(name)).astype(np.int64).view(np.uint64)
    return np.stack([values, np.zeros_like(values)])


def _values(column: BinaryColumn) -> Words:
    found: Words = np.empty((2, len(column.valid)), np.uint64)
    hash_kernels.hash_values(*(sealed(buffer) for buffer in column), found[0], found[1])
    return found


def _headers(array: Any) -> Words:  # noqa: ANN401 - an Arrow array
    ends, keys, values = headers_columns(array)
    key_words, value_words = _values(keys), _values(values)
    found: Words = np.empty((2, len(array)), np.uint64)
    inputs = (ends, *key_words, *value_words)
    hash_kernels.hash_headers(*(sealed(words) for words in inputs), found[0], found[1])
    return found


def partition_for(keys: pa.Array, count: int, *, null_partition: int) -> NDArray[np.int32]:
    """The partition, out of `count`, of each key of a binary column. A null key gets `null_partition`."""
    if count < 1 or not 0 <= null_partition < count:
        raise ValueError(f"there is no partition {null_partition} among {count}")
    column = binary_column(keys)
    chosen = np.full(len(keys), null_partition, np.int32)
    hash_kernels.partitions(*(sealed(buffer) for buffer in column), count, chosen)
    return chosen
