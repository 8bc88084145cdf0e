"""Plans a read: which slices a query must read, and which of them one task reads. Reads rows only, no records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from maxbrod.archive.archive import AnyCatalog, Archive, open_archive
from maxbrod.archive.erasures import Erasures
from maxbrod.archive.selection import incarnations_in, newest_ids, select_names
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.catalog.rows import Segment, decode_rows
from maxbrod.catalog.schema import Kind
from maxbrod.model import PartitionId
from maxbrod.table.read.scope import Scope, SliceRead, SourcePartition

if TYPE_CHECKING:
    from maxbrod.table.read.options import TableOptions

_INT64_MAX: Final = 2**63 - 1


def open_table(options: TableOptions) -> Archive:
    """The archive of a read. Reads no records."""
    return open_archive(options.url, options.storage, layout=options.layout, groups=False, records=True)


def plan_splits(archive: Archive, options: TableOptions) -> list[tuple[SliceRead, ...]]:
    """The slices of each task, in the order of topic ids, partitions and offsets."""
    return group(find_slices(archive, options), options.split_bytes)


def find_slices(archive: Archive, options: TableOptions) -> list[SliceRead]:
    """All slices that may hold records of one of the scopes, in the same order."""
    moment = find_moment(archive.storage, archive.catalog.runs(), options.as_of)
    topics = _topics(archive.catalog, options, moment)
    found = [_find_rows(archive.catalog, scope, moment, topics) for scope in options.scopes]
    rows = found[0]
    if len(found) > 1:
        # Scopes may overlap: each row once, in the catalog's order.
        by_place = {(row.topic_id, row.partition, row.base_offset): row for rows in found for row in rows}
        rows = [by_place[place] for place in sorted(by_place)]
    erasures = archive.erasures()
    return [slice_read(row, erasures, moment.ends) for row in rows]


def find_topics(archive: Archive, options: TableOptions) -> dict[str, str]:
    """Ids and names of the topics that the options select."""
    moment = find_moment(archive.storage, archive.catalog.runs(), options.as_of)
    return _topics(archive.catalog, options, moment)


def slice_read(row: Segment, erasures: Erasures, ends: Mapping[PartitionId, int] | None = None) -> SliceRead:
    """A whole row, or what of it lies below the `ends` of its archive at a run."""
    place = PartitionId(topic_id=row.topic_id, partition=row.partition)
    end = row.end_offset if ends is None else min(row.end_offset, ends[place])
    source = SourcePartition(topic=row.topic, topic_id=row.topic_id, partition=row.partition)
    return SliceRead(source=source, stored=erasures.slice_of(row), end_offset=end)


def group(reads: Iterable[SliceRead], split_bytes: int) -> list[tuple[SliceRead, ...]]:
    """Neighbours together until they have `split_bytes`. A slice is never divided."""
    splits: list[list[SliceRead]] = []
    filled = split_bytes
    for read in reads:
        if filled >= split_bytes:
            splits.append([])
            filled = 0
        splits[-1].append(read)
        filled += read.stored.bytes
    return [tuple(split) for split in splits]


def _topics(catalog: AnyCatalog, options: TableOptions, moment: Moment) -> dict[str, str]:
    """Ids and names of the incarnations that the options select. UsageError names a topic that does not exist."""
    known = incarnations_in(catalog.topics(as_of=moment.ends, revisions=moment.revisions))
    # A topic without records has no row, and naming it is no mistake.
    empty = () if moment.snapshot is None else moment.snapshot.topics.values()
    names = select_names({*(incarnation.topic for incarnation in known), *empty}, options.topics)
    newest = newest_ids(known, moment.ranks)
    return {
        incarnation.topic_id: incarnation.topic
        for incarnation in known
        if incarnation.topic in names and (options.every_incarnation or incarnation.topic_id in newest)
    }


def _find_rows(catalog: AnyCatalog, scope: Scope, moment: Moment, topics: Mapping[str, str]) -> list[Segment]:
    ids = {topic_id for topic_id, name in topics.items() if scope.has_topic(name)}
    if not ids or scope.partitions == frozenset():
        return []
    timed = scope.since_ms is not None or scope.until_ms is not None
    first_ms = -_INT64_MAX - 1 if scope.since_ms is None else scope.since_ms
    end_ms = _INT64_MAX if scope.until_ms is None else scope.until_ms - 1
    rows = catalog.rows(
        topic_ids=ids,
        partition=next(iter(scope.partitions)) if scope.partitions and len(scope.partitions) == 1 else None,
        offsets=(scope.first_offset, _INT64_MAX if scope.end_offset is None else scope.end_offset),
        timestamps=(first_ms, end_ms) if timed else None,
        as_of=moment.ends,
        revisions=moment.revisions,
    )
    # Filtered as columns first: only the rows that are left become values.
    data = decode_rows(rows.filter(pc.field("kind") == Kind.DATA))
    return [row for row in data if isinstance(row, Segment) and scope.has_partition(row.partition)]
