"""The names of an Avro archive's files, the schema and the metadata that we write, options, and the container itself.

Names are those of the tool's documentation, and those that the tool actually writes:
topics/<topic>/partition=<n>/<topic>+<n>-<seq>.data             the document, and what we write
<topic>/<n>/<topic>-<n>-<first offset, 15 digits>.avro          the tool
<topic>/<connector>/<n>/<topic>-<n>-<first offset>.avro         its connector for compacted topics
<topic>/<connector>/<n>/<topic>-<n>-<first offset>-g<generation>.avro    what we write in its place
"""

from __future__ import annotations

import bz2
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import cramjam
import numpy as np
from numpy.typing import NDArray

from maxbrod import strict_json
from maxbrod.batch import compression
from maxbrod.errors import (
    CorruptDataError,
    RefusedError,
    TruncatedDataError,
    UnsupportedFormatError,
    UsageError,
    naming,
)
from maxbrod.layouts.foreign import Loss, WriteOptions
from maxbrod.layouts.varints import LONG_BYTES_MAX, decode_long, encode_bytes, encode_long
from maxbrod.model import INT32_MAX, Codec, TopicPartition, is_topic_name
from maxbrod.storage.interface import Storage

NAMESPACE: Final = "ch.tbd.kafka.backuprestore.model.avro"

_BYTES: Final = ["bytes", "null"]
_HEADER: Final = {
    "type": "record",
    "name": "KafkaHeader",
    "fields": [{"name": "key", "type": "bytes"}, {"name": "value", "type": ["null", "bytes"]}],
}

_DOCUMENTED: Final[list[dict[str, Any]]] = [
    {"name": "topic", "type": "string"},
    {"name": "partition", "type": "int"},
    {"name": "offset", "type": "long"},
    {"name": "timestamp", "type": "long"},
    {"name": "key", "type": _BYTES, "default": "null"},
    {"name": "value", "type": "bytes"},
    {"name": "headers", "type": [{"type": "map", "values": "bytes"}, "null"], "default": None},
]
_ADDED: Final[list[dict[str, Any]]] = [
    {"name": "timestampType", "type": "int", "default": 0},
    {"name": "headerList", "type": ["null", {"type": "array", "items": _HEADER}], "default": None},
]


def _schema(fields: list[dict[str, Any]]) -> str:
    record = {"namespace": NAMESPACE, "type": "record", "name": "AvroKafkaRecord", "fields": fields}
    return json.dumps(record, separators=(",", ":"))


SEED_SCHEMA: Final = _schema(_DOCUMENTED)
"""The schema of the tool's documentation."""
SCHEMA: Final = _schema(
    [{**field, "type": _BYTES, "default": "null"} if field["name"] == "value" else field for field in _DOCUMENTED]
    + _ADDED
)
"""The documented fields, with a nullable value, and two more for what those cannot represent.

Readers that do not know the two skip them.
"""

MARK: Final = "maxbrod.version"
"""Marks our own files in the header's metadata, which also has what a survey needs."""
MARK_VERSION: Final = "1"
BASE_OFFSET: Final = "maxbrod.base_offset"
END_OFFSET: Final = "maxbrod.end_offset"
RECORDS: Final = "maxbrod.records"
MIN_TIMESTAMP: Final = "maxbrod.min_timestamp"
MAX_TIMESTAMP: Final = "maxbrod.max_timestamp"
INSTANCE: Final = "maxbrod.instance"
GENERATION: Final = "maxbrod.generation"
CLAIM: Final = "maxbrod.claim"
"""Files of one of two instances: see `instances`. These are also the names of the options for writing them."""
LAST_MESSAGE: Final = "maxbrodlastmessagems"
"""The metadata of an object in a store that has such a thing: the time of its newest record, in milliseconds."""


