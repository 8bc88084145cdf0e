"""Compiles every kernel into numba's cache, so that the first command does not wait for it.

Run once at set-up: `python -m maxbrod.batch.prepare`. Each process still needs about a second to load numba.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from maxbrod.batch import kernels, legacy_kernels
from maxbrod.batch.decode import decode, lowest_timestamps
from maxbrod.batch.encode import encode
from maxbrod.batch.hashes import digest_records, hash_fields, partition_for
from maxbrod.batch.headers import walk
from maxbrod.batch.kernels import sealed
from maxbrod.model import Codec

# One message of magic 1 (offset 0, time 1, null key, value "v"), to compile the old kernels on.
_OLD_MESSAGE = bytes.fromhex("0000000000000000000000175ba32c1001000000000000000001ffffffff0000000176")


def prepare() -> None:
    """Call each kernel once with the types that real calls use."""
    header = {"key": b"h", "value": b"v"}
    records = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([0, 1], pa.int64()),
            "timestamp_ms": pa.array([0, 1], pa.int64()),
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"v", None], pa.binary()),
            "headers": pa.array([[header], []], pa.list_(pa.struct({"key": pa.binary(), "value": pa.binary()}))),
        }
    )
    batch = encode(records, codec=Codec.LZ4)
    digest_records(hash_fields(decode(batch)), None)
    lowest_timestamps(batch, walk(batch))
    partition_for(records.column("key"), 1, null_partition=0)
    count = np.array([1], np.int64)
    end = np.array([len(batch)], np.int64)
    kernels.join_records(sealed(batch), count, end, count, count, count, np.empty(100, np.uint8), 0)
    old = np.frombuffer(_OLD_MESSAGE, np.uint8)
    decode(old)
    legacy_kernels.count_inner(sealed(old), 0, old.size, 1, True)


if __name__ == "__main__":
    prepare()
