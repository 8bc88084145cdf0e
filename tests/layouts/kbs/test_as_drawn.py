"""A reader that knows the tool's document and nothing else reads every field of what we write.

It goes down the drawings of the document box by box, and takes no word of ours for anything. What the document leaves
open (byte order, zig-zag, -1 for null) is as in Kafka's own records, with which it says its records are compatible.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cramjam
import lz4.frame
import pytest

from support.plain_batches import Record
from support.tool_backups import KBS, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage

UNPACK: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,  # none
    1: lambda packed: bytes(lz4.frame.decompress(packed)),
    2: lambda packed: bytes(cramjam.zstd.decompress(packed)),
}


@dataclass
class Boxes:
    """Bytes from which one box after another is taken."""

    data: bytes
    at: int = 0

    def take(self, size: int) -> bytes:
        assert size <= len(self.data) - self.at
        self.at += size
        return self.data[self.at - size : self.at]

    def fixed(self, kind: str) -> int:
        value: int = struct.unpack(f">{kind}", self.take(struct.calcsize(kind)))[0]
        return value

    def varint(self) -> int:
        raw = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
        return raw >> 1 ^ -(raw & 1)

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def record_of(block: Boxes, base_offset: int) -> Record:
    """The box "Record Format": deltas of time have nothing to count from but 0."""
    offset = base_offset + block.varint()
    timestamp = block.varint()
    key, value = block.sized(), block.sized()
    headers = [(block.sized() or b"", block.sized()) for _ in range(block.varint())]
    return Record(offset=offset, timestamp=timestamp, key=key, value=value, headers=headers)


def segment_of(stored: bytes) -> list[Record]:
    """The boxes "Segment Header", "Record Batch" 1 to N and "Segment Footer"."""
    header, footer_at = Boxes(stored), len(stored) - 16
    assert header.take(4) == b"KBS1"
    assert header.fixed("B") == 1
    unpack = UNPACK[header.fixed("B")]
    assert header.fixed("H") == 0
    first_offset, record_count = header.fixed("q"), header.fixed("q")
    header.fixed("Q")  # a checksum, of which the document says neither the polynomial nor the extent
    assert header.at == 32
    records: list[Record] = []
    batches = Boxes(stored[:footer_at], 32)
    while batches.at < footer_at:
        base_offset, count = batches.fixed("q"), batches.fixed("I")
        compressed_size, uncompressed_size, crc = (batches.fixed("I") for _ in range(3))
        packed = batches.take(compressed_size)
        assert zlib.crc32(packed) == crc
        block = Boxes(unpack(packed))
        assert len(block.data) == uncompressed_size
        records += [record_of(block, base_offset) for _ in range(count)]
        assert block.at == uncompressed_size, "a block is its records, and nothing else"
    assert (len(records), records[0].offset) == (record_count, first_offset)
    return records


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_reader_made_from_the_document_alone_reads_every_field(storage: Storage, codec: str) -> None:
    odd = [
        Record(offset=100, timestamp=1_700_000_000_123, key=None, value=None),
        Record(offset=101, timestamp=-1, key=b"", value=b"", headers=[(b"b", b"1"), (b"a", None), (b"b", b"")]),
        Record(offset=107, timestamp=(1 << 63) - 1, key=b"k", value=b"v" * 300),
        Record(offset=(1 << 40), timestamp=-(1 << 63), key=b"\xff", value=b"\x00"),
    ]
    written = [*some(0, 50), *odd]
    KBS.add(storage, written, codec=codec, segment_records_max=20)
    manifest: dict[str, Any] = json.loads(bytes(storage.get("maxbrod/manifest.json")))
    (partition,) = manifest["topics"][0]["partitions"]
    names = [f"maxbrod/topics/orders/0/segment-{number:08d}.kbs" for number in range(partition["segments"])]
    records = [record for name in names for record in segment_of(bytes(storage.get(name)))]
    assert records == written
    assert (partition["records"], partition["first_offset"], partition["last_offset"]) == (54, 0, 1 << 40)
