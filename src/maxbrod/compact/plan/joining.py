"""What the catalog records of rows that are joined to one, and whether a change of the catalog still applies. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from maxbrod.catalog.rows import newest_time

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.catalog.catalog import Catalog
    from maxbrod.catalog.rows import Segment
    from maxbrod.compact.plan.groups import Group
    from maxbrod.model import AbortedTransaction, PartitionId

IDENTITY_COLUMNS: Final = ("topic_id", "partition", "base_offset", "end_offset", "path", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where the joined rows of one part are stored."""

    path: str
    position: int
    bytes: int
    raw_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A group with the rows that it consists of."""

    group: Group
    rows: tuple[Segment, ...]

    @property
    def parts(self) -> list[tuple[Segment, ...]]:
        """The rows that each new row joins."""
        found, first = [], 0
        for count in self.group.parts:
            found.append(self.rows[first : first + count])
            first += count
        return found

    @property
    def joints(self) -> set[int]:
        """The offsets at which rows are joined."""
        return {row.base_offset for part in self.parts for row in part[1:]}

    def result(self, written: Sequence[Written], *, run_id: str, now_ms: int) -> list[Segment]:
        """The new rows."""
        return [
            join(part, each, level=self.group.level, run_id=run_id, now_ms=now_ms)
            for part, each in zip(self.parts, written, strict=True)
        ]


def join(rows: Sequence[Segment], written: Written, *, level: int, run_id: str, now_ms: int) -> Segment:
    """The row that says what these say together. They are adjacent, in order of offsets."""
    first, last = rows[0], rows[-1]
    counted = [row.control_records for row in rows if row.control_records is not None]
    return replace(
        first,
        end_offset=last.end_offset,
        path=written.path,
        position=written.position,
        bytes=written.bytes,
        raw_bytes=written.raw_bytes,
        digest=written.digest,
        records=sum(row.records for row in rows),
        control_records=sum(counted) if len(counted) == len(rows) else None,
        min_timestamp=min((row.min_timestamp for row in rows if row.min_timestamp is not None), default=None),
        max_timestamp=_newest(rows),
        # A row without records has no timestamp, and none of it can be older.
        min_timestamp_exact=any(row.records for row in rows)
        and all(row.min_timestamp_exact or not row.records for row in rows),
        last_leader_epoch=last.last_leader_epoch,
        aborted=_aborted(each for row in rows for each in row.aborted),
        reason=next((row.reason for row in rows if row.reason is not None), None),
        level=level,
        run_id=run_id,
        written_at=now_ms,
    )


def _newest(rows: Sequence[Segment]) -> int | None:
    """None also if it is unknown of a row whose records have timestamps."""
    times = [
        newest_time(row.min_timestamp, row.max_timestamp)
        for row in rows
        if row.min_timestamp is not None or row.max_timestamp is not None
    ]
    return None if None in times else max((time for time in times if time is not None), default=None)


def _aborted(transactions: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    """Each transaction once. One that goes on beyond a row is recorded up to that row's end, so the last end counts."""
    found: dict[tuple[int, int], AbortedTransaction] = {}
    for transaction in transactions:
        key = transaction.first_offset, transaction.producer_id
        known = found.get(key)
        if known is None or known.last_offset < transaction.last_offset:
            found[key] = transaction
    return tuple(found[key] for key in sorted(found))


def identities_of(catalog: Catalog, topic_ids: Iterable[str]) -> set[tuple[object, ...]]:
    """Return the live rows of topics, by `IDENTITY_COLUMNS`."""
    found: set[tuple[object, ...]] = set()
    for topic_id in topic_ids:
        rows = catalog.rows(topic_id=topic_id, columns=IDENTITY_COLUMNS)
        found.update(zip(*(rows[name].to_pylist() for name in IDENTITY_COLUMNS), strict=True))
    return found


def still_applies(
    merge: Merge, identities: Collection[tuple[object, ...]], edges: Mapping[PartitionId, Collection[int]]
) -> bool:
    """Whether the catalog still has every row of a merge, and no row has been replaced at one of its joints.

    `identities` are live rows by `IDENTITY_COLUMNS`; `edges` the bases and ends of replaced rows.
    """
    group = merge.group
    partition = next(
        (edge for edge in edges if (edge.topic_id, edge.partition) == (group.topic_id, group.partition)), None
    )
    if partition is not None and not merge.joints.isdisjoint(edges[partition]):
        return False
    return all(tuple(getattr(row, name) for name in IDENTITY_COLUMNS) in identities for row in merge.rows)
