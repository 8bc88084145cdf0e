"""Rows of a new archive for slices that were copied from another one: each offset is data or a gap, as it was. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment
from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.layouts.kafka.format import Slice


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
    rows: list[Segment | Gap] = []
    reached = source[0].base_offset
    end = source[-1].end_offset
    for each in written:
        rows += _gaps(source, reached, min(each.base_offset, end), run_id, written_at, otherwise)
        rows.append(_segment(source, each, run_id, written_at, otherwise))
        reached = max(reached, each.end_offset)
    return [*rows, *_gaps(source, reached, end, run_id, written_at, otherwise)]


def _gaps(
    source: Sequence[Segment | Gap], first: int, end: int, run_id: str, written_at: int, otherwise: GapReason | None
) -> Iterator[Gap]:
    """Offsets [first, end) without data, with the reasons of the rows in the source."""
    for row in source:
        low, high = max(row.base_offset, first), min(row.end_offset, end)
        if low < high:
            yield Gap(
                topic=row.topic,
                topic_id=row.topic_id,
                partition=row.partition,
                base_offset=low,
                end_offset=high,
                reason=row.reason or otherwise or GapReason.UNEXPLAINED,
                run_id=run_id,
                written_at=written_at,
            )


def _segment(
    source: Sequence[Segment | Gap], written: Slice, run_id: str, written_at: int, otherwise: GapReason | None
) -> Segment:
    first = source[0]
    reason = None
    if written.records < written.end_offset - written.base_offset:
        overlapping = (
            row.reason
            for row in source
            if row.base_offset < written.end_offset and row.end_offset > written.base_offset and row.reason is not None
        )
        reason = next(overlapping, otherwise)
    return Segment(
        topic=first.topic,
        topic_id=first.topic_id,
        partition=first.partition,
        **{name: getattr(written, name) for name in SLICE_FIELDS},
        reason=reason,
        run_id=run_id,
        written_at=written_at,
    )
