"""Writes the records of one partition into Avro files of the documented layout.

The layout has no metadata of its own: a file counts as archived as soon as it exists. So files appear whole and in
order of offsets, and after a crash the next run continues from the last one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.kernels import sealed
from maxbrod.layouts.avro import format as avro
from maxbrod.layouts.avro import kernels
from maxbrod.layouts.avro.instances import mark_of, put_fenced
from maxbrod.layouts.buffers import RecordBuffers, Rotation, TreeWriter
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.varints import encode_bytes, encode_long
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage

SEGMENT_BYTES_MAX: Final = 64 << 20
BLOCK_BYTES: Final = 256 << 10
"""The size of a block before compression: large enough for any codec, small enough that damage affects few records."""


def write(
    storage: Storage, where: TopicPartition, records: Iterable[pa.RecordBatch], options: WriteOptions, survey: Survey
) -> list[ForeignSegment]:
    return _Writer(storage, where, options).write(records, survey.positions.get(where, 0))


class _Writer(TreeWriter):
    """Collects the blocks of a file, compressed as they fill up."""

    def __init__(self, storage: Storage, where: TopicPartition, options: WriteOptions) -> None:
        bytes_max = SEGMENT_BYTES_MAX if options.segment_bytes_max is None else options.segment_bytes_max
        self._codec, self._level = avro.check_options(options), options.level
        super().__init__(
            storage, where, Rotation(bytes_max=bytes_max, records_max=options.segment_records_max, bytes_fresh=0)
        )
        self._seed = avro.is_seed(options)
        self._mark = mark_of(options)
        head = encode_bytes(where.topic.encode()) + encode_long(where.partition)
        self._head = sealed(np.frombuffer(head, np.uint8))
        self._text: NDArray[np.bool_] = np.empty(0, np.bool_)
        """The keys of headers that are UTF-8, in the batch that is being written."""
        self._begin_file()

    def _begin_file(self) -> None:
        self._blocks = Rotation(bytes_max=BLOCK_BYTES, records_max=None, bytes_fresh=0)
        self._packed: list[tuple[int, bytes]] = []
        self._open: list[NDArray[np.uint8]] = []
        self._open_records = 0

    def _measure(self, buffers: RecordBuffers) -> NDArray[np.int64]:
        self._text = np.empty(len(buffers.header_key.ends) - 1, np.bool_)
        headers = (int(buffers.header_ends[0]), int(buffers.header_ends[-1]))
        kernels.mark_text(buffers.header_key.ends, buffers.header_key.data, *headers, self._text)
        sizes: NDArray[np.int64] = np.empty(buffers.rows, np.int64)
        kernels.measure(buffers, self._text, len(self._head), self._seed, sizes)
        return sizes

    def _fill(self, buffers: RecordBuffers, first: int, sizes: NDArray[np.int64]) -> None:
        for begin, end, begins in self._blocks.pieces(sizes):
            if begins:
                self._pack()
            out = np.empty(int(sizes[begin:end].sum()), np.uint8)
            kernels.write(buffers, self._text, self._head, self._seed, first + begin, first + end, out)
            self._open.append(out)
            self._open_records += end - begin

    def _pack(self) -> None:
        if self._open_records:
            data = np.concatenate(self._open) if len(self._open) > 1 else self._open[0]
            self._packed.append((self._open_records, avro.compress(self._codec, data, self._level)))
            self._open, self._open_records = [], 0

    def _put(self) -> ForeignSegment:
        self._pack()
        extent, mark = self._extent, self._mark
        writer = (None, None) if mark is None else (mark.instance, mark.generation)
        path = avro.file_path(self._where, extent.first_offset, *writer)
        metadata = {
            avro.MARK: avro.MARK_VERSION,
            avro.BASE_OFFSET: str(extent.first_offset),
            avro.END_OFFSET: str(extent.last_offset + 1),
            avro.RECORDS: str(extent.rows),
            avro.MIN_TIMESTAMP: str(extent.min_timestamp),
            avro.MAX_TIMESTAMP: str(extent.max_timestamp),
            **({} if mark is None else mark.metadata()),
        }
        # Not random, so that the same records produce the same bytes.
        seed = hashlib.blake2b(path.encode(), digest_size=avro.SYNC_BYTES)
        seed.update(self._packed[0][1])
        sync = seed.digest()
        header = avro.encode_header(avro.SEED_SCHEMA if self._seed else avro.SCHEMA, self._codec, metadata, sync)
        data = b"".join([header, *(avro.encode_block(count, block, sync) for count, block in self._packed)])
        if mark is not None:
            put_fenced(self._storage, path, data, mark)
        else:
            # For rules of retention that cannot look into files. The header of the file says the same.
            self._storage.replace(path, data, metadata={avro.LAST_MESSAGE: str(extent.max_timestamp)})
        self._begin_file()
        return extent.segment(self._where, path, len(data), {})
