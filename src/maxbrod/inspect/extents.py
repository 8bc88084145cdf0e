"""The rows of one partition summed up: data, gaps with their reasons, counts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.catalog.rows import Gap, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.model import AbortedTransaction, PartitionId


DATA: Final = "data"
HOLE: Final = "hole"
"""Offsets that no row covers, which must not happen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets [first, end) with the same cover: data, hole, or the reason of a gap."""

    first_offset: int
    end_offset: int
    cover: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExtent:
    """What is archived of one partition. `exact` is false if the last slice reaches beyond the requested end.

    Records and bytes are then those of whole slices, and so upper bounds.
    """

    partition: int
    first_offset: int
    end_offset: int
    exact: bool
    records: int
    segments: int
    bytes: int
    raw_bytes: int
    min_timestamp: int | None
    max_timestamp: int | None
    first_leader_epoch: int | None
    last_leader_epoch: int | None
    spans: tuple[Span, ...]
    aborted: tuple[AbortedTransaction, ...]
    log_start: int | None = None
    """Where the log began at the run whose snapshot was read; None if the snapshot does not have it."""


def measure_partitions(
    partitions: Mapping[PartitionId, Sequence[Segment | Gap]], ends: Mapping[PartitionId, int]
) -> tuple[PartitionExtent, ...]:
    """Measure each partition, whose rows are in order of offsets, up to its end in `ends`, if it has one."""
    return tuple(_measure(each.partition, rows, ends.get(each)) for each, rows in partitions.items())


def _measure(partition: int, rows: Sequence[Segment | Gap], end: int | None) -> PartitionExtent:
    data = [row for row in rows if isinstance(row, Segment)]
    last = max((row.end_offset for row in rows), default=end or 0)
    reached = last if end is None else min(last, end)
    return PartitionExtent(
        partition=partition,
        first_offset=rows[0].base_offset if rows else reached,
        end_offset=reached,
        exact=not any(row.end_offset > reached for row in data),
        records=sum(row.records for row in data),
        segments=len(data),
        bytes=sum(row.bytes for row in data),
        raw_bytes=sum(row.raw_bytes for row in data),
        min_timestamp=min((row.min_timestamp for row in data if row.min_timestamp is not None), default=None),
        max_timestamp=max((row.max_timestamp for row in data if row.max_timestamp is not None), default=None),
        first_leader_epoch=data[0].first_leader_epoch if data else None,
        last_leader_epoch=data[-1].last_leader_epoch if data else None,
        spans=_spans(rows, reached),
        aborted=_aborted(data),
    )


def _spans(rows: Iterable[Segment | Gap], end: int) -> tuple[Span, ...]:
    """Neighbours with the same cover become one span; offsets without a row become a hole."""
    spans: list[Span] = []

    def add(first: int, last: int, cover: str) -> None:
        if spans and spans[-1].cover == cover:
            first = spans.pop().first_offset
        spans.append(Span(first_offset=first, end_offset=last, cover=cover))

    for row in rows:
        reached = spans[-1].end_offset if spans else row.base_offset
        first, last = max(row.base_offset, reached), min(row.end_offset, end)
        if first > reached:
            add(reached, first, HOLE)
        if last > first:
            add(first, last, DATA if isinstance(row, Segment) else str(row.reason))
    return tuple(spans)


def _aborted(data: Iterable[Segment]) -> tuple[AbortedTransaction, ...]:
    """Each transaction once: every slice that it touches names it, and it ends in the last of them."""
    found: dict[tuple[int, int], AbortedTransaction] = {}
    for row in data:
        for each in row.aborted:
            known = found.get((each.producer_id, each.first_offset))
            if known is None or known.last_offset < each.last_offset:
                found[each.producer_id, each.first_offset] = each
    return tuple(sorted(found.values(), key=lambda each: (each.first_offset, each.producer_id)))
