"""Through every layout of another tool and back: records are the same up to what that layout says it loses."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.foreign_target import ForeignTarget
from maxbrod.archive.snapshots import find_moment
from maxbrod.archive.surveyed import topic_id_for
from maxbrod.backup.follow import Interval, follow
from maxbrod.errors import EXIT_CORRUPT, EXIT_INCOMPLETE, RefusedError
from maxbrod.layouts.registry import FOREIGN
from maxbrod.sandbox.surgery import delete_records
from maxbrod.sandbox.topics import create_topic, delete_topic, recreate_topic
from maxbrod.sandbox.traffic import Message
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.conversions import back_up_as, convert
from support.ledger import Ledger
from support.restores import put
from support.sparkless import without_spark
from support.topics import KEEP, transact

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from support.plain_log import Record

LAYOUTS = FOREIGN


def committed(ledger: Ledger, cluster: Cluster, topic: str, partition: int = 0) -> dict[int, Record]:
    return dict(ledger.of(cluster, topic, partition))


@pytest.fixture
def written(cluster: Cluster, topic: str) -> Ledger:
    """A topic with everything that a copy likes to lose; what is aborted is not in the ledger."""
    create_topic(cluster, topic, partitions=2, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 150)
    transact(Ledger(), cluster, topic, 20, commit=False)
    transact(ledger, cluster, topic, 20, commit=True)
    ledger.write(cluster, topic, 60)
    ledger.write(cluster, topic, 30, partition=1)
    return ledger


def assert_holds(archive: Path, ledger: Ledger, cluster: Cluster, topic: str) -> None:
    held = read_archive(str(archive))
    for partition in range(2):
        expected = committed(ledger, cluster, topic, partition)
        assert held.records[topic_id_for(topic), partition] == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_records_go_through_a_layout_and_back(
    layout: str, written: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    back_up(config_of(cluster, tmp_path / "archive", topic))
    there = convert(tmp_path / "archive", tmp_path / layout, layout, accept_loss=True)
    assert (there.exit_code, there.topics[0].records) == (0, 260)
    assert (there.topics[0].equal, there.topics[0].source_records) == (True, 260)
    back = convert(tmp_path / layout, tmp_path / "back", "kafka")
    assert (back.source_layout, back.exit_code, back.topics[0].records) == (layout, 0, 260)
    assert back.topics[0].equal
    assert_holds(tmp_path / "back", written, cluster, topic)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backup_in_another_layout_takes_what_is_new_each_time(
    layout: str, written: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config = config_of(cluster, tmp_path / layout, topic)
    assert back_up_as(config, layout, accept_loss=True).records == 260
    assert back_up_as(config, layout, accept_loss=True).records == 0
    written.write(cluster, topic, 40)
    report = back_up_as(config, layout, accept_loss=True)
    assert (report.exit_code, report.records) == (0, 40)
    convert(tmp_path / layout, tmp_path / "back", "kafka")
    assert_holds(tmp_path / "back", written, cluster, topic)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_archive_in_another_layout_is_looked_at_like_our_own(
    layout: str, written: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    back_up_as(config_of(cluster, tmp_path / layout, topic), layout, accept_loss=True)
    archive = open_archive(str(tmp_path / layout))
    assert archive.survey is not None
    assert archive.survey.layout == layout
    positions = {each.partition: found.end_offset for each, found in archive.catalog.positions().items()}
    ends = {partition: max(written.of(cluster, topic, partition)) + 1 for partition in range(2)}
    assert positions == ends


@pytest.mark.parametrize("way", ["backup", "conversion"])
def test_kbak_says_what_was_left_out_as_its_tool_does(
    way: str, written: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Without it the tool warns of offsets that nothing accounts for."""
    transact(Ledger(), cluster, topic, 7, commit=False)
    if way == "backup":
        back_up_as(config_of(cluster, tmp_path / "kbak", topic), "kbak")
    else:
        back_up(config_of(cluster, tmp_path / "archive", topic))
        convert(tmp_path / "archive", tmp_path / "kbak", "kbak")
    manifest = json.loads((tmp_path / "kbak" / "maxbrod" / "manifest.json").read_text())
    (found,) = (each for each in manifest["topics"] if each["name"] == topic)
    partition = next(each for each in found["partitions"] if each["partition_id"] == 0)
    (segment,) = partition["segments"]
    last = max(written.of(cluster, topic)) + 7 + 1
    assert (segment["control_records_skipped"], segment["aborted_records_dropped"]) == (3, 27)
    assert (segment["covered_end_offset"], partition["covered_through"]) == (last, last)
    assert last + 1 == segment["record_count"] + 3 + 27, "every offset is accounted for"
    assert manifest["isolation_level"] == "read_committed"


