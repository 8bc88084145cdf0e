"""Batches and markers of transactions."""

from __future__ import annotations

import struct

from support.plain_batches import Record, write_batch

ABORT, COMMIT = 0, 1


def data(offset: int, producer_id: int, *, records: int = 1, transactional: bool = True) -> bytes:
    rows = [Record(offset=offset + i, timestamp=0, key=None, value=b"v") for i in range(records)]
    return write_batch(rows, attributes=0x10 if transactional else 0, producer_id=producer_id, producer_epoch=0)


def marker(offset: int, producer_id: int, kind: int, *, version: int = 0) -> bytes:
    record = Record(offset=offset, timestamp=0, key=struct.pack(">hh", version, kind), value=struct.pack(">hi", 0, 0))
    return write_batch([record], attributes=0x30, producer_id=producer_id, producer_epoch=0)
