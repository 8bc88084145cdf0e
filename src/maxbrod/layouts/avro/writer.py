"""Writes the records of one partition into Avro files of the documented layout.

The layout has no metadata of its own: a file counts as archived as soon as it exists. So files appear whole and in
order of offsets, and after a crash the next run continues from the last one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.kernels import sealed
from maxbrod.layouts.avro import format as names
from maxbrod.layouts.avro import kernels
from maxbrod.layouts.avro.container import SYNC_BYTES, compress, encode_block, encode_bytes, encode_header, encode_long
from maxbrod.layouts.avro.format import check_options, file_path, is_seed
from maxbrod.layouts.avro.instances import Mark, mark_of, put_fenced
from maxbrod.layouts.buffers import RecordBuffers, Rotation, consumable
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

SEGMENT_BYTES_MAX: Final = 64 << 20
BLOCK_BYTES: Final = 256 << 10
"""The size of a block before compression: large enough for any codec, small enough that damage affects few records."""


def write(
    storage: Storage,
    where: TopicPartition,
    records: Iterable[pa.RecordBatch],
    options: WriteOptions,
    survey: Survey,
) -> list[ForeignSegment]:
    writer = _PartitionWriter(storage, where, options)
    for batch in consumable(records, survey.positions.get(where, 0)):
        writer.add(batch)
    writer.finish()
    return writer.written


class _PartitionWriter:
    def __init__(self, storage: Storage, where: TopicPartition, options: WriteOptions) -> None:
        self.written: list[ForeignSegment] = []
        self._codec = check_options(options)
        self._seed = is_seed(options)
        self._level = options.level
        self._storage = storage
        self._where = where
        bytes_max = SEGMENT_BYTES_MAX if options.segment_bytes_max is None else options.segment_bytes_max
        self._files = Rotation(bytes_max=bytes_max, records_max=options.segment_records_max, bytes_fresh=0)
        self._file: _File | None = None
        self._mark = mark_of(options)
        head = encode_bytes(where.topic.encode()) + encode_long(where.partition)
        self._head = sealed(np.frombuffer(head, np.uint8))

    def add(self, batch: pa.RecordBatch) -> None:
        buffers = RecordBuffers.of(batch)
        text = np.empty(len(buffers.header_key.ends) - 1, np.bool_)
        headers = (int(buffers.header_ends[0]), int(buffers.header_ends[-1]))
        kernels.mark_text(buffers.header_key.ends, buffers.header_key.data, *headers, text)
        sizes = np.empty(buffers.rows, np.int64)
        kernels.measure(buffers, text, len(self._head), self._seed, sizes)
        for first, last, begins in self._files.pieces(sizes):
            if begins:
                self.finish()
            if self._file is None:
                self._file = _File(self._codec, self._level, seed=self._seed)
            self._file.add(buffers, text, self._head, first, sizes[first:last])

    def finish(self) -> None:
        if self._file is not None:
            self.written.append(self._file.put(self._storage, self._where, self._mark))
            self._file = None


class _File:
    """The blocks of one file, compressed as they fill up."""

    def __init__(self, codec: str, level: int | None, *, seed: bool) -> None:
        self._seed = seed
        self._codec = codec
        self._level = level
        self._rotation = Rotation(bytes_max=BLOCK_BYTES, records_max=None, bytes_fresh=0)
        self._packed: list[tuple[int, bytes]] = []
        self._open: list[NDArray[np.uint8]] = []
        self._open_records = 0
        self._records = 0
        self._first = -1
        self._last = -1
        self._lowest: list[int] = []
        self._highest: list[int] = []

    def add(
        self,
        buffers: RecordBuffers,
        text: NDArray[np.bool_],
        head: NDArray[np.uint8],
        begin: int,
        sizes: NDArray[np.int64],
    ) -> None:
        for first, last, begins in self._rotation.pieces(sizes):
            if begins:
                self._pack()
            out = np.empty(int(sizes[first:last].sum()), np.uint8)
            kernels.write(buffers, text, head, self._seed, begin + first, begin + last, out)
            self._open.append(out)
            self._open_records += last - first
        rows = slice(begin, begin + len(sizes))
        self._first = int(buffers.offset[begin]) if self._first < 0 else self._first
        self._last = int(buffers.offset[rows][-1])
        self._records += len(sizes)
        self._lowest.append(int(buffers.timestamp[rows].min()))
        self._highest.append(int(buffers.timestamp[rows].max()))

    def _pack(self) -> None:
        if self._open_records:
            data = np.concatenate(self._open) if len(self._open) > 1 else self._open[0]
            self._packed.append((self._open_records, compress(self._codec, data, self._level)))
            self._open, self._open_records = [], 0

    def put(self, storage: Storage, where: TopicPartition, mark: Mark | None) -> ForeignSegment:
        self._pack()
        writer = (None, None) if mark is None else (mark.instance, mark.generation)
        path = file_path(where, self._first, *writer)
        metadata = {
            names.MARK: names.MARK_VERSION,
            names.BASE_OFFSET: str(self._first),
            names.END_OFFSET: str(self._last + 1),
            names.RECORDS: str(self._records),
            names.MIN_TIMESTAMP: str(min(self._lowest)),
            names.MAX_TIMESTAMP: str(max(self._highest)),
            **({} if mark is None else mark.metadata()),
        }
        # Not random, so that the same records produce the same bytes.
        seed = hashlib.blake2b(path.encode(), digest_size=SYNC_BYTES)
        seed.update(self._packed[0][1])
        sync = seed.digest()
        header = encode_header(names.SEED_SCHEMA if self._seed else names.SCHEMA, self._codec, metadata, sync)
        data = b"".join([header, *(encode_block(count, block, sync) for count, block in self._packed)])
        if mark is not None:
            put_fenced(storage, path, data, mark)
        else:
            # For rules of retention that cannot look into files. The header of the file says the same.
            storage.replace(path, data, metadata={names.LAST_MESSAGE: str(max(self._highest))})
        return ForeignSegment(
            where=where,
            path=path,
            base_offset=self._first,
            end_offset=self._last + 1,
            records=self._records,
            bytes=len(data),
            min_timestamp=min(self._lowest),
            max_timestamp=max(self._highest),
        )
