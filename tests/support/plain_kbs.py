"""A second, plain reader and writer of segments, straight from the format's tables. Shares no code with the layout."""

from __future__ import annotations

import struct
import zlib

import cramjam
import lz4.frame

from support.plain_batches import Record, blob, varint

_POLYNOMIAL = 0xC96C5795D7870F42


def crc64(data: bytes) -> int:
    """Bit by bit, as the textbooks have it."""
    register = (1 << 64) - 1
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (_POLYNOMIAL if register & 1 else 0)
    return register ^ (1 << 64) - 1


def write_block(records: list[Record]) -> bytes:
    out = b""
    for record in records:
        out += varint(record.offset - records[0].offset) + varint(record.timestamp)
        out += blob(record.key) + blob(record.value) + varint(len(record.headers))
        for key, value in record.headers:
            out += blob(key) + blob(value)
    return out


def write_batch(
    records: list[Record],
    codec: int = 0,
    *,
    block: bytes | None = None,
    packed: bytes | None = None,
    base: int | None = None,
    count: int | None = None,
    stored_bytes: int | None = None,
    block_bytes: int | None = None,
) -> bytes:
    """A batch with a right checksum; every field can be forced."""
    block = write_block(records) if block is None else block
    packed = pack(codec, block) if packed is None else packed
    head = struct.pack(
        ">qIIII",
        records[0].offset if base is None else base,
        len(records) if count is None else count,
        len(packed) if stored_bytes is None else stored_bytes,
        len(block) if block_bytes is None else block_bytes,
        zlib.crc32(packed),
    )
    return head + packed


def pack(codec: int, block: bytes) -> bytes:
    if codec == 1:
        return bytes(lz4.frame.compress(block))
    return bytes(cramjam.zstd.compress(block)) if codec == 2 else block


def write_segment(
    batches: list[bytes],
    *,
    first: int,
    count: int,
    codec: int = 0,
    magic: bytes = b"KBS1",
    version: int = 1,
    flags: int = 0,
    footer_count: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """A segment with right checksums; that of the whole is right even if that of the batches is forced."""
    body = b"".join(batches)
    head = magic + struct.pack(
        ">BBHqQQ", version, codec, flags, first, count, crc64(body) if checksum is None else checksum
    )
    return head + body + struct.pack(">QQ", count if footer_count is None else footer_count, crc64(head + body))


def segment_of(records: list[Record], codec: int = 0, *, batch_records: int = 3) -> bytes:
    groups = [records[start : start + batch_records] for start in range(0, len(records), batch_records)]
    batches = [write_batch(group, codec) for group in groups]
    return write_segment(batches, first=records[0].offset, count=len(records), codec=codec)


def read_segment(stored: bytes) -> list[Record]:
    magic, version, codec, flags, first, count, checksum = struct.unpack(">4sBBHqQQ", stored[:32])
    assert (magic, version, flags) == (b"KBS1", 1, 0)
    assert struct.unpack(">QQ", stored[-16:]) == (count, crc64(stored[:-16]))
    assert checksum == crc64(stored[32:-16])
    records, body = [], stored[32:-16]
    while body:
        base, rows, packed_bytes, block_bytes, crc = struct.unpack(">qIIII", body[:24])
        packed, body = body[24 : 24 + packed_bytes], body[24 + packed_bytes :]
        assert crc == zlib.crc32(packed)
        block = _unpack(codec, packed)
        assert len(block) == block_bytes
        records += _read_block(block, base, rows)
    assert (len(records), records[0].offset) == (count, first)
    return records


def _unpack(codec: int, packed: bytes) -> bytes:
    if codec == 1:
        return bytes(lz4.frame.decompress(packed))
    return bytes(cramjam.zstd.decompress(packed)) if codec == 2 else packed


def _read_block(block: bytes, base: int, count: int) -> list[Record]:
    at = 0

    def number() -> int:
        nonlocal at
        raw, shift = 0, 0
        while True:
            byte = block[at]
            at += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return raw >> 1 ^ -(raw & 1)

    def part() -> bytes | None:
        nonlocal at
        size = number()
        at += max(size, 0)
        return None if size < 0 else block[at - size : at]

    records = []
    for _ in range(count):
        offset, time, key, value = base + number(), number(), part(), part()
        headers = [(part() or b"", part()) for _ in range(number())]
        records.append(Record(offset=offset, timestamp=time, key=key, value=value, headers=headers))
    assert at == len(block)
    return records
