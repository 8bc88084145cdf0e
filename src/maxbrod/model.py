"""The nouns that everything above shares: Kafka's own, as frozen values with the width the protocol gives them."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID


def format_topic_id(topic_id: UUID) -> str:
    """As Kafka prints it: base64 for URLs, without padding."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def parse_topic_id(text: str) -> UUID:
    """The inverse; ValueError where it is none."""
    return UUID(bytes=urlsafe_b64decode(text + "=="))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """The records of one producer from `first_offset` up to its abort marker, which stands at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
