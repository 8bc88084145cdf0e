"""Compiles every kernel into numba's cache, so that the first command does not wait for it.

`make setup` runs `python -m maxbrod.prepare batches`, `layouts` and `values`. Kernels are called with the types that
real calls use. Each process still needs about a second to load numba.
"""

from __future__ import annotations

import sys
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pyarrow as pa

from maxbrod.batch import kernels, legacy_kernels
from maxbrod.batch.columns import HEADERS_TYPE, conform
from maxbrod.batch.decode import decode, lowest_timestamps
from maxbrod.batch.encode import encode
from maxbrod.batch.erased import ErasedPart, ErasedRecords, hash_key
from maxbrod.batch.erasure import find_erased
from maxbrod.batch.hashes import digest_records, hash_fields, partition_for
from maxbrod.batch.headers import walk
from maxbrod.batch.kernels import sealed
from maxbrod.layouts.avro.kernels import unwrap_java
from maxbrod.layouts.avro.program import Node, Program, Shape, compile_avro
from maxbrod.layouts.binlog.format import INDEX
from maxbrod.layouts.foreign import ClusterFacts, Layout, WriteOptions
from maxbrod.layouts.registry import FOREIGN, layout_of
from maxbrod.model import Codec, TopicPartition
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.table.values.decode import Writers, decode_confluent, encoded
from maxbrod.table.values.decode import decode as decode_values

# One message of magic 1 (offset 0, time 1, null key, value "v"), to compile the old kernels on.
_OLD_MESSAGE = bytes.fromhex("0000000000000000000000175ba32c1001000000000000000001ffffffff0000000176")
WHERE: Final = TopicPartition(topic="t", partition=0)


def prepare_batches() -> None:
    """Call each kernel of record batches."""
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
    part = ErasedPart(unseen=((0, 2),), salt=b"s", hashes=hash_key(b"s", b"k"))
    find_erased(batch, walk(batch), ErasedRecords(parts=(part,)))
    count = np.array([1], np.int64)
    end = np.array([len(batch)], np.int64)
    kernels.join_records(sealed(batch), count, end, count, count, count, np.empty(100, np.uint8), 0)
    old = np.frombuffer(_OLD_MESSAGE, np.uint8)
    decode(old)
    legacy_kernels.count_inner(sealed(old), 0, old.size, 1, True)


def specimen() -> pa.RecordBatch:
    headers = [[{"key": b"h", "value": b"v"}, {"key": b"\xff", "value": None}], []]
    return conform(
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array([0, 1], pa.int64()),
                "timestamp_ms": pa.array([0, -1], pa.int64()),
                "key": pa.array([b"k", None], pa.binary()),
                "value": pa.array([b"v", None], pa.binary()),
                "headers": pa.array(headers, HEADERS_TYPE),
            }
        )
    )


def prepare_layouts() -> None:
    """Call each kernel of the layouts: write a few records in each, and read them."""
    for name in FOREIGN:
        prepare_layout(name)


def prepare_layout(name: str) -> None:
    layout = layout_of(name)
    with TemporaryDirectory() as folder:
        storage = open_storage(folder)
        survey, options = layout.survey(storage), WriteOptions()
        written = layout.write(storage, WHERE, [specimen()], options, survey=survey)
        layout.publish(storage, survey, written, options, ClusterFacts())
        _read(layout, storage)
        if name == "avro":
            # The kernel that only the headers of the tool's own files need.
            nothing = np.empty(0, np.int64)
            unwrap_java(sealed(np.empty(0, np.uint8)), nothing, nothing)
        if layout.repair is not None:
            # The kernels that a sound archive does not need: those that find records without an index.
            storage.delete([info.path for info in storage.list() if info.path.endswith(INDEX)])
            layout.repair(storage)
            _read(layout, storage)


def _read(layout: Layout, storage: Storage) -> None:
    for segment in layout.survey(storage).segments:
        for _ in layout.read(storage, segment):
            pass


def prepare_values() -> None:
    """Call each kernel of encoded values."""
    values = encoded(pa.array([b"\x00\x00\x00\x00\x01\x00\x02a", None], pa.binary()))
    text = compile_avro('"string"')
    writers = Writers(programs={1: {0: text}}, reader=text.root)
    decode_confluent(writers, values)
    decode_confluent(Writers(programs=writers.programs, reader=text.root, indexed=True), values)
    # A message without fields, which needs no schema: its node, no field, no member.
    root = Node(number=0, shape=Shape.STRUCT, type=pa.struct([]))
    empty = Program(format="protobuf", code=np.array([1, 0, 0, 0], np.int64), root=root, nodes=1)
    decode_values(empty, values)


if __name__ == "__main__":
    steps = {
        "batches": prepare_batches,
        "layouts": prepare_layouts,
        "values": prepare_values,
    }
    sys.exit(steps[sys.argv[1]]())
