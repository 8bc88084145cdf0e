"""A log that lost everything: what the archive held of it goes when there is something in its place, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.backup import run as engine
from maxbrod.backup import truncation
from maxbrod.kafka.fetch.offsets import EpochEnd
from maxbrod.sandbox.topics import create_topic
from support.archive_oracle import read_archive
from support.backups import back_up, config_of, kinds
from support.ledger import Ledger
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def everything_lost(_: object, wanted: dict[Any, int], **__: object) -> dict[Any, EpochEnd]:
    """As a leader answers whose disk was replaced."""
    return {where: EpochEnd(leader_epoch=epoch, end_offset=0) for where, epoch in wanted.items()}


def die(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def test_a_run_killed_after_it_found_a_log_emptied_never_leaves_offsets_out(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    ledger = Ledger()
    ledger.write(cluster, topic, 100)
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config).records == 100
    with monkeypatch.context() as patched:
        patched.setattr(truncation, "epoch_ends", everything_lost)
        with without_spark(die), engine.Backup(config) as backup, pytest.raises(KeyboardInterrupt):
            backup.run()
    assert back_up(config).exit_code == 0
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_what_a_log_lost_is_replaced_by_what_it_has_now_in_one_commit(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    ledger = Ledger()
    ledger.write(cluster, topic, 100)
    config = config_of(cluster, tmp_path / "archive", topic)
    first = back_up(config)
    before, left = first.version, open_archive(str(config.archive)).catalog.rows()
    with monkeypatch.context() as patched:
        patched.setattr(truncation, "epoch_ends", everything_lost)
        report = back_up(config)
    assert (report.exit_code, report.records, report.version) == (0, 100, before + 1)
    assert kinds(report).count("truncated") == 1
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)
    # As of the first run there are still its own rows, and the second one says that there were others before.
    archive = open_archive(str(config.archive))
    then, now = (find_moment(archive.storage, archive.catalog.runs(), each.run_id) for each in (first, report))
    assert archive.catalog.rows(as_of=then.ends, revisions=then.revisions) == left
    assert archive.catalog.rows(as_of=now.ends, revisions=now.revisions) == archive.catalog.rows() != left
    assert (list((then.revisions or {}).values()), list((now.revisions or {}).values())) == ([], [1])
