"""What the real tool wrote, decoded and written again."""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import UsageError
from maxbrod.layouts.foreign import UNCOMMITTED, ClusterFacts, ForeignSegment, ForeignTopic, WriteOptions
from maxbrod.layouts.kbak.reader import check
from maxbrod.layouts.kbak.survey import LAYOUT
from maxbrod.layouts.registry import detect_layout, layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.local import LocalStorage
from support import plain_kbak as plain
from support.plain_batches import Record
from support.record_examples import to_arrow
from support.samples import SAMPLES
from support.tool_backups import KBAK

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

WRITTEN = SAMPLES / "oso"
DATASETS = [
    f"{version}-{kind}" for version in ("0.17.4", "0.25.2") for kind in ("none", "zstd", "zstd-offset-headers", "lz4")
]

needs_samples = pytest.mark.skipif(
    not (WRITTEN / "expected.json").exists(), reason=f"the samples are not at {WRITTEN}; MAXBROD_SAMPLES says where"
)


@cache
def expected() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((WRITTEN / "expected.json").read_bytes())
    return document


def consumed(topic: str, partition: int, *, committed: bool) -> list[Record]:
    """What a consumer found in a partition."""
    rows = expected()["topics"][topic]
    if isinstance(rows, dict):
        rows = rows["read_committed" if committed else "read_uncommitted"]
    return [
        Record(
            offset=row["offset"],
            timestamp=row["timestamp"],
            key=_bytes(row["key"]),
            value=_bytes(row["value"]),
            headers=[(key.encode(), _bytes(value)) for key, value in row["headers"]],
        )
        for row in rows
        if row["partition"] == partition
    ]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


pytestmark = needs_samples

PARTITIONS = [TopicPartition(topic=topic, partition=p) for topic in ("smp-orders", "smp-txn") for p in range(3)]


def _opened(dataset: str) -> LocalStorage:
    return LocalStorage(WRITTEN / dataset)


def _without_tracking(record: Record) -> Record:
    added = [(b"x-original-offset", record.offset), (b"x-original-timestamp", record.timestamp)]
    assert record.headers[-2:] == [(name, struct.pack("<q", value)) for name, value in added]
    return replace(record, headers=record.headers[:-2])


def _as_old(record: Record) -> Record:
    """Version 0.17 archives a header's null as empty, and of several under one key the last, in the first's place."""
    return replace(record, headers=list({key: value or b"" for key, value in record.headers}.items()))


def _is_marker(record: Record) -> bool:
    """Version 0.17 archives the markers of transactions as if they were records."""
    return record.key in {struct.pack(">hh", 0, 0), struct.pack(">hh", 0, 1)} and record.value == bytes(6)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("where", PARTITIONS, ids=str)
def test_every_sample_decodes_to_what_a_consumer_read(dataset: str, where: TopicPartition) -> None:
    storage = _opened(dataset)
    facts = expected()["datasets"][dataset]
    old = facts["tool_version"] == "0.17.4"
    segments = [segment for segment in LAYOUT.survey(storage).segments if segment.where == where]
    records = [record for segment in segments for record in KBAK.read(storage, segment)]
    if facts["include_offset_headers"]:
        records = [_without_tracking(record) for record in records]

    markers = [record.offset for record in records if _is_marker(record)]
    assert markers == ([5, 11] if old and where.topic == "smp-txn" else [])
    read = consumed(where.topic, where.partition, committed=not old)
    assert [record for record in records if not _is_marker(record)] == (list(map(_as_old, read)) if old else read)


@pytest.mark.parametrize("dataset", DATASETS)
def test_no_sample_has_a_fault(dataset: str) -> None:
    storage = _opened(dataset)
    survey = LAYOUT.survey(storage)

    assert detect_layout(storage) == "kbak"
    assert not layout_of("kbs").detect(storage)
    assert survey.faults == ()
    assert list(check(storage, survey, deep=True)) == []
    assert survey.positions == {where: 200 if where.topic == "smp-orders" else 12 for where in PARTITIONS}
    assert survey.topics["smp-orders"].partition_count == 3


