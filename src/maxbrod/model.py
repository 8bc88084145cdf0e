"""The nouns that everything above shares: Kafka's own, as frozen values with the width the protocol gives them."""

from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final
from uuid import UUID

from maxbrod.errors import CorruptDataError


class Codec(IntEnum):
    """How the records of a batch are compressed: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """What a record's timestamp means. NONE is a magic 0 message, which has no timestamp at all."""

    NONE = -1
    CREATE = 0
    LOG_APPEND = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicPartition:
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartitionId:
    """A partition of one incarnation of a topic: a topic that is deleted and created again gets another id."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """The records of one producer from `first_offset` up to its abort marker, which stands at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


class GapReason(StrEnum):
    """Why offsets hold no data. The last two want looking at: a later run reads such offsets again while it can."""

    COMPACTED = "compacted"
    RETENTION = "retention"
    TRUNCATED = "truncated"
    PRUNED = "pruned"
    DELETED = "deleted"
    UNRECORDED = "unrecorded"
    """By the layout of another tool, from which it was converted."""
    CORRUPT = "corrupt"
    UNEXPLAINED = "unexplained"


MENDABLE: Final = frozenset({GapReason.CORRUPT, GapReason.UNEXPLAINED})
"""Reasons of gaps that a later run may still read."""


def now_ms() -> int:
    """The clock of every row and report: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def topic_id_text(topic_id: UUID) -> str:
    """A topic id as Kafka prints it: 22 letters of URL-safe base64. The archive names topics by this."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> UUID:
    """The topic id that Kafka prints as `text`."""
    try:
        found = UUID(bytes=urlsafe_b64decode(text.encode("ascii") + b"=="))
    except ValueError as error:
        raise CorruptDataError("this is no topic id", object_name=text) from error
    if topic_id_text(found) != text:  # the decoder passes over letters that it does not know
        raise CorruptDataError("this is no topic id", object_name=text)
    return found
