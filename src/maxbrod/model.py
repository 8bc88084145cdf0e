"""The nouns that everything above shares: Kafka's own, as frozen values with the width the protocol gives them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


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