_DOCUMENTED_NAME: Final = re.compile(r"topics/([^/]+)/partition=(\d{1,10})/([^/]+)\+(\d{1,10})-(\d{1,20})\.data")
_REAL_NAME: Final = re.compile(r"([^/]+)/(?:([^/]+)/)?(\d{1,10})/([^/]+)-(\d{1,10})-(\d{15,19})(?:-g\d{1,18})?\.avro")
_NAME_BYTES_MAX: Final = 255
"""The longest component of an object's name on common file systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileName:
    """The parts of a name. `first_offset`: None if the name has a sequence number of unknown meaning instead."""

    where: TopicPartition
    first_offset: int | None
    instance: str | None = None
    """The connector that wrote it, if each connector has its own copy."""


def parse_name(path: str) -> FileName | None:
    """Return the parts of a name; None if it is not a name of this layout."""
    first_offset = instance = None
    if found := _DOCUMENTED_NAME.fullmatch(path):
        topic, partition, topic_again, partition_again, _ = found.groups()
    elif found := _REAL_NAME.fullmatch(path):
        topic, instance, partition, topic_again, partition_again, start = found.groups()
        first_offset = int(start)
    else:
        return None
    same = topic == topic_again and partition == partition_again == str(int(partition))
    if not same or not is_topic_name(topic) or int(partition) > INT32_MAX:
        return None
    where = TopicPartition(topic=topic, partition=int(partition))
    return FileName(where=where, first_offset=first_offset, instance=instance)


def file_path(
    where: TopicPartition, first_offset: int, instance: str | None = None, generation: int | None = None
) -> str:
    """The name that we write. The documentation does not define the sequence number; we use the first offset.

    With `instance`, the name that the connector for compacted topics uses. It uses its names again in each generation.
    With `generation` a name is used once: a process that was suspended while it deleted the files of one generation
    deletes none of a later one when it wakes up. The tool lists the folder, and takes any name, in their order.
    """
    topic = where.topic
    if not is_topic_name(topic):
        raise UsageError(f"{topic!r} is not a valid topic name", hint="use letters, digits, '.', '_' and '-'")
    folder, name = f"topics/{topic}/partition={where.partition}", f"{topic}+{where.partition}-{first_offset:020d}.data"
    if instance is not None:
        suffix = f"-g{generation}" if generation else ""
        name = f"{topic}-{where.partition}-{first_offset:015d}{suffix}.avro"
        folder = f"{instance_folder(topic, instance)}/{where.partition}"
    if len(name) > _NAME_BYTES_MAX:
        raise RefusedError(
            f"the topic's name has {len(topic)} characters: files of the layout avro would have names of {len(name)}, "
            f"and {_NAME_BYTES_MAX} is the most",
            hint="exclude the topic, or choose another layout: all others support every topic name",
        )
    return f"{folder}/{name}"


def instance_folder(topic: str, instance: str) -> str:
    """The folder of a topic's copy that one connector writes."""
    return f"{topic}/{instance}"


CODECS: Final = ("null", "deflate", "snappy", "bzip2", "xz", "zstandard")
_LEVELS: Final = {"deflate": (0, 9), "bzip2": (1, 9), "xz": (0, 9), "zstandard": (1, 22)}
_SCHEMAS: Final = ("full", "seed")
_SEED_LOSSES: Final = (
    Loss(
        what="null values: they are restored as empty ones, so that no tombstone is left", real=True, field="value_null"
    ),
    Loss(
        what="headers: their order, all but the last of a name, nulls, and names that are not UTF-8",
        real=True,
        field="headers",
    ),
    Loss(what="the timestamp type: all timestamps are restored as create times", real=False, field="timestamp_type"),
)
_ALIASES: Final = {None: "null", "none": "null", "zstd": "zstandard"}


def check_options(options: WriteOptions) -> str:
    """Avro's name of the codec. UsageError: an option is invalid."""
    unknown = sorted(set(options.extra) - {"schema", INSTANCE, GENERATION, CLAIM})
    if unknown:
        raise UsageError(f"the layout avro has no option {', '.join(unknown)}", hint="it has schema")
    if options.extra.get("schema", "full") not in _SCHEMAS:
        raise UsageError(f"there is no schema {options.extra['schema']!r}", hint=f"choose one of {', '.join(_SCHEMAS)}")
    for name in ("segment_bytes_max", "segment_records_max"):
        limit = getattr(options, name)
        if limit is not None and limit < 1:
            raise UsageError(f"{name} cannot be {limit}")
    codec = _ALIASES.get(options.codec) or str(options.codec)
    if codec not in CODECS:
        raise UsageError(f"the layout avro has no codec {codec!r}", hint=f"choose one of {', '.join(CODECS)}")
    low, high = _LEVELS.get(codec, (0, -1))
    if options.level is not None and not low <= options.level <= high:
        raise UsageError(
            f"the codec {codec} has no level {options.level}",
            hint=f"it has {low} to {high}" if codec in _LEVELS else "leave the level out",
        )
    return codec


def is_seed(options: WriteOptions) -> bool:
    """True if files have exactly the schema of the tool's documentation."""
    return options.extra.get("schema") == "seed"


def losses(options: WriteOptions) -> tuple[Loss, ...]:
    return _SEED_LOSSES if is_seed(options) else ()


# Avro's object container file: its header and its blocks, packed by any codec in bounded memory. Every length is
# compared with the object's size before that many bytes are read.
MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
_HEAD_BYTES: Final = 16 << 10
_HEAD_BYTES_MAX: Final = 16 << 20
_REQUEST_BYTES: Final = 8 << 20

