"""Avro's object container file: reads and writes its header and its blocks, packed by any codec in bounded memory.

Every length is compared with the object's size before that many bytes are read.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import cramjam
import numpy as np

from maxbrod import strict_json
from maxbrod.batch import compression
from maxbrod.errors import CorruptDataError, TruncatedDataError, UnsupportedFormatError, naming
from maxbrod.layouts.avro.format import CODECS
from maxbrod.model import Codec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from maxbrod.storage.interface import Storage


MAGIC: Final = b"Obj\x01"
SYNC_BYTES: Final = 16
_LONG_BYTES_MAX: Final = 10
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


def encode_long(value: int) -> bytes:
    raw = ((value << 1) ^ (value >> 63)) & ((1 << 64) - 1)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def encode_bytes(data: bytes) -> bytes:
    return encode_long(len(data)) + data


def decode_long(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """A number and its end. TruncatedDataError: `data` ends within it; CorruptDataError: it is too long."""
    raw = 0
    for index, byte in enumerate(data[at : at + _LONG_BYTES_MAX]):
        raw |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if raw >= 1 << 64:
                break
            return (raw >> 1) ^ -(raw & 1), at + index + 1
    if len(data) - at < _LONG_BYTES_MAX:
        raise TruncatedDataError("a number is cut off", position=at)
    raise CorruptDataError("a number has more than 64 bits", position=at)


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
    head = window.bytes(position, 2 * _LONG_BYTES_MAX)
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
