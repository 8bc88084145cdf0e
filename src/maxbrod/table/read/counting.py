"""How many records a query is about, where the catalog alone can tell. Opens no segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxbrod.batch.cuts import Cut
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.table.read.options import TableOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The records of one partition. Partitions without any are not told."""

    topic: str
    topic_id: str
    partition: int
    records: int


def count_records(options: TableOptions) -> tuple[Count, ...] | None:
    """Per partition, in the order of topic ids.

    None: the catalog does not know it exactly, and the records must be counted. So it is where a limit of time or of
    offsets goes through a segment, where transactions were aborted, and in other tools' layouts.
    """
    from maxbrod.table.read.archive import look_up  # noqa: PLC0415 - Delta, which no task needs
    from maxbrod.table.read.scope import cut_of  # noqa: PLC0415 - pyspark
    from maxbrod.table.read.splits import find_portions  # noqa: PLC0415 - as above

    found: dict[tuple[str, str, int], int] = {}
    for portion in find_portions(look_up(options.url, options.storage, options.layout), options):
        known = known_records(
            portion.stored,
            cut_of(options.scopes, portion.source.topic, portion.source.partition, portion.end_offset),
            committed=options.committed,
        )
        if known is None:
            return None
        place = (portion.source.topic, portion.source.topic_id, portion.source.partition)
        found[place] = found.get(place, 0) + known
    return tuple(
        Count(topic=topic, topic_id=topic_id, partition=partition, records=records)
        for (topic, topic_id, partition), records in found.items()
        if records
    )


def known_records(stored: Slice, cut: Cut, *, committed: bool) -> int | None:
    """How many records of a slice are wanted, if that is known without looking into it."""
    if stored.details is not None or stored.control_records is None or (committed and stored.aborted):
        return None
    if not _all_in_time(stored, cut):
        return None
    first, end = max(cut.first_offset, stored.base_offset), stored.end_offset
    if cut.end_offset is not None:
        end = min(end, cut.end_offset)
    if (first, end) == (stored.base_offset, stored.end_offset):
        return stored.records - stored.control_records
    # Some of its offsets: without holes and markers, each is a record.
    dense = stored.control_records == 0 and stored.records == stored.end_offset - stored.base_offset
    return max(end - first, 0) if dense else None


def _all_in_time(stored: Slice, cut: Cut) -> bool:
    if cut.since_ms is None and cut.until_ms is None:
        return True
    # Without an exact lowest time there may be records that have none.
    if not stored.min_timestamp_exact or stored.min_timestamp is None or stored.max_timestamp is None:
        return False
    late_enough = cut.since_ms is None or stored.min_timestamp >= cut.since_ms
    return late_enough and (cut.until_ms is None or stored.max_timestamp < cut.until_ms)
