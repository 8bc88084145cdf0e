"""Conversions that do not go well: what was published is a beginning, and the next one brings all the rest."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.backup import foreign as backing_up
from maxbrod.backup.follow import target_request
from maxbrod.convert.sides import NativeTarget
from maxbrod.errors import EXIT_CORRUPT, EXIT_FAILED, EXIT_INCOMPLETE, StorageFullError
from maxbrod.sandbox.topics import create_topic, recreate_topic
from support.archive_oracle import read_archive
from support.archives import damage
from support.backups import back_up, config_of
from support.conversions import back_up_as, convert
from support.ledger import Ledger
from support.sparkless import run_here, without_spark
from support.topics import KEEP

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.transfer.task import Transferred


class KilledError(Exception):
    """Stands for a process that is no more."""


@pytest.mark.parametrize("layout", ["kafka", "binlog"])
def test_what_follows_damage_is_never_converted_before_it(
    layout: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    config = config_of(cluster, tmp_path / "archive", topic)
    damaged: list[Path] = []
    for _ in range(3):
        known = set((tmp_path / "archive").rglob("*.log*"))
        ledger.write(cluster, topic, 20)
        back_up(config)
        damaged += sorted(set((tmp_path / "archive").rglob("*.log*")) - known)[:1]
    sound = damaged[1].read_bytes()
    damaged[1].chmod(0o600)
    damage(damaged[1])
    report = convert(tmp_path / "archive", tmp_path / "copy", layout, commit_bytes=1, accept_loss=True)
    assert report.exit_code == EXIT_CORRUPT
    found = {each.end_offset for each in open_archive(str(tmp_path / "copy")).catalog.positions().values()}
    assert found == {20}
    damaged[1].write_bytes(sound)
    again = convert(tmp_path / "archive", tmp_path / "copy", layout, commit_bytes=1, accept_loss=True)
    assert (again.exit_code, again.topics[0].records) == (0, 40)


def test_damage_of_one_partition_never_keeps_others_back(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=4, config=KEEP)
    ledger = Ledger()
    for partition in range(4):
        ledger.write(cluster, topic, 20, partition=partition)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    rows = open_archive(str(tmp_path / "archive")).catalog.rows(topic=topic, partition=2).to_pylist()
    path = tmp_path / "archive" / rows[0]["path"]
    stored = bytearray(path.read_bytes())
    stored[rows[0]["position"] + rows[0]["bytes"] - 5] ^= 0xFF
    path.chmod(0o600)
    path.write_bytes(stored)
    report = convert(tmp_path / "archive", tmp_path / "copy", "kafka")
    assert {each.partition for each in report.notices if each.kind == "failed"} == {2}
    assert report.topics[0].records == 60
    assert report.topics[0].equal is None


def test_what_cannot_be_read_is_never_called_equal(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 20)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    (stored,) = (tmp_path / "archive").rglob("*.log*")
    stored.chmod(0o600)
    stored.write_bytes(b"\x99" * stored.stat().st_size)
    report = convert(tmp_path / "archive", tmp_path / "copy", "kafka")
    assert report.exit_code != 0
    assert report.topics[0].equal is None


def test_a_conversion_killed_before_its_end_records_the_cluster_the_next_time(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 20)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    with patch.object(NativeTarget, "finish", side_effect=KilledError), pytest.raises(KilledError):
        convert(tmp_path / "archive", tmp_path / "copy", "kafka")
    assert convert(tmp_path / "archive", tmp_path / "copy", "kafka").exit_code == 0
    copy = open_archive(str(tmp_path / "copy"))
    moment = find_moment(copy.storage, copy.catalog.runs(), None)
    assert moment.cluster is not None
    assert moment.cluster.topic(topic) is not None


def test_topics_that_were_not_converted_are_never_taken_for_archived(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    ledger = Ledger()
    for name in (topic, f"{topic}-other"):
        create_topic(cluster, name, config=KEEP)
        ledger.write(cluster, name, 20)
    back_up(config_of(cluster, tmp_path / "archive", topic, f"{topic}-other"))
    convert(tmp_path / "archive", tmp_path / "copy", "kafka", topics=(topic,))
    back_up(config_of(cluster, tmp_path / "copy", topic, f"{topic}-other"))
    read_archive(str(tmp_path / "copy")).assert_equals(ledger)


def test_a_backup_that_begins_at_the_end_misses_nothing_after_it(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 20)
    config = config_of(cluster, tmp_path / "binlog", topic, start="latest")
    changed = config.model_copy(update={"layout": "binlog"})
    with without_spark(), backing_up.ForeignBackup(changed, target_request(changed)) as work:
        assert work.run().records == 0
        Ledger().write(cluster, topic, 20)
        assert work.run().records == 20
    Ledger().write(cluster, topic, 10)
    assert back_up_as(config, "binlog").records == 10


def test_where_a_backup_was_to_begin_never_counts_for_another_topic(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 20)
    config = config_of(cluster, tmp_path / "binlog", topic, start="latest")
    assert back_up_as(config, "binlog").records == 0
    recreate_topic(cluster, topic, config=KEEP)
    for count in (30, 5):
        Ledger().write(cluster, topic, count)
        assert back_up_as(config, "binlog").records == count


def test_a_conversion_that_was_stopped_is_never_called_complete(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 20)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    stop = threading.Event()
    stop.set()
    report = convert(tmp_path / "archive", tmp_path / "copy", "kafka", stop=stop)
    assert (report.exit_code, [each.kind for each in report.notices]) == (EXIT_INCOMPLETE, ["stopped"])


def test_a_backup_in_another_layout_tells_what_it_has_not_stored(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    Ledger().write(cluster, topic, 20)
    config = config_of(cluster, tmp_path / "binlog", topic)
    changed = config.model_copy(update={"layout": "binlog"})
    full = StorageFullError("the disk is full")

    def failing(*arguments: Any, **options: Any) -> list[Transferred]:
        return [replace(each, failure=full, segments=()) for each in run_here(*arguments, **options)]

    with backing_up.ForeignBackup(changed, target_request(changed)) as work:
        with without_spark():
            first = work.run()
        assert (first.recovery_point_ms, first.waiting) == (first.started_at_ms, 0)
        Ledger().write(cluster, topic, 10)
        with without_spark(failing):
            report = work.run()
        assert (report.exit_code, report.verdict, report.committed, report.records) == (EXIT_FAILED, "failed", False, 0)
        assert (report.recovery_point_ms, report.waiting) == (first.started_at_ms, 10)
        assert (work.recovery_point_ms, work.lags) == (first.started_at_ms, {topic: 10})
        with without_spark():
            last = work.run()
        assert (last.recovery_point_ms, last.waiting, last.records) == (last.started_at_ms, 0, 10)
    # The layout remembers no point: a process that has archived nothing yet has none to tell.
    Ledger().write(cluster, topic, 10)
    with without_spark(failing), backing_up.ForeignBackup(changed, target_request(changed)) as work:
        assert work.run().recovery_point_ms is None
