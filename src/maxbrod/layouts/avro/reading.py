"""Reads the records of an Avro file as Arrow batches: many blocks at a time, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.kernels import sealed
from maxbrod.batch.schema import project
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.avro import java_values, kernels
from maxbrod.layouts.avro.codecs import decompress
from maxbrod.layouts.avro.container import Block, Header, read_blocks, read_header
from maxbrod.layouts.avro.program import Program, compile_schema
from maxbrod.layouts.avro.schema import MARK
from maxbrod.layouts.found import Found, Room, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.layouts.foreign import ForeignSegment
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

_GROUP_BYTES: Final = 16 << 20
"""The size of the decompressed blocks of one batch, unless a single block is larger."""


@dataclass(slots=True)
class Reader:
    """Decodes blocks of one file."""

    object_name: str
    where: TopicPartition
    header: Header
    schema: pa.Schema
    last: int = -1
    _program: Program = field(init=False)
    _blocks: list[tuple[Block, NDArray[np.uint8]]] = field(default_factory=list)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._program = compile_schema(self.header.schema)

    def add(self, block: Block) -> Iterator[pa.RecordBatch]:
        """Add a block; yields a batch if there are enough blocks."""
        try:
            data = decompress(self.header.codec, block.data)
        except CorruptDataError as error:
            error.position = block.position
            raise
        if block.count > data.size:
            raise CorruptDataError(
                f"a block claims to hold {block.count} records in {data.size} bytes", position=block.position
            )
        if self._blocks and self._bytes + data.size > _GROUP_BYTES:
            yield from self.flush()
        self._blocks.append((block, data))
        self._bytes += data.size

    def flush(self) -> Iterator[pa.RecordBatch]:
        """The records of the added blocks. CorruptDataError is raised after those before the damage."""
        if not self._blocks:
            return
        blocks = [block for block, _ in self._blocks]
        parts = [data for _, data in self._blocks]
        data = sealed(np.concatenate(parts) if len(parts) > 1 else parts[0])
        ends = np.cumsum([part.size for part in parts], dtype=np.int64)
        self._blocks, self._bytes = [], 0
        found, status, where = self._find(data, ends, np.array([block.count for block in blocks], np.int64))
        if len(found.offset):
            self.last = int(found.offset[-1])
            yield self._batch(found)
        if status != kernels.OK:
            raise CorruptDataError(
                kernels.MEANING[status],
                object_name=self.object_name,
                offset=self.last + 1,
                position=blocks[where].position,
                hint="the position is that of the block; records before the offset are intact",
            )

    def _find(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> tuple[Found, int, int]:
        room = Room(int(counts.sum()))
        header_kind = np.empty(len(room.offset), np.int8)
        status, block, rows = kernels.decode(
            self._program.code,
            data,
            ends,
            counts,
            sealed(np.frombuffer(self.where.topic.encode(), np.uint8)),
            self.where.partition,
            self.last,
            np.empty(kernels.DEPTH_MAX, np.int64),
            *(room.offset, room.timestamp_ms, room.timestamp_type),
            *room.parts(),
            *(room.header_at, header_kind, room.header_ends),
        )

        def scan_headers(
            data: NDArray[np.uint8], at: NDArray[np.int64], ends: NDArray[np.int64], *parts: NDArray[np.int64]
        ) -> None:
            kernels.scan_headers(data, at, header_kind[:rows], ends, self._program.header_null, *parts)

        return room.found(data, rows, scan_headers), status, block

    def _batch(self, found: Found) -> pa.RecordBatch:
        others = 0
        # Headers in files that we wrote are never Java's, even if they look so.
        if MARK not in self.header.metadata and "headers" in self.schema.names:
            others = kernels.unwrap_java(found.data, found.header_value.at, found.header_value.length)
        batch = batch_of(found, self.schema)
        if others:
            column = self.schema.get_field_index("headers")
            batch = batch.set_column(column, self.schema.field(column), java_values.unwrap(batch.column(column)))
        return batch


def read_file(
    storage: Storage, path: str, size: int, where: TopicPartition, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """All intact records of a file; then the error about the first damaged one."""
    schema = project(None if columns is None else list(columns))
    header = read_header(storage, path, size)
    reader = Reader(storage.name_of(path), where, header, schema)
    damage: CorruptDataError | None = None
    try:
        for block in read_blocks(storage, path, size, header):
            yield from reader.add(block)
    except CorruptDataError as error:
        damage = error
    yield from reader.flush()
    if damage is not None:
        damage.object_name = damage.object_name or storage.name_of(path)
        damage.offset = reader.last + 1 if damage.offset is None else damage.offset
        raise damage


def read(storage: Storage, segment: ForeignSegment, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """The records of a segment: those of its file, except those that an earlier file holds."""
    begin = segment.details.get("from_offset")
    names = None if columns is None else list(columns)
    needed = names if names is None or begin is None or "offset" in names else ["offset", *names]
    for batch in read_file(storage, segment.path, segment.bytes, segment.where, needed):
        if begin is None:
            yield batch
            continue
        first = int(np.searchsorted(np.frombuffer(batch.column("offset").buffers()[1], np.int64), begin))
        if first < batch.num_rows:
            yield batch.slice(first).select(project(names).names)
