"""Which slices a query must read, and which of them one task reads: from rows of the catalog, before any record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from maxbrod.archive.incarnations import Incarnation, newest_ids, select_names
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.catalog.schema import Kind
from maxbrod.model import PartitionId
from maxbrod.table.read.archive import topic_ranks
from maxbrod.table.read.columns import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.archive.snapshot_document import Snapshot
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.table.read.archive import AnyCatalog, LookedUp
    from maxbrod.table.read.options import TableOptions
    from maxbrod.table.read.scope import Scope

_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRead:
    """One slice of one partition, of which offsets below `end_offset` are meant."""

    source: Source
    stored: Slice
    end_offset: int


def plan_splits(archive: LookedUp, options: TableOptions) -> list[tuple[SliceRead, ...]]:
    """What each task reads, in the order of topic ids, partitions and offsets."""
    return group(find_portions(archive, options), options.split_bytes)


def find_portions(archive: LookedUp, options: TableOptions) -> list[SliceRead]:
    """All that may hold something of one of the scopes, in the same order."""
    snapshot = archive.last_snapshot() if options.as_of is None else archive.snapshot_of(options.as_of)
    then = None if options.as_of is None else snapshot
    wanted = _topic_ids(archive.catalog, options, then, snapshot)
    ends = None if then is None else then.ends
    found = [_find_rows(archive.catalog, scope, then, wanted) for scope in options.scopes]
    return [_portion(row, ends) for row in (found[0] if len(found) == 1 else _united(found))]


def _united(found: Iterable[Iterable[Segment]]) -> list[Segment]:
    """Each row once, in the catalog's order."""
    rows = {(row.topic_id, row.partition, row.base_offset): row for each in found for row in each}
    return [rows[place] for place in sorted(rows)]


def group(portions: Iterable[SliceRead], split_bytes: int) -> list[tuple[SliceRead, ...]]:
    """Neighbours together until they have so many bytes; a slice is never cut."""
    splits: list[list[SliceRead]] = []
    filled = split_bytes
    for portion in portions:
        if filled >= split_bytes:
            splits.append([])
            filled = 0
        splits[-1].append(portion)
        filled += portion.stored.bytes
    return [tuple(each) for each in splits]


def _topic_ids(
    catalog: AnyCatalog, options: TableOptions, then: Snapshot | None, snapshot: Snapshot | None
) -> dict[str, str]:
    """Ids and names of the incarnations that the options are about. UsageError names a topic that is not there."""
    rows = catalog.rows(columns=("topic", "topic_id", "written_at"), **_as_of(then))
    found = rows.group_by("topic_id").aggregate([("topic", "max"), ("written_at", "min")]).to_pylist()
    incarnations = [
        Incarnation(topic=each["topic_max"], topic_id=each["topic_id"], first_written_at=each["written_at_min"])
        for each in found
    ]
    # A topic without a record has no row, and is no mistake.
    empty = frozenset() if snapshot is None else frozenset(snapshot.topics.values())
    names = select_names({each.topic for each in incarnations} | empty, options.topics)
    ids = {each.topic_id: each.topic for each in incarnations if each.topic in names}
    if options.every_incarnation:
        return ids
    newest = newest_ids(incarnations, topic_ranks(snapshot))
    return {topic_id: name for topic_id, name in ids.items() if topic_id in newest}


def _find_rows(catalog: AnyCatalog, scope: Scope, then: Snapshot | None, wanted: Mapping[str, str]) -> list[Segment]:
    ids = [topic_id for topic_id, name in wanted.items() if scope.has_topic(name)]
    if not ids or scope.partitions == frozenset():
        return []
    timed = scope.since_ms is not None or scope.until_ms is not None
    first_ms = -_INT64_MAX - 1 if scope.since_ms is None else scope.since_ms
    end_ms = _INT64_MAX if scope.until_ms is None else scope.until_ms - 1
    rows = catalog.rows(
        topic_id=ids[0] if len(ids) == 1 else None,
        partition=next(iter(scope.partitions)) if scope.partitions and len(scope.partitions) == 1 else None,
        offsets=(scope.first_offset, _INT64_MAX if scope.end_offset is None else scope.end_offset),
        timestamps=(first_ms, end_ms) if timed else None,
        **_as_of(then),
    )
    # Few rows are left to be made values of, if the query asks for little.
    known = {*ids}
    data = decode_rows(rows.filter(pc.field("kind") == Kind.DATA))
    return [
        row for row in data if isinstance(row, Segment) and row.topic_id in known and scope.has_partition(row.partition)
    ]


def _as_of(then: Snapshot | None) -> dict[str, Any]:
    """What the catalog wants to know of a run, for the rows that there were then; nothing, for those of now."""
    return {} if then is None else {"as_of": then.ends, "revisions": then.revisions}


def _portion(row: Segment, ends: Mapping[PartitionId, int] | None) -> SliceRead:
    place = PartitionId(topic_id=row.topic_id, partition=row.partition)
    end = row.end_offset if ends is None else min(row.end_offset, ends[place])
    source = Source(topic=row.topic, topic_id=row.topic_id, partition=row.partition)
    return SliceRead(source=source, stored=slice_of(row), end_offset=end)
