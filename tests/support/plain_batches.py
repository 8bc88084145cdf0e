"""A second, plain reader and writer of magic 2, straight from the format description: slow, and obviously right.

It shares no code with `maxbrod.batch`, so that a mistake would have to be made twice to go unseen.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass, field

import google_crc32c


@dataclass(frozen=True, kw_only=True)
class Record:
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63) if value < 0 else value << 1
    raw &= (1 << 64) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def blob(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def write_batch(
    records: list[Record],
    *,
    base_offset: int | None = None,
    last_offset_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    attributes: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    body: bytes | None = None,
    count: int | None = None,
) -> bytes:
    """One batch; every header field can be forced. `body` replaces the (uncompressed) records."""
    base_offset = records[0].offset if base_offset is None else base_offset
    base_timestamp = (records[0].timestamp if records else -1) if base_timestamp is None else base_timestamp
    last = (records[-1].offset - base_offset if records else 0) if last_offset_delta is None else last_offset_delta
    newest = max((record.timestamp for record in records), default=-1) if max_timestamp is None else max_timestamp
    if body is None:
        body = b"".join(write_record(record, base_offset, base_timestamp) for record in records)
    fields = struct.pack(
        ">hiqqqhii",
        attributes,
        last,
        base_timestamp,
        newest,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records) if count is None else count,
    )
    return seal(base_offset, leader_epoch, fields + body)


def seal(base_offset: int, leader_epoch: int, checked: bytes) -> bytes:
    crc = google_crc32c.value(checked)
    return struct.pack(">qiibI", base_offset, len(checked) + 9, leader_epoch, 2, crc) + checked


def write_record(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"\0" + varint(record.timestamp - base_timestamp) + varint(record.offset - base_offset)
    body += blob(record.key) + blob(record.value) + varint(len(record.headers))
    body += b"".join(blob(key) + blob(value) for key, value in record.headers)
    return varint(len(body)) + body


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)

    def blob(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        self.at += length
        return self.data[self.at - length : self.at]


def read_batches(data: bytes) -> list[list[Record]]:
    """The records of each batch. Uncompressed and gzip only: what Python itself can unpack."""
    batches = []
    while data:
        base_offset, length = struct.unpack_from(">qi", data)
        batch, data = data[: 12 + length], data[12 + length :]
        attributes, _, base_timestamp, newest = struct.unpack_from(">hiqq", batch, 21)
        (count,) = struct.unpack_from(">i", batch, 57)
        body = gzip.decompress(batch[61:]) if attributes & 7 == 1 else batch[61:]
        reader = Reader(body)
        batches.append([read_record(reader, base_offset, base_timestamp, newest, attributes) for _ in range(count)])
        assert reader.at == len(body)
    return batches


def read_record(reader: Reader, base_offset: int, base_timestamp: int, newest: int, attributes: int) -> Record:
    reader.varint()
    reader.at += 1
    timestamp = base_timestamp + reader.varint()
    offset = base_offset + reader.varint()
    key, value = reader.blob(), reader.blob()
    headers = [(reader.blob() or b"", reader.blob()) for _ in range(reader.varint())]
    return Record(
        offset=offset,
        timestamp=newest if attributes & 8 else timestamp,
        key=key,
        value=value,
        headers=headers,
    )
