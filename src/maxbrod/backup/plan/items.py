"""The nouns of a backup's plan: ranges to read, the tasks that read them, and what the tasks found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from maxbrod.layouts.kafka.slices import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeItem:
    """Offsets [start, end) of one partition, for one task to read: the batches whose base offset lies in them."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    bytes_estimate: int
    packed: bool
    """Small: its slice goes into an object that it shares with others."""
    compacted: bool = False
    """Holes between batches are nothing strange."""
    floor: int | None = None
    """Of a partition's first range: the batch that `start` lies within is its own, if it begins here or later."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one Spark task does, in this order."""

    items: tuple[RangeItem, ...]

    @property
    def bytes_estimate(self) -> int:
        return sum(item.bytes_estimate for item in self.items)


class FailureKind(StrEnum):
    """Why a range was not read to its end."""

    UNAVAILABLE = "unavailable"
    DELETED = "deleted"
    """Deleted, or deleted and created again: this incarnation is gone."""
    TRUNCATED = "truncated"
    DENIED = "denied"
    UNSUPPORTED = "unsupported"
    STORAGE = "storage"
    """The archive could not be written to: nothing of the whole task counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What ended the reading of a range early, in the words of the error."""

    trouble: FailureKind
    message: str
    offset: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A batch that the broker delivers damaged, again and again."""

    offset: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one item. Offsets [item.start, reached) were answered for; slices hold all that the log had."""

    item: RangeItem
    slices: tuple[Slice, ...]
    reached: int
    log_start_offset: int
    """The highest that was heard: below it, retention took what no slice holds."""
    damages: tuple[Damage, ...] = ()
    failure: Failure | None = None