def test_of_several_backups_under_one_root_one_must_be_named() -> None:
    storage = LocalStorage(WRITTEN)

    assert LAYOUT.detect(storage)
    with pytest.raises(UsageError, match=r"several backups here: .*0\.25\.2-zstd"):
        LAYOUT.survey(storage)
    named = LAYOUT.survey(storage, {"backup_id": "0.25.2-zstd"})
    assert {segment.path.split("/")[0] for segment in named.segments} == {"0.25.2-zstd"}
    assert len(KBAK.read(storage, named.segments[0])) == named.segments[0].records


@pytest.mark.parametrize("dataset", [each for each in DATASETS if each.endswith("none")])
def test_an_uncompressed_segment_is_written_again_byte_for_byte(dataset: str, storage: Storage) -> None:
    original = _opened(dataset)
    for segment in LAYOUT.survey(original).segments:
        options = WriteOptions(codec="none", extra={"backup_id": dataset})
        # Markers, which stand among the records of 0.17, would be left out.
        batches = LAYOUT.read(original, replace(segment, details={**segment.details, UNCOMMITTED: False}))
        [again] = LAYOUT.write(storage, segment.where, batches, options, survey=KBAK.nothing)

        assert bytes(storage.get(again.path)) == bytes(original.get(segment.path))
        assert again.path == segment.details["key"]


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_manifest_that_nothing_is_added_to_stays_byte_for_byte(dataset: str, storage: Storage) -> None:
    for info in (original := _opened(dataset)).list():
        storage.put(info.path, original.get(info.path))
    codec = expected()["datasets"][dataset]["compression"]
    LAYOUT.publish(storage, LAYOUT.survey(storage), [], WriteOptions(codec=codec), ClusterFacts())

    assert bytes(storage.get("manifest.json")) == bytes(original.get("manifest.json"))
    assert LAYOUT.survey(storage).faults == ()


def test_a_backup_written_anew_has_the_tools_own_manifest_up_to_times(storage: Storage) -> None:
    """As version 0.25.2 does: the same segments, cut at the same records, with the same fields."""
    original = _opened("0.25.2-none")
    manifest = json.loads(bytes(original.get("manifest.json")))
    options = WriteOptions(codec="none", segment_bytes_max=65536, extra={"backup_id": "0.25.2-none"})
    written: list[ForeignSegment] = []
    for partition in manifest["topics"][0]["partitions"]:
        where = TopicPartition(topic="smp-orders", partition=partition["partition_id"])
        records = consumed(where.topic, where.partition, committed=True)
        written += LAYOUT.write(storage, where, [to_arrow(records)], options, survey=KBAK.nothing)
    written.sort(key=lambda each: each.base_offset)
    topic = ForeignTopic(name="smp-orders", partition_count=3, replication_factor=1)
    LAYOUT.publish(storage, KBAK.nothing, written, options, ClusterFacts(topics={"smp-orders": topic}))

    ours = bytes(storage.get("0.25.2-none/manifest.json")).decode()
    theirs = dict(manifest, topics=manifest["topics"][:1])
    assert _timeless(json.loads(ours)) == _timeless(theirs)
    assert ours == json.dumps(json.loads(ours), indent=2, ensure_ascii=False)
    for segment in written:
        theirs_at = segment.path.removeprefix("0.25.2-none/")
        assert bytes(storage.get(segment.path)) == bytes(original.get(theirs_at))


def _timeless(value: Any) -> Any:
    """The manifest without fields that depend on the clock, or on the tool's own view of the broker."""
    moment = {"created_at", "uploaded_at", "snapshot_end_offset", "high_watermark_at_capture", "isolation_level"}
    if isinstance(value, dict):
        return [(name, _timeless(each)) for name, each in value.items() if name not in moment]
    return sorted(map(_timeless, value), key=str) if isinstance(value, list) else value


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_plain_reader_finds_the_same_in_every_segment(dataset: str) -> None:
    storage = _opened(dataset)
    for segment in LAYOUT.survey(storage).segments:
        assert plain.read_segment(bytes(storage.get(segment.path))) == KBAK.read(storage, segment)
