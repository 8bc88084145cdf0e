"""A second reader and writer of binlog files, straight from the tool's document: slow, and obviously right."""

from __future__ import annotations

import struct

from support.given_records import Given


def blob(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def record(given: Given, *, kind: int | None = None) -> bytes:
    kind = given.timestamp_type if kind is None else kind
    kind = -2 if kind == 0 and given.timestamp == -1 else kind
    parts = [struct.pack(">qi", given.offset, kind)]
    if kind >= 0:
        parts.append(struct.pack(">q", given.timestamp))
    parts += [blob(given.key), blob(given.value), struct.pack(">i", len(given.headers))]
    for key, value in given.headers:
        parts += [blob(key), blob(value)]
    return b"".join(parts)


def segment(records: list[Given]) -> tuple[bytes, bytes]:
    """The records file and its index."""
    data, index = b"\x01", b"\x01"
    for given in records:
        text = record(given)
        index += struct.pack(">qqq", given.offset, len(data), len(text))
        data += text
    return data, index


def partition_index(partition: int, starts: list[int]) -> bytes:
    data = b"\x01"
    for start in starts:
        name = f"segment_partition_{partition:03}_from_offset_{start:010}".encode()
        data += blob(name) + struct.pack(">q", start)
    return data


class Reader:
    def __init__(self, data: bytes) -> None:
        assert data[:1] == b"\x01"
        self.data = data
        self.at = 1

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def blob(self) -> bytes | None:
        size = self.number(">i")
        if size < 0:
            return None
        assert self.at + size <= len(self.data)
        self.at += size
        return self.data[self.at - size : self.at]

    def key(self) -> bytes:
        key = self.blob()
        assert key is not None
        return key


def read_records(data: bytes) -> list[Given]:
    reader, records = Reader(data), []
    while reader.at < len(data):
        offset, kind = reader.number(">q"), reader.number(">i")
        timestamp = reader.number(">q") if kind >= 0 else -1
        key, value = reader.blob(), reader.blob()
        headers = tuple((reader.key(), reader.blob()) for _ in range(reader.number(">i")))
        kind = 0 if kind == -2 else kind
        records.append(
            Given(offset=offset, timestamp=timestamp, timestamp_type=kind, key=key, value=value, headers=headers)
        )
    return records
