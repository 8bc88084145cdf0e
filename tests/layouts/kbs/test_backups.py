"""What the metadata of a backup says, and what happens if it is damaged."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import RefusedError, UnsupportedFormatError
from maxbrod.layouts.foreign import ClusterFacts, WriteOptions
from maxbrod.layouts.kbs import survey as surveying
from maxbrod.layouts.kbs.survey import LAYOUT
from maxbrod.model import TopicPartition
from support import plain_kbs as plain
from support.tool_backups import KBS, WHERE, change_manifest, manifest_of, some

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

OTHER = TopicPartition(topic="orders", partition=1)


def test_fields_that_nobody_knows_stay_when_more_is_published(storage: Storage) -> None:
    KBS.add(storage, some(0, 5))

    def extend(manifest: dict[str, Any]) -> None:
        manifest["version"] = "1.1"
        manifest["later"] = {"ü": [1, None]}
        manifest["statistics"]["later"] = 5
        manifest["topics"][0]["later"] = 7

    change_manifest(storage, extend)
    KBS.add(storage, some(5, 5))
    manifest = manifest_of(storage)

    assert (manifest["version"], manifest["later"]) == ("1.1", {"ü": [1, None]})
    assert (manifest["statistics"]["later"], manifest["topics"][0]["later"]) == (5, 7)
    assert KBS.read_all(storage) == some(0, 10)


@pytest.fixture
def at_ten_fifteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of publishing: a quarter of an hour after the source was read."""
    monkeypatch.setattr(surveying, "time", SimpleNamespace(time=lambda: 1_733_220_932.0))


@pytest.mark.usefixtures("at_ten_fifteen")
def test_the_manifest_is_as_the_document_has_it(storage: Storage) -> None:
    facts = ClusterFacts(cluster_id="prod", brokers=("broker-1:9092",), taken_at_ms=1_733_220_000_000)
    survey = LAYOUT.survey(storage)
    options = WriteOptions(codec="zstd", level=5)
    written = [
        *KBS.write(storage, some(0, 5), survey=survey, segment_records_max=2),
        *KBS.write(storage, some(7, 2), survey=survey, where=OTHER),
    ]
    LAYOUT.publish(storage, survey, written, options, facts)
    manifest = manifest_of(storage)
    ours = manifest.pop("maxbrod")

    assert manifest == {
        "version": "1.0",
        "backup_id": "maxbrod",
        "created_at": "2024-12-03T10:00:00Z",
        "completed_at": "2024-12-03T10:15:32Z",
        "source_cluster": {"cluster_id": "prod", "bootstrap_servers": ["broker-1:9092"]},
        "compression": {"algorithm": "zstd", "level": 5},
        "statistics": {
            "topics": 1,
            "partitions": 2,
            "segments": 4,
            "records": 7,
            "uncompressed_bytes": sum(each.details["uncompressed_bytes"] for each in written),
            "compressed_bytes": sum(each.bytes for each in written),
        },
        "time_range": {"earliest_timestamp": 1_700_000_000_000, "latest_timestamp": 1_700_000_000_008},
        "topics": [
            {
                "name": "orders",
                "partitions": [
                    {"partition": 0, "first_offset": 0, "last_offset": 4, "records": 5, "segments": 3},
                    {"partition": 1, "first_offset": 7, "last_offset": 8, "records": 2, "segments": 1},
                ],
            }
        ],
    }
    assert list(manifest) == [
        *("version", "backup_id", "created_at", "completed_at", "source_cluster", "compression", "statistics"),
        *("time_range", "topics"),
    ]
    assert len(ours["segments"]["orders"]["0"]) == 3


@pytest.mark.usefixtures("at_ten_fifteen")
def test_the_checkpoint_is_as_the_document_has_it(storage: Storage) -> None:
    KBS.add(storage, some(0, 5), segment_records_max=2)
    checkpoint = manifest_of(storage, "maxbrod/checkpoints/checkpoint.json")

    assert checkpoint == {
        "backup_id": "maxbrod",
        "timestamp": "2024-12-03T10:15:32Z",
        "topics": {
            "orders": {
                "0": {
                    "offset": 4,
                    "timestamp": 1_700_000_000_004,
                    "segment": "segment-00000002.kbs",
                    "segment_offset": storage.head("maxbrod/topics/orders/0/segment-00000002.kbs").size,
                }
            }
        },
    }


def _foreign(storage: Storage, **changes: Any) -> None:
    """A backup of a tool that knows the document and nothing of ours: segments with a hole between them."""
    parts = [some(0, 3), some(3, 2), some(9, 4)]
    for index, part in enumerate(parts):
        storage.put(f"b/topics/orders/0/segment-{index:08d}.kbs", plain.segment_of(part, 2))
    storage.put("b/topics/orders/0/segment-00000003.kbs", b"of a run that died")
    partition = {"partition": 0, "first_offset": 0, "last_offset": 12, "records": 9, "segments": 3}
    manifest = {
        "version": "1.1",
        "backup_id": "b",
        "created_at": "2024-12-03T10:00:00Z",
        "statistics": {"uncompressed_bytes": 1000},
        "topics": [{"name": "orders", "partitions": [{**partition, **changes}]}],
    }
    storage.put("b/manifest.json", json.dumps(manifest).encode())


