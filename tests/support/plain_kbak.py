"""A second, plain reader and writer of segments, straight from the format's tables. Shares no code with the layout."""

from __future__ import annotations

import struct
import zlib

import cramjam
import lz4.block

from support.plain_batches import Record


def write_record(record: Record) -> bytes:
    body = struct.pack("<qq", record.timestamp, record.offset) + _blob(record.key) + _blob(record.value)
    body += struct.pack("<H", len(record.headers))
    for key, value in record.headers:
        body += struct.pack("<H", len(key)) + key + _blob(value)
    return struct.pack("<I", len(body)) + body


def _blob(value: bytes | None) -> bytes:
    return struct.pack("<i", -1) if value is None else struct.pack("<i", len(value)) + value


def write_segment(
    records: list[Record],
    codec: int = 0,
    *,
    body: bytes | None = None,
    packed: bytes | None = None,
    version: int = 1,
    flags: int = 0,
    count: int | None = None,
    start: int | None = None,
    end: int | None = None,
) -> bytes:
    """A segment with a right checksum; every field can be forced. `packed` replaces the compressed body."""
    body = b"".join(map(write_record, records)) if body is None else body
    head = b"KBAK" + struct.pack(
        "<BBHQqq",
        version,
        codec,
        flags,
        len(records) if count is None else count,
        (records[0].offset if records else 0) if start is None else start,
        (records[-1].offset if records else 0) if end is None else end,
    )
    stored = head + (_pack(codec, body) if packed is None else packed)
    return stored + struct.pack("<I", zlib.crc32(stored)) + b"BKAE"


def _pack(codec: int, body: bytes) -> bytes:
    if codec == 1:
        stream = cramjam.zstd.Compressor(level=3)  # a stream, which like the tool's does not say its length
        stream.compress(body)
        return bytes(stream.finish())
    if codec == 2:
        return struct.pack("<I", len(body)) + bytes(lz4.block.compress(body, store_size=False))
    return body


def read_segment(stored: bytes) -> list[Record]:
    magic, version, codec, flags, count, start, end = struct.unpack("<4sBBHQqq", stored[:32])
    assert (magic, version, flags, stored[-4:]) == (b"KBAK", 1, 0, b"BKAE")
    assert struct.unpack("<I", stored[-8:-4]) == (zlib.crc32(stored[:-8]),)
    body = stored[32:-8]
    if codec == 1:
        body = bytes(cramjam.zstd.decompress(body))
    if codec == 2:
        body = lz4.block.decompress(body[4:], uncompressed_size=struct.unpack("<I", body[:4])[0])
    records = []
    while body:
        (length,) = struct.unpack_from("<I", body)
        records.append(_read_record(body[4 : 4 + length]))
        body = body[4 + length :]
    assert (len(records), records[0].offset, records[-1].offset) == (count, start, end)
    return records


def _read_record(data: bytes) -> Record:
    timestamp, offset = struct.unpack_from("<qq", data)
    at = 16

    def blob() -> bytes | None:
        nonlocal at
        (size,) = struct.unpack_from("<i", data, at)
        at += 4 + max(size, 0)
        return None if size < 0 else data[at - size : at]

    key, value = blob(), blob()
    (count,) = struct.unpack_from("<H", data, at)
    at += 2
    headers = []
    for _ in range(count):
        (size,) = struct.unpack_from("<H", data, at)
        at += 2 + size
        name = data[at - size : at]
        headers.append((name, blob()))
    assert at == len(data)
    return Record(offset=offset, timestamp=timestamp, key=key, value=value, headers=headers)


segment_of = write_segment