def test_a_byte_that_changed_on_the_way_is_told(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().produce(cluster, topic, [Message(key=b"k", value=b"a value that is unlike others")] * 5)
    back_up(config_of(cluster, tmp_path / "archive", topic))
    convert(tmp_path / "archive", tmp_path / "binlog", "binlog", verify=False)
    (records,) = (tmp_path / "binlog").rglob("*_records")
    records.write_bytes(records.read_bytes().replace(b"unlike others", b"unlike Others", 1))
    report = convert(tmp_path / "archive", tmp_path / "binlog", "binlog")
    assert report.exit_code == EXIT_CORRUPT
    assert [(each.kind, each.topic, each.partition) for each in report.notices] == [("different", topic, 0)]
    assert (report.topics[0].equal, report.topics[0].target_records) == (False, 5)


def test_a_layout_that_would_lose_something_real_is_not_written_unasked(
    written: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    del written
    back_up(config_of(cluster, tmp_path / "archive", topic))
    with pytest.raises(RefusedError, match="no tombstone is left") as caught:
        convert(tmp_path / "archive", tmp_path / "avro", "avro", extra={"schema": "seed"})
    assert "--accept-loss" in str(caught.value.hint)
    assert not (tmp_path / "avro").exists()
    report = convert(tmp_path / "archive", tmp_path / "avro", "avro", extra={"schema": "seed"}, accept_loss=True)
    assert (report.exit_code, report.topics[0].equal) == (0, True), "but for what was accepted"
    assert any("no tombstone" in each for each in report.losses)


def test_a_log_that_was_cut_behind_the_archive_is_told_and_nothing_is_written(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 30)
    config = config_of(cluster, tmp_path / "binlog", topic)
    assert back_up_as(config, "binlog").records == 30
    recreate_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 10)
    report = back_up_as(config, "binlog")
    assert (report.exit_code, report.records) == (EXIT_INCOMPLETE, 0)
    assert "created again" in report.notices[0].message


def test_another_topic_of_the_same_name_never_continues_an_archive(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 30)
    config = config_of(cluster, tmp_path / "binlog", topic)
    assert back_up_as(config, "binlog").records == 30
    recreate_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 50)
    report = back_up_as(config, "binlog")
    assert (report.exit_code, report.records) == (EXIT_INCOMPLETE, 0)
    assert "created again" in report.notices[0].message


def test_what_retention_took_before_it_was_read_is_told(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 30)
    config = config_of(cluster, tmp_path / "binlog", topic)
    back_up_as(config, "binlog")
    Ledger().write(cluster, topic, 30)
    delete_records(cluster, topic, before_offset=60)
    ledger.write(cluster, topic, 30)
    report = back_up_as(config, "binlog")
    assert (report.exit_code, report.records) == (EXIT_INCOMPLETE, 30)
    assert [(each.kind, each.first_offset, each.end_offset) for each in report.notices] == [("retention", 30, 60)]


class CrashError(BaseException):
    """A process that died."""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_before_it_is_published_a_backup_goes_on_without_loss_or_repetition(
    layout: str, written: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config = config_of(cluster, tmp_path / layout, topic)
    assert back_up_as(config, layout, accept_loss=True).records == 260
    written.write(cluster, topic, 25)
    with patch.object(ForeignTarget, "publish", side_effect=CrashError), pytest.raises(CrashError):
        back_up_as(config, layout, accept_loss=True)
    written.write(cluster, topic, 15)
    report = back_up_as(config, layout, accept_loss=True)
    assert report.exit_code == 0
    convert(tmp_path / layout, tmp_path / "back", "kafka")
    assert_holds(tmp_path / "back", written, cluster, topic)


def test_a_backup_in_another_layout_follows_the_cluster(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 20)
    stop = threading.Event()
    config = config_of(cluster, tmp_path / "binlog", topic, every=0.2).model_copy(update={"layout": "binlog"})

    def hear(interval: Interval) -> None:
        if interval.number == 1:
            ledger.write(cluster, topic, 30)
        elif interval.report is not None and interval.report.records:
            stop.set()

    with without_spark():
        last = follow(config, stop=stop, on_interval=hear)
    assert last.exit_code == 0
    convert(tmp_path / "binlog", tmp_path / "back", "kafka")
    assert read_archive(str(tmp_path / "back")).records[topic_id_for(topic), 0] == ledger.of(cluster, topic)


@pytest.mark.parametrize(
    ("layout", "keeps_configs"), [("kbak", True), ("kbs", True), ("avro", True), ("binlog", False)]
)
def test_a_deleted_topic_keeps_what_the_layout_knew_of_it(
    layout: str, keeps_configs: bool, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config={"max.message.bytes": "2000123", **KEEP})
    create_topic(cluster, f"{topic}-stays", config=KEEP)
    Ledger().write(cluster, topic, 30)
    put(cluster, topic, {(topic, 0): 20})
    config = config_of(cluster, tmp_path / layout, f"{topic}*")
    back_up_as(config, layout, accept_loss=True)
    delete_topic(cluster, topic)
    put(cluster, topic, {(f"{topic}-stays", 0): 0})
    Ledger().write(cluster, f"{topic}-stays", 5)
    assert back_up_as(config, layout, accept_loss=True).records == 5
    archive = open_archive(str(tmp_path / layout))
    state = find_moment(archive.storage, archive.catalog.runs(), None).cluster
    assert state is not None
    found, group = state.topic(topic), state.group(topic)
    assert found is not None
    assert group is not None
    assert ((found.configs or {}).get("max.message.bytes") == "2000123") is keeps_configs
    assert {each.topic: each.offset for each in group.offsets or ()}[topic] == 20
