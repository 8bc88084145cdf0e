"""Writes messages of magic 0 and 1, alone or compressed in a wrapper, as old producers did."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from maxbrod.batch.compression import compress
from maxbrod.model import Codec
from support.plain_batches import Record
from support.record_examples import blobs, timestamps


def message(magic: int, record: Record, *, attributes: int = 0, crc: int | None = None) -> bytes:
    def blob(value: bytes | None) -> bytes:
        return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value

    time = struct.pack(">q", record.timestamp) if magic == 1 else b""
    checked = struct.pack(">bb", magic, attributes) + time + blob(record.key) + blob(record.value)
    return struct.pack(">qiI", record.offset, len(checked) + 4, zlib.crc32(checked) if crc is None else crc) + checked


def wrapper(magic: int, codec: Codec, records: list[Record], *, log_append: bool = False, time: int = 0) -> bytes:
    """As producers wrote them: inner offsets count from 0 in magic 1 and are absolute in magic 0."""
    base = records[0].offset if magic == 1 else 0
    inner = b"".join(message(magic, replace(record, offset=record.offset - base)) for record in records)
    squeezed = gzip.compress(inner) if codec is Codec.GZIP else compress(codec, np.frombuffer(inner, np.uint8))
    outer = Record(offset=records[-1].offset, timestamp=time, key=None, value=squeezed)
    return message(magic, outer, attributes=int(codec) | (0x08 if log_append else 0))


@st.composite
def messages(draw: st.DrawFn, magic: int) -> list[Record]:
    first = draw(st.integers(0, 1 << 60))
    time = timestamps if magic == 1 else st.just(-1)
    return [
        Record(offset=first + i, timestamp=draw(time), key=draw(blobs), value=draw(blobs))
        for i in range(draw(st.integers(1, 8)))
    ]
