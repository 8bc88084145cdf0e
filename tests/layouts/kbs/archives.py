"""Small archives for tests, and what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from examples import to_arrow, to_records
from reference import Record

from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.kbs.layout import LAYOUT
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="orders", partition=0)
NOTHING = Survey(layout="kbs", segments=())
FACTS = ClusterFacts(taken_at_ms=1_700_000_000_000)


def some(first: int, count: int, *, size: int = 10) -> list[Record]:
    return [
        Record(
            offset=offset,
            timestamp=1_700_000_000_000 + offset,
            key=f"k{offset}".encode(),
            value=bytes([offset % 251]) * size,
            headers=[(b"h", None)] if offset % 3 else [],
        )
        for offset in range(first, first + count)
    ]


def write(
    storage: Storage,
    records: list[Record],
    *,
    survey: Survey | None = None,
    where: TopicPartition = WHERE,
    **options: Any,
) -> list[ForeignSegment]:
    survey = LAYOUT.survey(storage) if survey is None else survey
    batches = [to_arrow(records)] if records else []
    return LAYOUT.write(storage, where, batches, WriteOptions(**options), survey=survey)


def add(storage: Storage, records: list[Record], facts: ClusterFacts = FACTS, **options: Any) -> None:
    survey = LAYOUT.survey(storage)
    written = write(storage, records, survey=survey, **options)
    LAYOUT.publish(storage, survey, written, WriteOptions(**options), facts)


def read(storage: Storage, segment: ForeignSegment) -> list[Record]:
    return [record for batch in LAYOUT.read(storage, segment) for record in to_records(batch)]


def read_all(storage: Storage) -> list[Record]:
    return [record for segment in LAYOUT.survey(storage).segments for record in read(storage, segment)]


def segment_of(path: str, held: list[Record], **fields: Any) -> ForeignSegment:
    """A segment as a survey would tell it."""
    told: dict[str, Any] = {
        "where": WHERE,
        "path": path,
        "base_offset": held[0].offset if held else 0,
        "end_offset": held[-1].offset + 1 if held else 1,
        "records": len(held),
        "bytes": 0,
    }
    return ForeignSegment(**{**told, **fields})
