"""Small archives of the tools that keep several backups under one root, and where those tools differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from examples import to_arrow, to_records
from reference import Record

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.foreign import ClusterFacts, ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Fault, Layout
    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="orders", partition=0)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    segments: tuple[str, str, str]
    """The first two runs' segments, of offsets 0 to 4 and 5 to 9, and one of a run that died."""
    documents: tuple[str, ...]
    writes_until_published: int
    """Of three segments: how many objects have been written when these count."""
    added_headers: int

    @property
    def layout(self) -> Layout:
        return layout_of(self.name)

    @property
    def nothing(self) -> Survey:
        return Survey(layout=self.name, segments=())

    def write(
        self,
        storage: Storage,
        records: list[Record],
        *,
        survey: Survey | None = None,
        where: TopicPartition = WHERE,
        **options: Any,
    ) -> list[ForeignSegment]:
        survey = self.layout.survey(storage) if survey is None else survey
        batches = [to_arrow(records)] if records else []
        return self.layout.write(storage, where, batches, WriteOptions(**options), survey=survey)

    def add(self, storage: Storage, records: list[Record], facts: ClusterFacts = FACTS, **options: Any) -> None:
        survey = self.layout.survey(storage)
        written = self.write(storage, records, survey=survey, **options)
        self.layout.publish(storage, survey, written, WriteOptions(**options), facts)

    def read(self, storage: Storage, segment: ForeignSegment) -> list[Record]:
        return [record for batch in self.layout.read(storage, segment) for record in to_records(batch)]

    def read_all(self, storage: Storage) -> list[Record]:
        return [record for segment in self.layout.survey(storage).segments for record in self.read(storage, segment)]

    def refused(self, storage: Storage, stored: bytes, told: list[Record], **fields: Any) -> MaxbrodError:
        storage.replace("s", stored)
        with pytest.raises(MaxbrodError) as caught:
            self.read(storage, segment_of("s", told, **fields))
        assert caught.value.object_name == storage.name_of("s")
        return caught.value

    def faults(self, storage: Storage, *, deep: bool) -> list[Fault]:
        """What a check finds that a survey does not."""
        survey = self.layout.survey(storage)
        assert survey.faults == ()
        return list(self.layout.check(storage, survey, deep=deep))


KBAK = Tool(
    name="kbak",
    segments=(
        "maxbrod/topics/orders/partition=0/segment-00000000000000000000.bin",
        "maxbrod/topics/orders/partition=0/segment-00000000000000000005.bin",
        "maxbrod/topics/orders/partition=0/segment-00000000000000000099.bin.zst",
    ),
    documents=("manifest.json", "consumer-groups-snapshot.json"),
    writes_until_published=5,  # three segments, the groups, the manifest; then the database
    added_headers=2,
)
KBS = Tool(
    name="kbs",
    segments=(
        "maxbrod/topics/orders/0/segment-00000000.kbs",
        "maxbrod/topics/orders/0/segment-00000001.kbs",
        "maxbrod/topics/orders/0/segment-00000007.kbs",
    ),
    documents=("manifest.json", "checkpoints/checkpoint.json"),
    writes_until_published=4,  # three segments, the manifest; then the checkpoint
    added_headers=3,
)
TOOLS = (KBAK, KBS)
each_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
