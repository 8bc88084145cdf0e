"""Encodes the response of Fetch, versions 4 to 18, as a list of buffers: records are never copied.

kafka-python's encoder would copy every record. The layout is small and does not change for released versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final
from uuid import UUID

from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Buffer

FLEXIBLE: Final = 12
"""The first version with compact lengths and tags."""
BY_ID: Final = 13
_ABORTED: Final = struct.Struct(">qq")
_INT: Final = struct.Struct(">i")


@dataclass(slots=True, kw_only=True)
class PartitionAnswer:
    """The answer for one partition. `pieces` are whole batches."""

    topic: str | None
    topic_id: UUID
    partition: int
    code: int = Code.NONE
    high_watermark: int = -1
    log_start: int = -1
    pieces: Sequence[memoryview] = ()
    bytes: int = 0
    held_bytes: int = 0
    """What `pieces` keep in memory: they may be parts of something larger."""
    aborted: Sequence[AbortedTransaction] | None = None
    """None: the client reads uncommitted records too."""


def encode_fetch(
    version: int, partitions: Sequence[PartitionAnswer], *, code: int = Code.NONE, session_id: int = 0
) -> list[Buffer]:
    """The body of the response. Partitions of one topic must follow each other."""
    flexible = version >= FLEXIBLE
    tags = b"\0" if flexible else b""
    out: list[Buffer] = []
    text = bytearray(_INT.pack(0))
    if version >= 7:
        text += struct.pack(">hi", code, session_id)
    topics = [list(group) for _, group in groupby(partitions, key=lambda fetched: (fetched.topic, fetched.topic_id))]
    text += _count(len(topics), flexible=flexible)
    for group in topics:
        text += group[0].topic_id.bytes if version >= BY_ID else _name(group[0].topic or "", flexible=flexible)
        text += _count(len(group), flexible=flexible)
        for fetched in group:
            text += _partition(version, fetched)
            size = sum(map(len, fetched.pieces))
            text += _count(size, flexible=flexible)
            if size:
                out += [bytes(text), *fetched.pieces]
                text.clear()
            text += tags
        text += tags
    return [*out, bytes(text + tags)]


def _name(name: str, *, flexible: bool) -> bytes:
    data = name.encode()
    return (_count(len(data), flexible=True) if flexible else len(data).to_bytes(2, "big")) + data


def _partition(version: int, fetched: PartitionAnswer) -> bytes:
    """All of a partition but its records."""
    flexible = version >= FLEXIBLE
    text = bytearray(
        struct.pack(">ihqq", fetched.partition, fetched.code, fetched.high_watermark, fetched.high_watermark)
    )
    if version >= 5:
        text += fetched.log_start.to_bytes(8, "big", signed=True)
    if fetched.aborted is None:
        text += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        text += _count(len(fetched.aborted), flexible=flexible)
        for transaction in fetched.aborted:
            text += _ABORTED.pack(transaction.producer_id, transaction.first_offset) + (b"\0" if flexible else b"")
    if version >= 11:
        text += b"\xff\xff\xff\xff"  # no other replica is preferred
    return bytes(text)


def _count(number: int, *, flexible: bool) -> bytes:
    """The length of an array, a name or records: compact ones are one higher, 7 bits to a byte."""
    if not flexible:
        return _INT.pack(number)
    number += 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
