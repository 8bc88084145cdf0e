"""Cuts partitions between rows into parts, for waves and tasks of a conversion. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from maxbrod.catalog.rows import Gap, Segment
from maxbrod.model import PartitionId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TASK_BYTES_MIN: Final = 64 << 20
"""Smaller parts are not worth a task of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertPart:
    """A partition of the source, or the part of it in one wave: rows in order of offsets, without holes."""

    topic: str
    topic_id: str
    partition: int
    rows: tuple[Segment | Gap, ...]

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.partition)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows if isinstance(row, Segment))

    @property
    def end(self) -> int:
        return self.rows[-1].end_offset

    def after(self, offset: int | None) -> ConvertPart:
        """The rows that end after an offset."""
        if offset is None:
            return self
        return replace(self, rows=tuple(row for row in self.rows if row.end_offset > offset))

    def first_rows(self, count: int) -> ConvertPart:
        return replace(self, rows=self.rows[:count])


def waves(parts: Sequence[ConvertPart], bytes_max: int) -> Iterator[list[ConvertPart]]:
    """Waves of about `bytes_max`, cut between rows. A partition is in a wave at most once."""
    waiting = list(parts)
    while waiting:
        wave: list[ConvertPart] = []
        rest: list[ConvertPart] = []
        room = bytes_max
        for part in waiting:
            if room <= 0:
                rest.append(part)
                continue
            sizes = accumulate(row.bytes if isinstance(row, Segment) else 0 for row in part.rows)
            taken = part.first_rows(max(sum(size <= room for size in sizes), 1))
            wave.append(taken)
            room -= taken.bytes
            if len(taken.rows) < len(part.rows):
                rest.append(part.after(taken.end))
        yield wave
        waiting = rest


def shares(parts: Sequence[ConvertPart], parallelism: int) -> list[ConvertPart]:
    """The same parts, cut so that each of `parallelism` tasks can have an equal share, as far as rows allow."""
    fair = max(sum(part.bytes for part in parts) // max(parallelism, 1), _TASK_BYTES_MIN)
    return [piece for part in parts for piece in _cut(part, fair)]


def _cut(part: ConvertPart, bytes_max: int) -> Iterator[ConvertPart]:
    rest = part
    while rest.bytes > bytes_max and len(rest.rows) > 1:
        sizes = accumulate(row.bytes if isinstance(row, Segment) else 0 for row in rest.rows)
        count = min(max(sum(size <= bytes_max for size in sizes), 1), len(rest.rows) - 1)
        yield rest.first_rows(count)
        rest = replace(rest, rows=rest.rows[count:])
    yield rest
