"""Reads the records of an Avro file as Arrow batches: many blocks at a time, in bounded memory."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import HEADERS_TYPE, project
from maxbrod.batch.kernels import sealed
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.avro import kernels
from maxbrod.layouts.avro.format import MARK, Block, Header, decompress, parse_name, read_blocks, read_header
from maxbrod.layouts.avro.program import DEPTH_MAX, RecordProgram, compile_records
from maxbrod.layouts.foreign import Fault, ForeignSegment, Survey
from maxbrod.layouts.found import Room, Spans
from maxbrod.layouts.tree import check_records
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
    _program: RecordProgram = field(init=False)
    _blocks: list[tuple[Block, NDArray[np.uint8]]] = field(default_factory=list)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._program = compile_records(self.header.schema)

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
        counts = np.array([block.count for block in blocks], np.int64)
        room = Room.of(int(counts.sum()))
        header_kind = np.empty(len(room.offset), np.int8)
        topic = sealed(np.frombuffer(self.where.topic.encode(), np.uint8))
        stack = np.empty(DEPTH_MAX, np.int64)
        status, where, rows = kernels.decode(
            self._program, data, ends, counts, topic, self.where.partition, self.last, stack, header_kind, room
        )
        if rows:
            self.last = int(room.offset[rows - 1])
            yield self._batch(room, data, rows, header_kind[:rows])
        if status != kernels.OK:
            raise CorruptDataError(
                kernels.MEANING[status],
                object_name=self.object_name,
                offset=self.last + 1,
                position=blocks[where].position,
                hint="the position is that of the block; records before the offset are intact",
            )

    def _batch(self, room: Room, data: NDArray[np.uint8], rows: int, header_kind: NDArray[np.int8]) -> pa.RecordBatch:
        others = 0

        def scan_headers(
            data: NDArray[np.uint8], at: NDArray[np.int64], ends: NDArray[np.int64], key: Spans, value: Spans
        ) -> None:
            nonlocal others
            kernels.scan_headers(data, at, header_kind, ends, self._program.header_null, key, value)
            # Headers in files that we wrote are never Java's, even if they look so.
            if MARK not in self.header.metadata:
                others = kernels.unwrap_java(data, value.at, value.length)

        batch = room.batch(data, rows, self.schema, scan_headers)
        if others:
            column = self.schema.get_field_index("headers")
            batch = batch.set_column(column, self.schema.field(column), unwrap(batch.column(column)))
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


def check(storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
    """Yield all faults. Quick: files, sizes and names as surveyed; deep: every record is decoded."""
    yield from survey.faults
    sizes = {info.path: info.size for info in storage.list()}
    for segment in survey.segments:
        size = sizes.get(segment.path)
        name = parse_name(segment.path)
        if size is None or size != segment.bytes:
            message = "is gone" if size is None else f"has {size} bytes, where it had {segment.bytes}"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset)
            continue
        first = name.first_offset if name else None
        if first is not None and first > segment.base_offset:
            message = f"begins with offset {segment.base_offset}, before the one in its name"
            yield Fault(path=segment.path, message=message, offset=segment.base_offset)
        if deep:
            trimmed = "from_offset" in segment.details
            first = None if trimmed else segment.base_offset
            batches = read(storage, segment, ["offset", "key", "value", "headers"])
            yield from check_records(segment, batches, first=first, end=segment.end_offset)


# Header values that the tool wrote as serialised Java objects, besides `byte[]` and plain `String`. Connect's default
# converter parses a header that looks like a number or a boolean; its text is the original header. Nothing is
# deserialised: the few possible forms are compared byte by byte.
_NUMBER: Final = bytes.fromhex("787200106a6176612e6c616e672e4e756d62657286ac951d0b94e08b0200007870")
_STRING_HEAD: Final = bytes.fromhex("aced000574")


def _boxed(name: bytes, serial: str, field: bytes, rest: bytes = _NUMBER) -> bytes:
    """The bytes before the value of a boxed primitive: its class with the field `value`, and its superclass."""
    described = len(name).to_bytes(2, "big") + name + bytes.fromhex(serial) + b"\x02\x00\x01" + field + b"\x00\x05value"
    return bytes.fromhex("aced00057372") + described + rest


def _whole(form: str, data: bytes) -> bytes | None:
    return str(struct.unpack(form, data)[0]).encode()


def _decimal(form: str, data: bytes) -> bytes | None:
    (value,) = struct.unpack(form, data)
    shortest = float(f"{value:.9g}") if form == ">f" and math.isfinite(value) else value
    # Beyond these, Java's notation and the original header are unknown.
    plain = value == 0 or 1e-3 <= abs(value) < 1e7
    return repr(shortest).encode() if plain else None


_TRUTHS: Final = {b"\x00": b"false", b"\x01": b"true"}
_BOXED: Final[tuple[tuple[bytes, int, Callable[[bytes], bytes | None]], ...]] = (
    (_boxed(b"java.lang.Long", "3b8be490cc8f23df", b"J"), 8, partial(_whole, ">q")),
    (_boxed(b"java.lang.Integer", "12e2a0a4f7818738", b"I"), 4, partial(_whole, ">i")),
    (_boxed(b"java.lang.Short", "684d37133460da52", b"S"), 2, partial(_whole, ">h")),
    (_boxed(b"java.lang.Byte", "9c4e6084ee50f51c", b"B"), 1, partial(_whole, ">b")),
    (_boxed(b"java.lang.Double", "80b3c24a296bfb04", b"D"), 8, partial(_decimal, ">d")),
    (_boxed(b"java.lang.Float", "daedc9a2db3cf0ec", b"F"), 4, partial(_decimal, ">f")),
    (_boxed(b"java.lang.Boolean", "cd207280d59cfaee", b"Z", bytes.fromhex("7870")), 1, _TRUTHS.get),
)


def text_of(value: bytes) -> bytes:
    """The text of a serialised value; the value itself if its form is unknown."""
    for head, size, text in _BOXED:
        if value.startswith(head) and len(value) == len(head) + size:
            return text(value[len(head) :]) or value
    if value.startswith(_STRING_HEAD) and len(value) - 7 == int.from_bytes(value[5:7], "big"):
        return _from_java_utf8(value[7:]) or value
    return value


def _from_java_utf8(data: bytes) -> bytes | None:
    try:
        text = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16").encode()
    except UnicodeError:
        return None


def unwrap(headers: pa.Array) -> pa.Array:
    """Headers with the original text of values that Java serialised. Decodes each distinct value once."""
    entries = headers.values
    values = entries.field(1).dictionary_encode()
    distinct = [None if value is None else text_of(value) for value in values.dictionary.to_pylist()]
    unwrapped = pa.array(distinct, pa.binary()).take(values.indices)
    pairs = pa.StructArray.from_arrays([entries.field(0), unwrapped], fields=list(entries.type))
    return pa.Array.from_buffers(HEADERS_TYPE, len(headers), [None, headers.buffers()[1]], 0, children=[pairs])
