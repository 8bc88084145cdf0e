"""Small archives of the tools that keep several backups under one root, and where those tools differ."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import MaxbrodError
from maxbrod.layouts.foreign import ClusterFacts, Fault, ForeignSegment, Layout, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.model import TopicPartition
from support.plain_batches import Record
from support.record_examples import to_arrow, to_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.storage.interface import Storage

WHERE = TopicPartition(topic="orders", partition=0)
MANIFEST = "maxbrod/manifest.json"
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


def manifest_of(storage: Storage, path: str = MANIFEST) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(bytes(storage.get(path)))
    return found


def change_manifest(storage: Storage, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = manifest_of(storage)
    change(manifest)
    storage.replace(MANIFEST, json.dumps(manifest).encode())


def segment_of(path: str, held: list[Record], **fields: Any) -> ForeignSegment:
    """A segment as a survey would describe it."""
    described: dict[str, Any] = {
        "where": WHERE,
        "path": path,
        "base_offset": held[0].offset if held else 0,
        "end_offset": held[-1].offset + 1 if held else 1,
        "records": len(held),
        "bytes": 0,
    }
    return ForeignSegment(**{**described, **fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    segments: tuple[str, str, str]
    """The first two runs' segments, of offsets 0 to 4 and 5 to 9, and one of a run that died."""
    documents: tuple[str, ...]
    writes_until_published: int
    """The number of objects written until a run of three segments is published."""
    added_headers: int
    golden: bytes
    golden_path: str

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

    def refused(self, storage: Storage, stored: bytes, held: list[Record], **fields: Any) -> MaxbrodError:
        storage.replace("s", stored)
        with pytest.raises(MaxbrodError) as caught:
            self.read(storage, segment_of("s", held, **fields))
        assert caught.value.object_name == storage.name_of("s")
        return caught.value

    def faults(self, storage: Storage, *, deep: bool) -> list[Fault]:
        """What a check finds that a survey does not."""
        survey = self.layout.survey(storage)
        assert survey.faults == ()
        return list(self.layout.check(storage, survey, deep=deep))


# The same two records in both layouts, written by hand: offset 5, time 1,700,000,000,123, key k, value v, a header h
# without a value; then a tombstone. The pages of the layouts show these bytes.
GOLDEN_RECORDS = [
    Record(offset=5, timestamp=1_700_000_000_123, key=b"k", value=b"v", headers=[(b"h", None)]),
    Record(offset=7, timestamp=-1, key=b"k", value=None),
]
KBAK_GOLDEN = bytes.fromhex(
    "4b42414b01000000"      # KBAK, version 1, not compressed
    "0200000000000000"               # two records
    "0500000000000000"               # from offset 5
    "0700000000000000"               # to offset 7
    "230000007b68e5cf8b0100000500000000000000010000006b0100000076"
    "0100010068ffffffff"    # one header: h, null
    "1b000000ffffffffffffffff0700000000000000010000006bffffffff0000"
    "891c1f87424b4145"            # CRC-32, BKAE
)  # fmt: skip
KBS_GOLDEN = bytes.fromhex(
    "4b42533101000000"              # KBS1, version 1, not compressed
    "00000000000000050000000000000002"    # from offset 5, two records
    "ee5a04fb2b6ff8a0"                               # CRC-64 of all batches
    "000000000000000500000002"            # batch: from offset 5, two records
    "0000001500000015"                    # 21 bytes, and as many unpacked
    "033e4016"                                 # CRC-32 of them
    "00f6a1abfef962"                         # delta 0, time 1,700,000,000,123
    "026b027602026801"                     # k, v, one header: h, null
    "0401026b0100"                           # delta 2, time -1, k, null, no headers
    "000000000000000265f8fc88b0a1558e"              # two records, CRC-64 of everything before
)  # fmt: skip

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
    golden=KBAK_GOLDEN,
    golden_path="maxbrod/topics/orders/partition=0/segment-00000000000000000005.bin",
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
    golden=KBS_GOLDEN,
    golden_path="maxbrod/topics/orders/0/segment-00000000.kbs",
)
TOOLS = (KBAK, KBS)
each_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
