"""Runs in quick succession share a snapshot: `as of` each of them holds, and objects alone tell all of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.backup import archive_state, observation
from maxbrod.backup.run import Backup
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import config_of
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def commit_as_group(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    consumer = KafkaConsumer(**cluster.running_client_properties(), group_id=group, enable_auto_commit=False)
    try:
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)})
    finally:
        consumer.close(autocommit=False)


def test_runs_in_quick_succession_share_a_snapshot_and_each_is_restored_as_of_itself(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    reports = []
    group = f"group-of-{topic}"
    with without_spark(), Backup(config_of(cluster, tmp_path / "archive", topic)) as backup:
        for number in range(4):
            produce(cluster, topic, numbered(3))
            commit_as_group(cluster, group, topic, 3 * (number + 1))
            if number == 2:
                # Another process continues where this one stopped.
                with Backup(config_of(cluster, tmp_path / "archive", topic)) as other:
                    reports.append(other.run())
                backup._opened = None
            else:
                reports.append(backup.run())
        archive = open_archive(str(tmp_path / "archive"))
        runs = archive.catalog.runs()
        assert len({run.snapshot for run in runs}) == 1
        assert len(list(archive.storage.list("snapshots"))) == 1
        for number, report in enumerate(reports):
            moment = find_moment(archive.storage, runs, report.run_id)
            assert moment.snapshot is not None
            assert moment.snapshot.run_id == report.run_id
            assert sum(moment.snapshot.ends.values()) == 3 * (number + 1)
            assert set(moment.snapshot.recovery_points.values()) == {report.started_at_ms}
            assert moment.cluster is not None
            found = moment.cluster.group(group)
            assert found is not None
            assert [each.offset for each in found.offsets or ()] == [3 * (number + 1)]
        # A minute later the next snapshot is an object of its own, and has the rows of those that have none.
        monkeypatch.setattr(archive_state, "_SHARED_MS", 0)
        produce(cluster, topic, numbered(3))
        last = backup.run()
    archive = open_archive(str(tmp_path / "archive"))
    assert len(list(archive.storage.list("snapshots"))) == 2
    moment = find_moment(archive.storage, archive.catalog.runs(), last.run_id)
    assert moment.snapshot is not None
    kept = [asdict(run) for run in runs if run.snapshot_changes]
    assert len(kept) == 3
    assert [{**run, "snapshot_changes": tuple(run["snapshot_changes"])} for run in moment.snapshot.runs] == kept


def test_an_interval_without_news_only_looks_once_whether_the_archive_is_there(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(3))
    with without_spark(), Backup(config_of(cluster, tmp_path / "archive", topic)) as backup:
        # Groups of other tests may come to rest meanwhile, which is news.
        assert any(not backup.run().committed for _ in range(10))
        storage, before = type(backup._archive(lambda: None).storage), sorted((tmp_path / "archive").rglob("*"))
        for name in ("get", "get_ranges", "list", "put", "replace", "create"):
            monkeypatch.setattr(storage, name, lambda *_, **__: pytest.fail("the archive was touched"))
        looked: list[str] = []
        head = storage.head

        def counted(own: Any, path: str) -> Any:
            looked.append(path)
            return head(own, path)

        monkeypatch.setattr(storage, "head", counted)
        report = backup.run()
    assert len(looked) == 1
    assert (report.committed, report.exit_code) == (False, 0)
    assert sorted((tmp_path / "archive").rglob("*")) == before


def test_truncation_is_looked_for_again_only_after_an_election(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(3))
    asked = []

    def noted(client: object, catalog: object, states: object, **_: object) -> dict[object, int]:
        asked.append([state.where.topic for state in states])  # type: ignore[attr-defined]
        return {}

    monkeypatch.setattr(observation, "find_truncations", noted)
    with without_spark(), Backup(config_of(cluster, tmp_path / "archive", topic)) as backup:
        backup.run()
        produce(cluster, topic, numbered(3))
        backup.run()
        backup._observations._epochs = {each: epoch - 1 for each, epoch in backup._observations._epochs.items()}
        backup.run()
    assert asked == [[topic], [], [topic]]