BLOCK_BYTES_MAX: Final = 256 << 20
"""Decompressed. Writers end a block after 16 KiB to 1 MiB; one with a single huge record may be larger."""
_CRC_BYTES: Final = 4
_XZ_MEMORY_MAX: Final = 256 << 20
"""A header alone may claim a dictionary of 4 GiB; the highest level of xz needs 65 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header before the blocks. `bytes` is its length."""

    schema: Any
    codec: str
    metadata: Mapping[str, bytes]
    sync: bytes
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    position: int
    count: int
    data: memoryview


def encode_header(schema: str, codec: str, metadata: Mapping[str, str], sync: bytes) -> bytes:
    entries = {"avro.schema": schema, "avro.codec": codec, **metadata}
    parts = [MAGIC, encode_long(len(entries))]
    for key, value in entries.items():
        parts += [encode_bytes(key.encode()), encode_bytes(value.encode())]
    return b"".join([*parts, encode_long(0), sync])


def encode_block(count: int, data: bytes, sync: bytes) -> bytes:
    return b"".join([encode_long(count), encode_long(len(data)), data, sync])


def read_header(storage: Storage, path: str, size: int) -> Header:
    """The header of a container file. CorruptDataError, UnsupportedFormatError: it is not one, or cannot be read."""
    request_bytes = _HEAD_BYTES
    with naming(storage.name_of(path)):
        while True:
            head = storage.get_range(path, 0, min(request_bytes, size))
            try:
                return _decode_header(head)
            except TruncatedDataError:
                if request_bytes >= min(size, _HEAD_BYTES_MAX):
                    raise
                request_bytes *= 8


