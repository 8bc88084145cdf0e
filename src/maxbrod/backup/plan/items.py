"""The ranges that a backup reads, the tasks that read them, and the outcomes that the tasks report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of what travels to a worker
from maxbrod.model import PartitionId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeItem:
    """Offsets [start, end) of one partition, read by one task: the batches whose base offset is among them."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    bytes_estimate: int
    packed: bool
    """Small: its slice shares an object with others."""
    compacted: bool = False
    """Holes between batches are normal."""
    floor: int | None = None
    """In a partition's first range: the batch that contains `start` belongs to it if it begins here or later."""

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The items that one Spark task reads, in this order."""

    items: tuple[RangeItem, ...]

    @property
    def bytes_estimate(self) -> int:
        return sum(item.bytes_estimate for item in self.items)


class FailureKind(StrEnum):
    """Why a range was not read to its end."""

    UNAVAILABLE = "unavailable"
    DELETED = "deleted"
    """Deleted, or deleted and created again: this incarnation no longer exists."""
    TRUNCATED = "truncated"
    DENIED = "denied"
    UNSUPPORTED = "unsupported"
    STORAGE = "storage"
    """The archive could not be written: nothing of the whole task counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that ended the reading of a range early."""

    kind: FailureKind
    message: str
    offset: int | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A batch that the broker delivers damaged each time it is fetched."""

    offset: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one item. Offsets [item.start, reached) are read; the slices hold every batch that the log had."""

    item: RangeItem
    slices: tuple[Slice, ...]
    reached: int
    log_start_offset: int
    """The highest start of the log that a broker reported: below it, retention deleted what no slice holds."""
    damages: tuple[Damage, ...] = ()
    failure: Failure | None = None


def outcomes_by_partition(outcomes: Iterable[Outcome]) -> dict[PartitionId, list[Outcome]]:
    found: dict[PartitionId, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.item.id, []).append(outcome)
    return found
