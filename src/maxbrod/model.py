"""The types that everything above shares, mostly Kafka's: frozen values with the widths of the protocol."""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final
from uuid import UUID

from maxbrod.errors import CorruptDataError

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Codec(IntEnum):
    """The compression codec of a batch: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(IntEnum):
    """The meaning of a record's timestamp. NONE is for messages of magic 0, which have no timestamp."""

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
    """A partition of one incarnation of a topic. A topic that is deleted and created again gets another id."""

    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class InPartition:
    """Base of values that name their partition by the fields `topic`, `topic_id` and `partition`."""

    __slots__ = ()
    topic: str
    topic_id: str
    partition: int

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortedTransaction:
    """The records of one producer from `first_offset` to its abort marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int


class GapReason(StrEnum):
    """Why offsets have no data. The last two need attention: later runs read such offsets again if they can."""

    COMPACTED = "compacted"
    RETENTION = "retention"
    TRUNCATED = "truncated"
    PRUNED = "pruned"
    DELETED = "deleted"
    ERASED = "erased"
    """A person asked for it: `maxbrod erase`."""
    UNRECORDED = "unrecorded"
    """The layout of another tool, from which it was converted, does not record it."""
    CORRUPT = "corrupt"
    UNEXPLAINED = "unexplained"


MENDABLE: Final = frozenset({GapReason.CORRUPT, GapReason.UNEXPLAINED})
"""The reasons of gaps that a later run may still read."""


CLOCKS_APART_MS: Final = 15 * 60 * 1000
"""Clocks that differ by more contradict each other. S3 itself refuses requests of machines that are further off, and it
is half of `catalog.catalog.LATE_MS`, which allows for clocks that differ."""


def now_ms() -> int:
    """The current time of rows and reports, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def is_topic_name(name: str) -> bool:
    """True if Kafka allows it as a topic's name. Then it is one part of a path, too, and leads nowhere else."""
    return TOPIC_NAME.fullmatch(name) is not None and name not in {".", ".."}


def topic_id_text(topic_id: UUID) -> str:
    """A topic id as Kafka prints it: 22 letters of URL-safe base64. The archive identifies topics by it."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def topic_id_of(text: str) -> UUID:
    """The topic id that Kafka prints as `text`."""
    try:
        found = UUID(bytes=urlsafe_b64decode(text.encode("ascii") + b"=="))
    except ValueError as error:
        raise CorruptDataError("this is not a topic id", object_name=text) from error
    if topic_id_text(found) != text:  # the decoder ignores unknown letters
        raise CorruptDataError("this is not a topic id", object_name=text)
    return found
