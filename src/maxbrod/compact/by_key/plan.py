"""Plans a compaction by key: the rows that take part, the tombstones that may go, and the new rows. Pure.

Rows of a partition that take part are read together. They are divided into groups, each of which one task reads and
writes. A group is a stretch of adjacent data rows. It ends at a gap, at a row that stays as it is, at another leader
epoch, where a generation under construction ends, and at a size.

A tombstone must stay while an older record of its key may come back: a row that stays as it is may have one, and so may
a gap that a later run or the undoing of a prune can fill. So tombstones go only below the first such offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment, shared_fields
from maxbrod.layouts.kafka.format import SegmentLimits, Slice
from maxbrod.model import MENDABLE, GapReason

GROUP_BYTES: Final = 256 << 20
"""The log that one task reads, decodes and writes again."""
DELETE_RETENTION_MS: Final = 24 * 3600 * 1000
"""Kafka's default of `delete.retention.ms`."""
_GAPS_MAX: Final = 64
_HOLE_OFFSETS_MAX: Final = 1 << 30
"""Below what a batch can span."""
HELD: Final = "held"
LATER: Final = "after the cut"
INCOMPLETE: Final = "with offsets that are missing for another reason"
_FILLABLE: Final = MENDABLE | {GapReason.PRUNED}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedGroup:
    """Adjacent rows that one task compacts."""

    rows: tuple[Segment, ...]
    last: bool
    """True if it ends the partition: the leader epoch of its last offset must stay known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    topic: str
    topic_id: str
    partition: int
    groups: tuple[KeyedGroup, ...]
    tombstones_end: int
    """Tombstones from this offset on stay."""
    left: Mapping[str, int] = field(default_factory=dict)
    """The number of data rows that stay as they are, by reason."""

    @property
    def rows(self) -> list[Segment]:
        return [row for group in self.groups for row in group.rows]

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def row_count(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPolicy:
    """The cleanup policy in the archived configuration of a topic."""

    compacted: bool
    delete_retention_ms: int


def policy_of(effective: Mapping[str, str] | None, own: Mapping[str, str | None] | None) -> CleanupPolicy:
    """`effective` has the broker's defaults too, `own` only what is set for the topic."""
    known = {**(effective or {}), **{name: value for name, value in (own or {}).items() if value is not None}}
    words = {policy.strip() for policy in known.get("cleanup.policy", "delete").split(",")}
    try:
        retention_ms = int(known.get("delete.retention.ms", DELETE_RETENTION_MS))
    except ValueError:
        retention_ms = DELETE_RETENTION_MS
    return CleanupPolicy(compacted="compact" in words, delete_retention_ms=retention_ms)


def plan_partition(
    rows: Sequence[Segment | Gap],
    *,
    end: int,
    held: Collection[int] = (),
    borders: Collection[int] = (),
    group_bytes: int = GROUP_BYTES,
) -> PartitionPlan:
    """The plan of one partition; `rows` are all of its live ones, in order.

    `end` is where the cut is, `held` the base offsets of rows that a hold protects, `borders` offsets at which rows
    must have a boundary.
    """
    left: dict[str, int] = {}
    chosen: list[Segment] = []
    unsure: int | None = None
    for row in rows:
        reason = _stays(row, end, held)
        if reason is None and isinstance(row, Segment):
            chosen.append(row)
        elif isinstance(row, Segment):
            left[str(reason)] = left.get(str(reason), 0) + 1
        if unsure is None and (reason is not None or (isinstance(row, Gap) and row.reason in _FILLABLE)):
            unsure = row.base_offset
    groups = _divide(chosen, borders, group_bytes)
    return PartitionPlan(
        topic=rows[0].topic,
        topic_id=rows[0].topic_id,
        partition=rows[0].partition,
        groups=tuple(KeyedGroup(rows=group, last=number == len(groups) - 1) for number, group in enumerate(groups)),
        tombstones_end=end if unsure is None else unsure,
        left=left,
    )


def _stays(row: Segment | Gap, end: int, held: Collection[int]) -> str | None:
    """The reason why a row of data stays as it is; None if it need not."""
    if isinstance(row, Gap):
        return None
    if row.end_offset > end:
        return LATER
    if row.base_offset in held:
        return HELD
    return INCOMPLETE if row.reason not in {None, GapReason.COMPACTED, GapReason.ERASED} else None


def _divide(rows: Sequence[Segment], borders: Collection[int], group_bytes: int) -> list[tuple[Segment, ...]]:
    groups: list[list[Segment]] = []
    size = 0
    for row in rows:
        before = groups[-1][-1] if groups else None
        if (
            before is None
            or before.end_offset != row.base_offset
            or row.base_offset in borders
            # Truncation is judged by the base of the first row that reaches into a lost epoch.
            or not before.last_leader_epoch == row.first_leader_epoch == row.last_leader_epoch
            or size + row.raw_bytes > group_bytes
        ):
            groups.append([])
            size = 0
        groups[-1].append(row)
        size += row.raw_bytes
    return [tuple(group) for group in groups]


def hole_offsets_min(groups: Iterable[KeyedGroup]) -> int:
    """The width of holes that get a row of their own: a group has about 64 of them at most.

    A few keys in a long log would else take two rows each.
    """
    widest = max((group.rows[-1].end_offset - group.rows[0].base_offset for group in groups), default=0)
    return min(max(SegmentLimits().hole_offsets_min, widest // _GAPS_MAX), _HOLE_OFFSETS_MAX)


def tile(group: KeyedGroup, written: Iterable[Slice], *, run_id: str, now_ms: int) -> list[Segment | Gap]:
    """Rows for the offsets of a group: what was written, and gaps `compacted` for all else."""
    first, end = group.rows[0], group.rows[-1].end_offset
    level = max(row.level for row in group.rows)
    shared = shared_fields(first, run_id=run_id, written_at=now_ms)
    gap = partial(Gap, **shared, reason=GapReason.COMPACTED)
    found: list[Segment | Gap] = []
    reached = first.base_offset
    for part in sorted(written, key=lambda one: one.base_offset):
        if reached < part.base_offset:
            found.append(gap(base_offset=reached, end_offset=part.base_offset))
        whole = part.records == part.end_offset - part.base_offset
        values = {name: getattr(part, name) for name in SLICE_FIELDS}
        reason = None if whole else GapReason.COMPACTED
        found.append(Segment(**shared, **values, reason=reason, level=level))
        reached = part.end_offset
    if reached < end:
        found.append(gap(base_offset=reached, end_offset=end))
    return found
