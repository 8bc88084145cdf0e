"""Counts the records of a query from the catalog alone, where that is exact. Opens no segment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.cuts import Cut
from maxbrod.catalog.rows import newest_time
from maxbrod.catalog.schema import Kind
from maxbrod.layouts.kafka.format import Slice
from maxbrod.table.read.scope import Scope, SliceRead, SourcePartition

if TYPE_CHECKING:
    from maxbrod.table.read.options import TableOptions


_COLUMNS: Final = ("topic_id", "partition", "kind", "details", "aborted", "records", "control_records")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The records of one partition."""

    topic: str
    topic_id: str
    partition: int
    records: int


def count_records(options: TableOptions) -> tuple[Count, ...] | None:
    """The counts of all partitions that have records, in the order of topic ids.

    None: the catalog does not know them exactly, and the records must be counted. This is so where a limit of time or
    offset falls inside a segment, where transactions were aborted, and in other tools' layouts.
    """
    from maxbrod.table.read.splits import find_slices, open_table  # noqa: PLC0415 - Delta and pyspark

    return count_slices(find_slices(open_table(options), options), options)


def count_whole(options: TableOptions) -> tuple[Count, ...] | None:
    """The same from columns in portions, however many rows there are. None also if there is any limit."""
    from maxbrod.table.read.splits import find_topics, open_table  # noqa: PLC0415 - Delta and pyspark

    if options.scopes != (Scope(),) or options.as_of is not None:
        return None
    archive = open_table(options)
    topics = find_topics(archive, options)
    if not archive.erasures().topic_ids.isdisjoint(topics):
        return None
    totals: list[pa.Table] = []
    for rows in archive.catalog.portions(_COLUMNS, topic_ids=topics):
        data = rows.filter(pc.equal(rows["kind"], str(Kind.DATA)))
        if data["details"].null_count < len(data) or data["control_records"].null_count:
            return None
        if options.committed and pc.any(pc.greater(pc.list_value_length(data["aborted"]), 0)).as_py():
            return None
        sums = data.group_by(["topic_id", "partition"], use_threads=False)
        # A partition is in one portion, so that these are its totals.
        totals.append(sums.aggregate([("records", "sum"), ("control_records", "sum")]))
    return tuple(
        Count(topic=topics[row["topic_id"]], topic_id=row["topic_id"], partition=row["partition"], records=records)
        for total in totals
        for row in total.to_pylist()
        if (records := row["records_sum"] - row["control_records_sum"])
    )


def count_slices(slices: Iterable[SliceRead], options: TableOptions) -> tuple[Count, ...] | None:
    """The same, of slices that are found already."""
    found: Counter[SourcePartition] = Counter()
    for read in slices:
        known = known_records(read.stored, read.cut(options.scopes), committed=options.committed)
        if known is None:
            return None
        found[read.source] += known
    return tuple(
        Count(topic=source.topic, topic_id=source.topic_id, partition=source.partition, records=records)
        for source, records in found.items()
        if records
    )


def known_records(stored: Slice, cut: Cut, *, committed: bool) -> int | None:
    """The number of records of a slice inside the cut; None if only its records can tell."""
    if stored.details is not None or stored.control_records is None or (committed and stored.aborted):
        return None
    if stored.erased is not None:
        return None
    if not _all_in_time(stored, cut):
        return None
    first, end = max(cut.first_offset, stored.base_offset), stored.end_offset
    if cut.end_offset is not None:
        end = min(end, cut.end_offset)
    if (first, end) == (stored.base_offset, stored.end_offset):
        return stored.records - stored.control_records
    # A part of its offsets: if there are neither holes nor markers, each offset is a record.
    dense = stored.control_records == 0 and stored.records == stored.end_offset - stored.base_offset
    return max(end - first, 0) if dense else None


def _all_in_time(stored: Slice, cut: Cut) -> bool:
    if cut.since_ms is None and cut.until_ms is None:
        return True
    # If the lowest timestamp is not exact, some records may have none.
    newest = newest_time(stored.min_timestamp, stored.max_timestamp)
    if not stored.min_timestamp_exact or stored.min_timestamp is None or newest is None:
        return False
    late_enough = cut.since_ms is None or stored.min_timestamp >= cut.since_ms
    return late_enough and (cut.until_ms is None or newest < cut.until_ms)
