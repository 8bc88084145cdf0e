"""Reads a Kafka log in plain Python, straight from the format description: shares no code with the engine."""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import lz4.frame
import pyarrow as pa

_LOG_OVERHEAD = 12
_CONTROL = 1 << 5
_LOG_APPEND = 1 << 3


class Record(NamedTuple):
    """A record without its offset. Null and empty are different things."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Batch:
    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    control: bool
    records: dict[int, Record]


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def skip(self, count: int) -> None:
        self._at += count

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            raw |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)

    def blob(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at]


def unframe(data: bytes) -> bytes:
    """Any number of zstd frames, one after another."""
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())


def read_log(data: bytes) -> list[Batch]:
    """Every batch, its checksum verified; not a byte may be left over."""
    batches = []
    at = 0
    while at < len(data):
        length = struct.unpack_from(">i", data, at + 8)[0]
        end = at + _LOG_OVERHEAD + length
        assert end <= len(data), f"the batch at byte {at} is cut"
        batches.append(_read_batch(data[at:end]))
        at = end
    return batches


def _read_batch(batch: bytes) -> Batch:
    base_offset, _, leader_epoch, magic, crc = struct.unpack_from(">qiibI", batch)
    assert magic == 2
    assert crc == google_crc32c.value(batch[21:]), f"the batch at offset {base_offset} is damaged"
    attributes, last_delta, base_timestamp, newest, producer_id, _, _, count = struct.unpack_from(
        ">hiqqqhii", batch, 21
    )
    body = _Bytes(_unpack(batch[61:], attributes & 7))
    records = {}
    for _ in range(count):
        offset, record = _read_record(body, base_offset, base_timestamp)
        records[offset] = record._replace(timestamp_ms=newest) if attributes & _LOG_APPEND else record
    assert not body.left
    assert len(records) == count
    return Batch(
        base_offset=base_offset,
        last_offset=base_offset + last_delta,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        control=bool(attributes & _CONTROL),
        records=records,
    )


def _read_record(body: _Bytes, base_offset: int, base_timestamp: int) -> tuple[int, Record]:
    body.varint()
    body.skip(1)
    timestamp = base_timestamp + body.varint()
    offset = base_offset + body.varint()
    key, value = body.blob(), body.blob()
    headers = []
    for _ in range(body.varint()):
        name = body.blob()
        assert name is not None
        headers.append((name, body.blob()))
    return offset, Record(timestamp, key, value, tuple(headers))


def _unpack(body: bytes, codec: int) -> bytes:
    match codec:
        case 0:
            return body
        case 1:
            return gzip.decompress(body)
        case 3:
            return bytes(lz4.frame.decompress(body))
        case 4:
            return unframe(body)
        case _:
            raise AssertionError(f"no test writes codec {codec}")