def test_a_backup_that_says_nothing_of_its_segments_is_told_by_their_headers(storage: Storage) -> None:
    _foreign(storage)
    survey = LAYOUT.survey(storage)

    assert survey.faults == ()
    assert [(each.base_offset, each.end_offset, each.records) for each in survey.segments] == [
        (0, 3, 3),
        (3, 9, 2),
        (9, 13, 4),
    ]
    assert KBS.read_all(storage) == [*some(0, 5), *some(9, 4)]


def test_a_backup_of_another_tool_can_be_added_to(storage: Storage) -> None:
    _foreign(storage)
    KBS.add(storage, some(13, 2))
    manifest = manifest_of(storage, "b/manifest.json")

    assert KBS.read_all(storage) == [*some(0, 5), *some(9, 4), *some(13, 2)]
    assert manifest["topics"][0]["partitions"] == [
        {"partition": 0, "first_offset": 0, "last_offset": 14, "records": 11, "segments": 4}
    ]
    assert manifest["statistics"]["uncompressed_bytes"] == 1000 + len(plain.write_block(some(13, 2)))


def test_segments_that_are_counted_and_not_there_are_faults(storage: Storage) -> None:
    _foreign(storage, segments=9)

    assert {fault.fatal for fault in LAYOUT.survey(storage).faults} == {True}
    storage.delete(["b/topics/orders/0/segment-00000001.kbs"])
    assert KBS.read_all(storage) == [*some(0, 3), *some(9, 4)]


def test_a_count_without_end_takes_no_time(storage: Storage) -> None:
    _foreign(storage, segments=(1 << 63) - 1)

    assert {fault.fatal for fault in LAYOUT.survey(storage).faults} == {True}


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.99"])
def test_every_version_1_is_read(storage: Storage, version: str) -> None:
    KBS.add(storage, some(0, 5))
    change_manifest(storage, lambda manifest: manifest.update(version=version))

    assert KBS.read_all(storage) == some(0, 5)


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.1", "1", "x", ""])
def test_another_version_is_refused(storage: Storage, version: str) -> None:
    KBS.add(storage, some(0, 5))
    change_manifest(storage, lambda manifest: manifest.update(version=version))

    assert LAYOUT.detect(storage)
    with pytest.raises(UnsupportedFormatError, match="the manifest has version"):
        LAYOUT.survey(storage)


def test_where_manifest_and_checkpoint_disagree_the_manifest_is_the_truth(storage: Storage) -> None:
    KBS.add(storage, some(0, 5))
    topics = {"orders": {"0": {"offset": 99}}, "gone": {"3": {"offset": 7}}}
    storage.replace("maxbrod/checkpoints/checkpoint.json", json.dumps({"topics": topics}).encode())
    survey = LAYOUT.survey(storage)

    assert survey.positions == {WHERE: 5}
    assert [fault.fatal for fault in survey.faults] == [False, False]


@pytest.mark.parametrize("text", [b"{", b'{"topics": {"x": 5}}', b'{"topics": {"orders": {"x": {}}}}', b"[]"])
def test_a_broken_checkpoint_loses_nothing_and_is_made_anew(storage: Storage, text: bytes) -> None:
    KBS.add(storage, some(0, 5))
    storage.replace("maxbrod/checkpoints/checkpoint.json", text)

    assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [False]
    assert LAYOUT.survey(storage).positions == {WHERE: 5}


@pytest.mark.parametrize(
    "change", [{"last_offset": -5}, {"records": "x"}, {"segments": None}, {"partition": 1 << 40}, {"last_offset": 1.5}]
)
def test_a_partition_that_cannot_be_is_a_fault(storage: Storage, change: dict[str, Any]) -> None:
    KBS.add(storage, some(0, 5))
    change_manifest(storage, lambda manifest: manifest["topics"][0]["partitions"][0].update(change))

    assert LAYOUT.survey(storage).faults[0].fatal
    with pytest.raises(RefusedError, match="this backup is damaged"):
        KBS.add(storage, some(5, 1))


@pytest.mark.parametrize(
    "ours", [5, {"segments": 5}, {"segments": {"orders": {"0": [{}]}}}, {"groups": [{}]}, {"topics": {"..": {}}}]
)
def test_our_part_of_a_manifest_can_break_without_losing_a_record(storage: Storage, ours: object) -> None:
    KBS.add(storage, some(0, 5))
    change_manifest(storage, lambda manifest: manifest.update(maxbrod=ours))

    assert not any(fault.fatal for fault in LAYOUT.survey(storage).faults)
    assert KBS.read_all(storage) == some(0, 5)
