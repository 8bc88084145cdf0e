"""What a run does about one partition: from the state of its log and of the archive to the offsets to read.

The truth about truncation is the leader epoch, never the end of the log: the high watermark of a broker that has only
just begun to lead may lie behind for a moment, and a log that was cut may since have grown past what was archived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.backup.plan.starts import resolve_start
from maxbrod.engine.windows import estimate_bytes
from maxbrod.model import PartitionId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.backup.plan.starts import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the archive holds of a partition: offsets [first_offset, end_offset), data and gaps together.

    Both are the same where an earlier run began at the end of the log and nothing has come since: its snapshot knows.
    """

    first_offset: int
    end_offset: int
    last_leader_epoch: int | None
    """Of the last archived batch; None while there are only gaps."""
    epoch_end_offset: int | None
    """Up to where the log has what is held, as `diverges_at` says; None where no epoch is known."""


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
    held: Held | None
    bytes_per_offset: float | None
    compacted: bool

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)

    def bytes_of(self, offsets: int) -> int:
        return estimate_bytes(offsets, self.bytes_per_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBackup:
    """Offsets [first, end) are to be answered for; those from `start` on are to be read.

    What lies between `first` and `start` is gone by retention: it becomes a gap when the run is assembled.
    """

    state: PartitionState
    first: int
    start: int
    end: int
    truncated_at: int | None = None
    """The archive's rows from this offset on describe a log that is no more; they are to be replaced."""
    first_time: bool = False
    """The archive holds nothing of the partition yet."""
    note: str | None = None

    @property
    def gap(self) -> tuple[int, int] | None:
        """What retention took before it was read."""
        return (self.first, self.start) if self.first < self.start else None

    @property
    def idle(self) -> bool:
        """Nothing to read, to explain or to replace."""
        return self.first >= self.end and self.truncated_at is None

    @property
    def bytes_estimate(self) -> int:
        return self.state.bytes_of(self.end - self.start)


def plan_partition(state: PartitionState, start: Start, *, offset_for_time: int = -1) -> PartitionBackup:
    """`start` is for partitions that no run has met; `offset_for_time` is the broker's answer where it is a time."""
    held = state.held
    if held is None:
        found = resolve_start(
            start,
            TopicPartition(topic=state.topic, partition=state.partition),
            log_start=state.log_start,
            end=state.end,
            high_watermark=state.high_watermark,
            offset_for_time=offset_for_time,
        )
        end = max(state.end, found.offset)
        return PartitionBackup(
            state=state, first=found.offset, start=found.offset, end=end, first_time=True, note=found.note
        )
    truncated_at = _truncated_at(state, held)
    first = held.end_offset if truncated_at is None else truncated_at
    begin = max(first, state.log_start)
    return PartitionBackup(
        state=state,
        first=first,
        start=begin,
        end=max(state.end, begin),
        truncated_at=truncated_at,
        # Met, but nothing of it is archived: it may still begin within a batch.
        first_time=first <= held.first_offset,
    )


def diverges_at(held_epochs: Iterable[tuple[int, int]], *, asked_epoch: int, answer: tuple[int, int]) -> int | None:
    """Up to where the log still is what is held, from a broker's answer about the last held leader epoch.

    `held_epochs` is the base offset and last leader epoch of the newest data rows, in any order. `answer` is epoch and
    end offset. An answer about an older epoch than was asked says that the log never had, or lost, what is held of the
    younger ones: rows that reach into those cannot be trusted from their beginning on. None: the broker knows nothing.
    """
    epoch, end = answer
    if end < 0:
        return None
    if epoch >= asked_epoch:
        return end
    return min([end, *(base for base, last_epoch in held_epochs if last_epoch > epoch)])


def _truncated_at(state: PartitionState, held: Held) -> int | None:
    if held.epoch_end_offset is not None:
        return held.epoch_end_offset if held.epoch_end_offset < held.end_offset else None
    return state.high_watermark if state.high_watermark < held.end_offset else None
