"""How a partition begins: its first segment, of offset 0, is there and listed as soon as the partition is heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import ObjectExistsError
from maxbrod.layouts.binlog.names import INDEX, RECORDS, segment_path
from maxbrod.layouts.binlog.schema import MAGIC
from maxbrod.layouts.foreign import ForeignSegment

if TYPE_CHECKING:
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def put_new(storage: Storage, path: str, data: bytes) -> None:
    """Put something that is nothing yet, unless somebody has put more."""
    try:
        storage.put(path, data)
    except ObjectExistsError:
        return


def empty_segment(storage: Storage, where: TopicPartition) -> ForeignSegment:
    """The first segment of a partition that has no records."""
    for kind in (RECORDS, INDEX):
        put_new(storage, segment_path(where, 0, kind), MAGIC)
    return ForeignSegment(
        where=where,
        path=segment_path(where, 0, RECORDS),
        base_offset=0,
        end_offset=0,
        records=0,
        bytes=len(MAGIC),
        details={"start_offset": 0, "index_bytes": len(MAGIC)},
    )
