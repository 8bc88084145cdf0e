"""From an archive of our own into another one: nothing is lost, nothing is double, holes keep their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.check.run import check_archive
from maxbrod.errors import RefusedError
from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.conversions import convert
from support.ledger import Ledger
from support.topics import KEEP, transact

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_a_copy_of_an_archive_holds_the_same_log(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 100)
    transact(ledger, cluster, topic, 20, commit=False)
    transact(ledger, cluster, topic, 20, commit=True, partition=1)
    config = config_of(cluster, tmp_path / "archive", topic)
    back_up(config)
    ledger.write(cluster, topic, 40)
    back_up(config)
    report = convert(tmp_path / "archive", tmp_path / "copy", "kafka")
    assert report.exit_code == 0
    source, copy = read_archive(str(tmp_path / "archive")), read_archive(str(tmp_path / "copy"))
    assert copy.logs == source.logs
    assert copy.gaps == source.gaps
    copy.assert_equals(ledger)
    assert _aborted(tmp_path / "copy") == _aborted(tmp_path / "archive") != []
    assert check_archive(open_archive(str(tmp_path / "copy"))).problems == ()


def _aborted(archive: Path) -> list[tuple[int, int]]:
    found = open_archive(str(archive)).catalog.rows(columns=["aborted"])["aborted"].to_pylist()
    return sorted({(each["producer_id"], each["first_offset"]) for row in found for each in row or ()})


def test_a_second_conversion_takes_only_what_is_new(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 60)
    config = config_of(cluster, tmp_path / "archive", topic)
    back_up(config)
    assert [each.records for each in convert(tmp_path / "archive", tmp_path / "copy", "kafka").topics] == [60]
    assert [each.records for each in convert(tmp_path / "archive", tmp_path / "copy", "kafka").topics] == [0]
    ledger.write(cluster, topic, 30)
    back_up(config)
    assert [each.records for each in convert(tmp_path / "archive", tmp_path / "copy", "kafka").topics] == [30]
    read_archive(str(tmp_path / "copy")).assert_equals(ledger)


def test_what_retention_took_is_a_gap_in_the_copy_too(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 50)
    config = config_of(cluster, tmp_path / "archive", topic)
    back_up(config)
    Ledger().write(cluster, topic, 50)
    delete_records(cluster, topic, before_offset=100)
    ledger.write(cluster, topic, 50)
    back_up(config)
    convert(tmp_path / "archive", tmp_path / "copy", "kafka")
    copy = read_archive(str(tmp_path / "copy"))
    assert [gap for gaps in copy.gaps.values() for gap in gaps] == [(50, 100, "retention")]
    copy.assert_equals(ledger)


def test_many_small_waves_give_the_same_copy(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=3, config=KEEP)
    ledger = Ledger()
    config = config_of(cluster, tmp_path / "archive", topic)
    for _ in range(3):
        for partition in range(3):
            ledger.write(cluster, topic, 20, partition=partition)
        back_up(config)
    report = convert(tmp_path / "archive", tmp_path / "copy", "kafka", commit_bytes=1)
    assert report.topics[0].records == 180
    read_archive(str(tmp_path / "copy")).assert_equals(ledger)


def test_a_place_with_other_objects_is_never_converted_into(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine.txt").write_text("mine")
    with pytest.raises(RefusedError, match="objects here"):
        convert(tmp_path / "archive", tmp_path / "copy", "kafka")
