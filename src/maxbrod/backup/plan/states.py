"""The plan of a run for each partition: from the state of its log and of the archive to the offsets to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.backup.plan.starts import AtOffsets, Earliest, Latest, Start, resolve_start
from maxbrod.backup.plan.tasks import PartitionRange
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.work.windows import estimate_bytes

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from maxbrod.catalog.queries import ArchivedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """A partition at the moment of planning."""

    topic: str
    topic_id: str
    partition: int
    log_start: int
    end: int
    """The last stable offset: no run reads past it."""
    high_watermark: int
    held: ArchivedRange | None
    """What the archive holds. Its two offsets are equal if an earlier run began at the end of the log and nothing was
    written since: only the snapshot of that run knows."""
    truncated_at: int | None = None
    """The log was cut here, below the end of the archive: see `backup/truncation.py`."""
    bytes_per_offset: float | None
    compacted: bool

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBackup:
    """The run accounts for offsets [first, end), and reads those from `start` on.

    Retention deleted the offsets between `first` and `start`: they become a gap when the run is assembled.
    """

    state: PartitionState
    first: int
    start: int
    end: int
    first_time: bool = False
    """The archive holds nothing of the partition yet."""
    note: str | None = None

    @property
    def truncated_at(self) -> int | None:
        """The archive's rows from this offset on are not the log's any more; the run replaces them."""
        return self.state.truncated_at

    @property
    def gap(self) -> tuple[int, int] | None:
        """The offsets that retention deleted before they were read."""
        return (self.first, self.start) if self.first < self.start else None

    @property
    def idle(self) -> bool:
        """There is nothing to read, to explain or to replace."""
        return self.first >= self.end and self.truncated_at is None

    @property
    def bytes_estimate(self) -> int:
        return estimate_bytes(self.end - self.start, self.state.bytes_per_offset)

    @property
    def range(self) -> PartitionRange:
        state = self.state
        return PartitionRange(
            topic=state.topic,
            topic_id=state.topic_id,
            partition=state.partition,
            start=self.start,
            end=self.end,
            bytes_per_offset=state.bytes_per_offset,
            compacted=state.compacted,
            floor=0 if self.first_time else self.first,
        )


def plan_partitions(
    states: Iterable[PartitionState],
    start: Start,
    *,
    appeared: Container[PartitionId] = (),
    offsets_for_time: Mapping[TopicPartition, int],
) -> dict[PartitionId, PartitionBackup]:
    """A plan for each partition; `appeared` are those that the cluster did not have at the last run.

    `latest` and given offsets are about the partitions that exist at the first run. Nobody meant to skip records of
    later partitions, and a topic that was created again has offsets of its own: those begin at the earliest offset.
    """
    at_first = isinstance(start, Latest | AtOffsets)
    return {
        partition: plan_partition(
            state,
            Earliest() if at_first and partition in appeared else start,
            offset_for_time=offsets_for_time.get(state.where, -1) if offsets_for_time else -1,
        )
        for partition, state in ((each.id, each) for each in states)
    }


def plan_partition(state: PartitionState, start: Start, *, offset_for_time: int = -1) -> PartitionBackup:
    """`start` is for partitions that no run has read yet; `offset_for_time` is the broker's answer if it is a time."""
    held = state.held
    if held is None:
        found = resolve_start(
            start,
            state.where,
            log_start=state.log_start,
            end=state.end,
            high_watermark=state.high_watermark,
            offset_for_time=offset_for_time,
        )
        end = max(state.end, found.offset)
        return PartitionBackup(
            state=state, first=found.offset, start=found.offset, end=end, first_time=True, note=found.note
        )
    first = held.end_offset if state.truncated_at is None else state.truncated_at
    begin = max(first, state.log_start)
    return PartitionBackup(
        state=state,
        first=first,
        start=begin,
        end=max(state.end, begin),
        # A run has read it, but nothing of it is archived: it may still begin within a batch.
        first_time=first <= held.first_offset,
    )
