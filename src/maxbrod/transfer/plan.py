"""Cuts partitions between rows into parts, for waves and tasks, and makes the rows of what was written. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment, shared_fields
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import GapReason, InPartition

_TASK_BYTES_MIN: Final = 64 << 20
"""Smaller parts are not worth a task of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertPart(InPartition):
    """A partition of the source, or the part of it in one wave: rows in order of offsets, without holes."""

    topic: str
    topic_id: str
    partition: int
    rows: tuple[Segment | Gap, ...]

    @property
    def sizes(self) -> list[int]:
        return [row.bytes if isinstance(row, Segment) else 0 for row in self.rows]

    @property
    def bytes(self) -> int:
        return sum(self.sizes)

    @property
    def end(self) -> int:
        return self.rows[-1].end_offset

    def after(self, offset: int | None) -> ConvertPart:
        """The rows that end after an offset."""
        if offset is None:
            return self
        return replace(self, rows=tuple(row for row in self.rows if row.end_offset > offset))

    def fitting(self, bytes_max: int) -> int:
        """Return how many of the first rows have `bytes_max` together; at least one."""
        return max(sum(size <= bytes_max for size in accumulate(self.sizes)), 1)

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
            taken = part.first_rows(part.fitting(room))
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
        count = min(rest.fitting(bytes_max), len(rest.rows) - 1)
        yield rest.first_rows(count)
        rest = replace(rest, rows=rest.rows[count:])
    yield rest


def convert_rows(
    source: Sequence[Segment | Gap],
    written: Sequence[Slice],
    *,
    run_id: str,
    written_at: int,
    otherwise: GapReason | None = None,
) -> list[Segment | Gap]:
    """Rows that tile the offsets of `source`, which are those of one partition in order and without holes.

    `written` holds the batches of all its segments, cut by the writer. Offsets between two slices were a gap before, or
    a hole within a segment: they become a gap for the reason that the source gives, or `otherwise`.
    """
    first = source[0]
    shared = shared_fields(first, run_id=run_id, written_at=written_at)

    def meeting(low: int, high: int) -> list[Segment | Gap]:
        return [row for row in source if row.base_offset < high and row.end_offset > low]

    def gaps(low: int, high: int) -> Iterator[Gap]:
        for row in meeting(low, high) if low < high else ():
            yield Gap(
                **shared,
                base_offset=max(row.base_offset, low),
                end_offset=min(row.end_offset, high),
                reason=row.reason or otherwise or GapReason.UNEXPLAINED,
            )

    rows: list[Segment | Gap] = []
    reached, end = first.base_offset, source[-1].end_offset
    for stored in written:
        rows += gaps(reached, min(stored.base_offset, end))
        reason = None
        if stored.records < stored.end_offset - stored.base_offset:
            reasons = (row.reason for row in meeting(stored.base_offset, stored.end_offset) if row.reason is not None)
            reason = next(reasons, otherwise)
        rows.append(Segment(**shared, **{name: getattr(stored, name) for name in SLICE_FIELDS}, reason=reason))
        reached = max(reached, stored.end_offset)
    return [*rows, *gaps(reached, end)]
