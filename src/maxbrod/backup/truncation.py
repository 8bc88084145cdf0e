"""Takes back what the archive holds of a log that was cut: after an unclean election, say, records are gone.

What the archive has beyond the cut is another history than the log's own, so other rows take the place of its rows. As
of the runs that knew nothing of the cut they are still there, and so are their objects: they may be all that is left of
those records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment, decode_rows, slice_of
from maxbrod.layouts.kafka.cut import cut_slice
from maxbrod.layouts.kafka.partition import PartitionName

if TYPE_CHECKING:
    from maxbrod.archive.opening import Archive
    from maxbrod.catalog.rows import Row
    from maxbrod.model import PartitionId

_EVERYTHING: Final = 2**63 - 1


def held_rows(archive: Archive, partition: PartitionId) -> list[Row]:
    """Everything that the archive holds of a partition."""
    return decode_rows(archive.catalog.rows(topic_id=partition.topic_id, partition=partition.partition))


def cut_back(archive: Archive, partition: PartitionId, offset: int, *, run_id: str, now_ms: int) -> list[Segment]:
    """Commit that the archive holds nothing of this partition from `offset` on; what it held there before."""
    table = archive.catalog.rows(
        topic_id=partition.topic_id, partition=partition.partition, offsets=(offset, _EVERYTHING)
    )
    rows = decode_rows(table)
    kept = [_kept(archive, row, offset, run_id=run_id, now_ms=now_ms) for row in rows]
    archive.catalog.commit([row for row in kept if row is not None], retired=table)
    return [row for row in rows if isinstance(row, Segment)]


def _kept(archive: Archive, row: Row, offset: int, *, run_id: str, now_ms: int) -> Row | None:
    """The part of a row before `offset`."""
    match row:
        case Gap() if row.base_offset < offset:
            return replace(row, end_offset=offset, run_id=run_id, written_at=now_ms)
        case Segment() if row.base_offset < offset:
            whole = slice_of(row)
            name = PartitionName(topic=row.topic, topic_id=row.topic_id, partition=row.partition)
            part = cut_slice(archive.storage, whole, offset, name)
            if part is None:
                return None
            values = {name: getattr(part, name) for name in SLICE_FIELDS}
            return replace(row, **values, run_id=run_id, written_at=now_ms)
        case _:
            return None