def _decode_header(head: memoryview) -> Header:
    if bytes(head[: len(MAGIC)]) != MAGIC:
        if len(head) < len(MAGIC):
            raise TruncatedDataError("the file is too short for an Avro container", position=0)
        raise UnsupportedFormatError("the file is not an Avro container of version 1", position=0)
    metadata: dict[str, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = decode_long(head, at)
        if count < 0:
            _, at = decode_long(head, at)
        for _ in range(abs(count)):
            key, at = _decode_bytes(head, at)
            metadata[key.decode("utf-8", "replace")], at = _decode_bytes(head, at)
        if not count:
            break
    sync = bytes(head[at : at + SYNC_BYTES])
    if len(sync) < SYNC_BYTES:
        raise TruncatedDataError("the header is cut off", position=at)
    try:
        schema = strict_json.parse(metadata.get("avro.schema", b""), wide=True)
    except ValueError as error:
        raise CorruptDataError(f"the schema is not JSON: {error}", position=len(MAGIC)) from error
    codec = metadata.get("avro.codec", b"null").decode("utf-8", "replace")
    return Header(schema=schema, codec=codec, metadata=metadata, sync=sync, bytes=at + SYNC_BYTES)


def _decode_bytes(data: memoryview, at: int) -> tuple[bytes, int]:
    size, at = decode_long(data, at)
    if size < 0:
        raise CorruptDataError(f"a length of {size} is invalid", position=at)
    if size > len(data) - at:
        raise TruncatedDataError("a value is cut off", position=at)
    return bytes(data[at : at + size]), at + size


class _Window:
    """An object's bytes from any position, fetched in large requests that move forward."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage = storage
        self._path = path
        self._size = size
        self._start = 0
        self._data = memoryview(b"")

    def bytes(self, position: int, count: int) -> memoryview:
        count = min(count, self._size - position)
        if position < self._start or position + count > self._start + len(self._data):
            fetched = min(max(count, _REQUEST_BYTES), self._size - position)
            self._start, self._data = position, self._storage.get_range(self._path, position, fetched)
        at = position - self._start
        return self._data[at : at + count]


def read_blocks(storage: Storage, path: str, size: int, header: Header) -> Iterator[Block]:
    """All blocks up to the end. CorruptDataError, TruncatedDataError name the position of the damaged block."""
    window = _Window(storage, path, size)
    position = header.bytes
    with naming(storage.name_of(path)):
        while position < size:
            block, position = _read_block(window, position, size, header.sync)
            yield block


def _read_block(window: _Window, position: int, size: int, sync: bytes) -> tuple[Block, int]:
    head = window.bytes(position, 2 * LONG_BYTES_MAX)
    try:
        count, at = decode_long(head, 0)
        length, at = decode_long(head, at)
    except CorruptDataError as error:
        raise type(error)(f"the head of a block is invalid: {error.message}", position=position) from error
    end = position + at + length
    if count < 0 or length < 0 or length > BLOCK_BYTES_MAX:
        raise CorruptDataError(f"a block cannot have {count} records in {length} bytes", position=position)
    if end + SYNC_BYTES > size:
        raise TruncatedDataError("the last block is cut off", position=position)
    data = window.bytes(position + at, length + SYNC_BYTES)
    if bytes(data[length:]) != sync:
        raise CorruptDataError("a block does not end with the file's sync marker", position=position)
    return Block(position=position, count=count, data=data[:length]), end + SYNC_BYTES


def read_last_block(storage: Storage, path: str, size: int, header: Header, tail_bytes: int) -> Block | None:
    """The last block, if the last `tail_bytes` of the object contain all of it: found by the sync marker before it."""
    begin = max(size - tail_bytes, header.bytes - SYNC_BYTES)
    tail = bytes(storage.get_range(path, begin, size - begin))
    last = len(tail) - SYNC_BYTES
    before = tail.rfind(header.sync, 0, max(last, 0))
    if before < 0 or tail[last:] != header.sync:
        return None
    try:
        count, at = decode_long(tail, before + SYNC_BYTES)
        length, at = decode_long(tail, at)
    except CorruptDataError:
        return None
    if count < 0 or length != last - at:
        return None
    return Block(position=begin + before + SYNC_BYTES, count=count, data=memoryview(tail)[at:last])


class _Decompressor(Protocol):
    """The interface that zlib, bz2 and lzma share."""

    @property
    def eof(self) -> bool: ...

    def decompress(self, data: Any, max_length: int = ..., /) -> bytes: ...  # noqa: ANN401 - anything with a buffer


def compress(codec: str, data: NDArray[np.uint8], level: int | None) -> bytes:
    match codec:
        case "null":
            return data.tobytes()
        case "deflate":
            packer = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, -zlib.MAX_WBITS)
            return packer.compress(data) + packer.flush()
        case "snappy":
            return bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(_CRC_BYTES, "big")
        case "bzip2":
            return bz2.compress(data, 9 if level is None else level)
        case "xz":
            return lzma.compress(data, preset=6 if level is None else level)
        case _:
            return compression.compress(Codec.ZSTD, data, level)


def decompress(codec: str, data: memoryview) -> NDArray[np.uint8]:
    """A block's records. CorruptDataError: it cannot be decompressed, or exceeds BLOCK_BYTES_MAX."""
    match codec:
        case "null":
            return np.frombuffer(data, np.uint8)
        case "deflate":
            return _stream(codec, zlib.decompressobj(-zlib.MAX_WBITS), data)
        case "bzip2":
            return _stream(codec, bz2.BZ2Decompressor(), data)
        case "xz":
            return _stream(codec, lzma.LZMADecompressor(memlimit=_XZ_MEMORY_MAX), data)
        case "snappy":
            return _snappy(data)
        case "zstandard":
            packed = np.frombuffer(data, np.uint8)
            return compression.decompress(Codec.ZSTD, packed, bytes_max=BLOCK_BYTES_MAX)
        case _:
            raise UnsupportedFormatError(
                f"the blocks have the unknown codec {codec!r}", hint=f"supported are {', '.join(CODECS)}"
            )


def _stream(codec: str, decompressor: _Decompressor, data: memoryview) -> NDArray[np.uint8]:
    try:
        records = decompressor.decompress(data, BLOCK_BYTES_MAX)
    except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
        raise CorruptDataError(f"a block of codec {codec} cannot be unpacked: {error}") from error
    if not decompressor.eof:
        whole = len(records) < BLOCK_BYTES_MAX
        message = "ends too early" if whole else f"unpacks to more than {BLOCK_BYTES_MAX} bytes"
        raise CorruptDataError(f"a block of codec {codec} {message}", hint="the bytes are damaged or hostile")
    return np.frombuffer(records, np.uint8)


def _snappy(data: memoryview) -> NDArray[np.uint8]:
    packed = np.frombuffer(data, np.uint8)
    if packed.size < _CRC_BYTES:
        raise CorruptDataError("a block of codec snappy is too short for its checksum")
    body, crc = packed[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "big")
    try:
        size = int(cramjam.snappy.decompress_raw_len(body))
        if size > BLOCK_BYTES_MAX:
            raise CorruptDataError(f"a block of codec snappy says that it unpacks to {size} bytes")
        records = np.empty(size, np.uint8)
        written = int(cramjam.snappy.decompress_raw_into(body, records))
    except cramjam.DecompressionError as error:
        raise CorruptDataError(f"a block of codec snappy cannot be unpacked: {error}") from error
    if written != size or zlib.crc32(records) != crc:
        raise CorruptDataError("a block of codec snappy has another checksum than it says")
    return records
