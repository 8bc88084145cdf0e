"""What the metadata of a backup says, and what happens if it is damaged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.layouts.foreign import WriteOptions
from maxbrod.layouts.kbak.survey import LAYOUT
from maxbrod.model import TopicPartition
from support import plain_kbak as plain
from support.tool_backups import FACTS, KBAK, MANIFEST, WHERE, change_manifest, manifest_of, some

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import Storage

OTHER = TopicPartition(topic="orders", partition=1)


def test_fields_that_nobody_knows_stay_when_more_is_published(storage: Storage) -> None:
    KBAK.add(storage, some(0, 5))

    def extend(manifest: dict[str, Any]) -> None:
        manifest["isolation_level"] = "read_committed"
        manifest["topics"][0]["later"] = {"ü": [1, None]}
        partition = manifest["topics"][0]["partitions"][0]
        partition["pruned"] = []
        partition["segments"][0]["aborted_records_dropped"] = 4

    change_manifest(storage, extend)
    KBAK.add(storage, some(5, 5))
    manifest = manifest_of(storage)

    assert manifest["isolation_level"] == "read_committed"
    assert manifest["topics"][0]["later"] == {"ü": [1, None]}
    segments = manifest["topics"][0]["partitions"][0]["segments"]
    assert [segment.get("aborted_records_dropped") for segment in segments] == [4, None]


def test_gaps_and_pruned_ranges_are_told(storage: Storage) -> None:
    KBAK.add(storage, some(10, 5))

    def extend(manifest: dict[str, Any]) -> None:
        partition = manifest["topics"][0]["partitions"][0]
        partition["gaps"] = [{"start_offset": 15, "end_offset": 20, "reason": "offset_out_of_range", "detected_at": 1}]
        partition["pruned"] = [{"start_offset": 0, "end_offset": 9, "reason": "retention"}]

    change_manifest(storage, extend)
    survey = LAYOUT.survey(storage)

    assert [(gap.base_offset, gap.end_offset, gap.reason) for gap in survey.gaps] == [
        (15, 20, "retention"),
        (0, 10, "pruned"),
    ]
    assert survey.positions == {WHERE: 20}


def test_coverage_beyond_the_last_record_counts(storage: Storage) -> None:
    KBAK.add(storage, some(0, 5))
    change_manifest(storage, lambda manifest: manifest["topics"][0]["partitions"][0].update(covered_through=11))

    assert LAYOUT.survey(storage).positions == {WHERE: 12}
    KBAK.add(storage, some(12, 1))
    assert KBAK.read_all(storage) == [*some(0, 5), *some(12, 1)]


@pytest.mark.parametrize(("second", "kept"), [((3, 4), [(0, 5), (5, 7)]), ((1, 2), [(0, 5)]), ((0, 5), [(0, 5)])])
def test_records_that_were_archived_twice_are_given_once(
    storage: Storage, second: tuple[int, int], kept: list[tuple[int, int]]
) -> None:
    KBAK.add(storage, some(0, 5), codec="none")
    again = some(*second)
    data = plain.write_segment(again)
    storage.put("maxbrod/topics/orders/partition=0/twice", data)
    entry = {
        "key": "maxbrod/topics/orders/partition=0/twice",
        "start_offset": again[0].offset,
        "end_offset": again[-1].offset,
        "start_timestamp": 0,
        "end_timestamp": 0,
        "record_count": len(again),
    }
    change_manifest(storage, lambda manifest: manifest["topics"][0]["partitions"][0]["segments"].insert(0, entry))
    survey = LAYOUT.survey(storage)

    assert [(each.base_offset, each.end_offset) for each in survey.segments] == kept
    assert [fault.fatal for fault in survey.faults] == [False]
    assert [record.offset for record in KBAK.read_all(storage)] == list(range(kept[-1][1]))
    assert (
        sum(batch.num_rows for each in survey.segments for batch in LAYOUT.read(storage, each, columns=["key"]))
        == (kept[-1][1])
    )


@pytest.mark.parametrize(
    "change",
    [
        {"key": "maxbrod/../../etc/passwd"},
        {"key": "/etc/passwd"},
        {"key": "other/topics/orders/partition=0/x"},
        {"key": 5},
        {"start_offset": -1},
        {"end_offset": 2**63},
        {"end_offset": True},
        {"record_count": "5"},
        {"record_count": None},
        {"start_timestamp": 1e300},
        {"compressed_size": -1},
        {"sha256": 7},
    ],
)
def test_a_segment_that_cannot_be_is_a_fault_and_the_rest_is_read(storage: Storage, change: dict[str, Any]) -> None:
    KBAK.add(storage, some(0, 5))
    KBAK.add(storage, some(5, 5))
    change_manifest(storage, lambda manifest: manifest["topics"][0]["partitions"][0]["segments"][0].update(change))
    survey = LAYOUT.survey(storage)

    assert [fault.fatal for fault in survey.faults] == [True]
    assert survey.faults[0].path == MANIFEST
    assert KBAK.read_all(storage) == some(5, 5)
    with pytest.raises(Exception, match="manifest is damaged"):
        KBAK.add(storage, some(10, 1))


def test_without_a_manifest_no_offset_is_told_twice(storage: Storage) -> None:
    KBAK.add(storage, some(0, 5))
    storage.put("maxbrod/topics/orders/partition=0/segment-00000000000000000003.bin", plain.write_segment(some(3, 4)))
    storage.put("maxbrod/topics/orders/partition=0/segment-00000000000000000009.bin", b"short")
    storage.replace(MANIFEST, b"{")

    assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [False, True, True]
    assert KBAK.read_all(storage) == some(0, 5)


def _database(storage: Storage) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(storage.get("maxbrod/offsets.db")))
        return connection.execute("SELECT * FROM offsets ORDER BY topic, partition").fetchall()


def test_the_database_tells_the_tool_where_to_go_on(storage: Storage) -> None:
    survey = LAYOUT.survey(storage)
    written = [
        *KBAK.write(storage, some(0, 5), survey=survey),
        *KBAK.write(storage, some(7, 2), survey=survey, where=OTHER),
    ]
    LAYOUT.publish(storage, survey, written, WriteOptions(), FACTS)

    assert _database(storage) == [
        ("maxbrod", "orders", 0, 4, FACTS.taken_at_ms),
        ("maxbrod", "orders", 1, 8, FACTS.taken_at_ms),
    ]


def _made_database(path: Path, script: str, *, wal: bool = False) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(script)
        connection.commit()
    return path.read_bytes()


_ENDLESS = """
CREATE VIEW offsets AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
SELECT 'maxbrod' AS backup_id, 'x' AS topic, i AS partition, i AS last_offset FROM n WHERE i < 0
"""
_TABLE = "CREATE TABLE offsets (backup_id, topic, partition, last_offset, checkpoint_ts);"


@pytest.mark.parametrize("wal", [False, True])
def test_where_manifest_and_database_disagree_the_manifest_is_the_truth(
    storage: Storage, tmp_path: Path, wal: bool
) -> None:
    KBAK.add(storage, some(0, 5))
    rows = (
        "INSERT INTO offsets VALUES ('maxbrod', 'orders', 0, 99, 1), ('maxbrod', 'gone', 3, 7, 1), ('x', 'y', 0, 9, 1)"
    )
    storage.replace("maxbrod/offsets.db", _made_database(tmp_path / "db", _TABLE + rows, wal=wal))
    survey = LAYOUT.survey(storage)

    assert survey.positions == {WHERE: 5}
    assert [(fault.fatal, fault.message.split(" is backed")[0]) for fault in survey.faults] == [
        (False, "says that gone-3"),
        (False, "says that orders-0"),
    ]


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE offsets (a)",
        "CREATE TABLE other (a)",
        _TABLE + "INSERT INTO offsets VALUES ('maxbrod', '../x', 0, 1, 1)",
        _TABLE + "INSERT INTO offsets VALUES ('maxbrod', 'x', 'y', 1, 1)",
        _TABLE + "INSERT INTO offsets VALUES ('maxbrod', 'x', 0, NULL, 1)",
        _ENDLESS,
    ],
)
def test_a_hostile_database_is_a_fault_that_loses_nothing(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr("maxbrod.layouts.kbak.format._STEPS_MAX", 3)
    KBAK.add(storage, some(0, 5))
    storage.replace("maxbrod/offsets.db", _made_database(tmp_path / "db", script))

    assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [False]
    assert LAYOUT.survey(storage).positions == {WHERE: 5}


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0" + bytes(200), b"no database" * 100])
def test_bytes_that_are_no_database_lose_nothing(storage: Storage, data: bytes) -> None:
    KBAK.add(storage, some(0, 5))
    storage.replace("maxbrod/offsets.db", data)

    assert LAYOUT.survey(storage).positions == {WHERE: 5}
    assert not any(fault.fatal for fault in LAYOUT.survey(storage).faults)


@pytest.mark.parametrize(
    "text",
    [b"{", b'{"groups": [{}]}', b'{"groups": [{"group_id": "g", "offsets": {"t": {"x": 1}}}]}', b'{"groups": 1}'],
)
def test_a_broken_snapshot_of_groups_is_a_fault_that_loses_no_record(storage: Storage, text: bytes) -> None:
    KBAK.add(storage, some(0, 5))
    storage.replace("maxbrod/consumer-groups-snapshot.json", text)

    assert [fault.fatal for fault in LAYOUT.survey(storage).faults] == [False]
    assert KBAK.read_all(storage) == some(0, 5)
