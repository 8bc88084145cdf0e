"""A restore straight from an archive of another tool: the same code, the same promises."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.check.foreign import check_foreign
from maxbrod.errors import EXIT_CORRUPT, CorruptDataError, IncompleteError, RefusedError
from maxbrod.layouts.registry import FOREIGN
from maxbrod.model import GapReason
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.sandbox.topics import create_topic, delete_topic
from support.backups import config_of
from support.conversions import back_up_as, convert
from support.ledger import NOW_MS, Ledger
from support.restore_faults import renamed, restore
from support.restore_oracle import assert_shared_out, log_of
from support.restores import put, stand
from support.topics import KEEP, transact

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def ledger(cluster: Cluster, topic: str) -> Ledger:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 80)
    transact(Ledger(), cluster, topic, 10, commit=False)
    ledger.write(cluster, topic, 40)
    return ledger


def archived(cluster: Cluster, topic: str, layout: str, folder: Path) -> Config:
    config = config_of(cluster, folder, topic)
    assert back_up_as(config, layout, accept_loss=True).complete
    return config


@pytest.mark.parametrize("layout", FOREIGN)
def test_records_stand_at_their_offsets_again(
    layout: str, ledger: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config = archived(cluster, topic, layout, tmp_path / layout)
    expected = dict(ledger.of(cluster, topic))
    delete_topic(cluster, topic)
    report = restore(config, RestoreRequest())
    assert report.complete
    assert log_of(cluster, topic) == expected
    assert restore(config, RestoreRequest(rename=renamed().rename)).complete, "the same archive, once more"
    assert log_of(cluster, f"new-{topic}") == expected


@pytest.mark.parametrize("layout", FOREIGN)
def test_a_point_in_time_is_decided_by_record(
    layout: str, ledger: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config = archived(cluster, topic, layout, tmp_path / layout)
    until = NOW_MS - 10**10
    assert restore(config, renamed("append", until_ms=until)).complete
    wanted = [each for _, each in sorted(ledger.of(cluster, topic).items()) if each.timestamp_ms < until]
    assert 0 < len(wanted) < 120
    assert [each for _, each in sorted(log_of(cluster, f"new-{topic}").items())] == wanted


@pytest.mark.parametrize("layout", FOREIGN)
def test_records_are_shared_out_among_other_partitions(
    layout: str, ledger: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    config = archived(cluster, topic, layout, tmp_path / layout)
    assert restore(config, RestoreRequest(rename=renamed().rename, partition_count=3)).complete
    assert_shared_out(cluster, f"new-{topic}", {0: dict(ledger.of(cluster, topic))}, 3)


@pytest.mark.parametrize("layout", FOREIGN)
def test_groups_stand_where_they_stood(
    layout: str, ledger: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    del ledger
    put(cluster, f"readers-{topic}", {(topic, 0): 33})
    config = archived(cluster, topic, layout, tmp_path / layout)
    assert restore(config, RestoreRequest(rename=renamed().rename, groups=(f"readers-{topic}",))).complete
    assert stand(cluster, f"readers-{topic}")[f"new-{topic}", 0] == 33


@pytest.mark.parametrize("layout", ["avro", "parquet"])
def test_groups_are_found_in_kafkas_own_topic_of_them(
    layout: str, ledger: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    del ledger
    put(cluster, f"readers-{topic}", {(topic, 0): 33})
    config = config_of(cluster, tmp_path / layout, topic, "__consumer_offsets", internal=True)
    assert back_up_as(config, layout, accept_loss=True).complete
    request = RestoreRequest(topics=(topic,), rename=renamed().rename, groups=(f"readers-{topic}",))
    assert restore(config, request).complete
    assert stand(cluster, f"readers-{topic}")[f"new-{topic}", 0] == 33


@pytest.mark.parametrize(("layout", "names"), [("binlog", "*_records"), ("avro", "*.data"), ("parquet", "*-*")])
def test_a_damaged_segment_is_never_restored_around_unasked(
    layout: str, names: str, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    for _ in range(3):
        Ledger().write(cluster, topic, 20)
        config = archived(cluster, topic, layout, tmp_path / layout)
    segment = sorted(each for each in (tmp_path / layout).rglob(names) if each.is_file())[1]
    if layout == "binlog":
        segment.unlink()  # its index tells what was in it: damaged records are found when they are read
    else:
        segment.chmod(0o600)
        segment.write_bytes(b"\x99" * segment.stat().st_size)
    with pytest.raises(CorruptDataError, match="cannot be restored"):
        restore(config, renamed())
    assert restore(config, replace(renamed(), accept_gaps=True)).records == 40
    report = convert(tmp_path / layout, tmp_path / "copy", "kafka")
    assert report.exit_code == EXIT_CORRUPT
    assert any(segment.name in notice.message for notice in report.notices)
    gaps = open_archive(str(tmp_path / "copy")).catalog.gaps([GapReason.CORRUPT])
    assert [(gap.base_offset, gap.end_offset) for gap in gaps] == [(20, 40)]


@pytest.mark.parametrize(("layout", "names"), [("avro", "*.data"), ("parquet", "*-*")])
@pytest.mark.parametrize("which", [1, -1])
def test_a_lost_segment_is_never_restored_around_unasked(
    layout: str, names: str, which: int, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """These tools list no segments: what is gone leaves no trace but in what we publish beside them."""
    create_topic(cluster, topic, config=KEEP)
    for _ in range(3):
        Ledger().write(cluster, topic, 20)
        config = archived(cluster, topic, layout, tmp_path / layout)
    sorted(each for each in (tmp_path / layout).rglob(names) if each.is_file())[which].unlink()
    assert check_foreign(open_archive(str(tmp_path / layout))).exit_code == EXIT_CORRUPT
    with pytest.raises(CorruptDataError, match="cannot be restored"):
        restore(config, renamed())
    assert restore(config, replace(renamed(), accept_gaps=True)).records == 40
    with pytest.raises(CorruptDataError, match="no sound segment has the offsets"):
        back_up_as(config, layout, accept_loss=True)


def test_aborted_records_of_another_tool_are_never_restored_unasked(
    ledger: Ledger, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    del ledger
    config = archived(cluster, topic, "kbak", tmp_path / "kbak")
    manifest = tmp_path / "kbak" / "maxbrod" / "manifest.json"
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(said | {"isolation_level": "read_uncommitted"}))
    assert [doubt.refused for doubt in check_foreign(open_archive(str(tmp_path / "kbak"))).doubts] == [True]
    with pytest.raises(IncompleteError, match="records of aborted transactions") as caught:
        restore(config, renamed())
    assert "--accept-gaps" in str(caught.value.hint)
    report = restore(config, replace(renamed(), accept_gaps=True))
    assert report.records == 120
    with pytest.raises(RefusedError, match="records of aborted transactions"):
        convert(tmp_path / "kbak", tmp_path / "copy", "kbak")
    copied = convert(tmp_path / "kbak", tmp_path / "copy", "kbak", accept_loss=True)
    assert [notice.kind for notice in copied.notices] == ["unproved"]
    assert "read_uncommitted" in (tmp_path / "copy" / "maxbrod" / "manifest.json").read_text()
