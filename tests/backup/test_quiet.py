"""Intervals in which nothing has changed: they cost no object per partition, and whatever changes is seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.backup import base, observation
from maxbrod.backup.observation import Observed
from maxbrod.backup.plan import ranges
from maxbrod.backup.plan.ranges import PartitionBackup, PartitionState
from maxbrod.backup.run import Backup
from maxbrod.backup.run_state import BackupRun, quiet_run
from maxbrod.errors import UnavailableError
from maxbrod.model import PartitionId
from maxbrod.notices import Notice
from maxbrod.sandbox.topics import create_topic, set_topic_config
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import config_of
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

PARTITIONS = 20


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was built for single partitions."""
    found: list[str] = []

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def count(*values: Any, **named: Any) -> Any:
            found.append(name)
            return real(*values, **named)

        monkeypatch.setattr(module, name, count)

    counted(observation, "PartitionState")
    counted(ranges, "PartitionBackup")
    counted(observation, "TopicPartition")
    counted(observation, "PartitionId")
    return found


@pytest.fixture
def backup(cluster: Cluster, topic: str, tmp_path: Path) -> Iterator[Backup]:
    create_topic(cluster, topic, partitions=PARTITIONS)
    with without_spark(), Backup(config_of(cluster, tmp_path / "archive", f"{topic}*")) as opened:
        yield opened


def settle(backup: Backup) -> None:
    """Run until nothing is new. Groups of other tests may come to rest meanwhile, which is news as well."""
    assert any(not backup.run().committed and backup._quiet is not None for _ in range(20))


def test_an_interval_without_news_builds_nothing_for_a_partition(
    backup: Backup, cluster: Cluster, topic: str, built: list[str]
) -> None:
    produce(cluster, topic, numbered(3), partition=1)
    settle(backup)
    for _ in range(20):
        built.clear()
        report = backup.run()
        if not report.committed:  # a group of another test may have come to rest
            break
    assert built == []
    points = backup._state.known.recovery_points
    assert len(points) == PARTITIONS
    assert {*points.values(), report.recovery_point_ms, backup.recovery_point_ms} == {report.started_at_ms}
    assert report.started_at_ms <= report.finished_at_ms
    assert (report.exit_code, report.records, report.topics[0].partitions) == (0, 0, PARTITIONS)
    assert report.run_id == backup._state.run.run_id
    assert backup.lags == {topic: 0}


def test_an_archive_that_vanished_is_missed_though_nothing_is_new(
    backup: Backup, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    produce(cluster, topic, numbered(3), partition=1)
    settle(backup)
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    point = backup.recovery_point_ms
    for _ in range(2):
        with pytest.raises(UnavailableError, match="the archive is gone"):
            backup.run()
        assert backup.recovery_point_ms == point
    assert not (tmp_path / "archive/catalog").exists(), "no other one is begun in its place"
    (tmp_path / "elsewhere").rename(tmp_path / "archive")
    assert backup.run().complete


def test_whatever_changes_after_quiet_intervals_is_archived(
    backup: Backup, cluster: Cluster, topic: str, built: list[str]
) -> None:
    settle(backup)
    produce(cluster, topic, numbered(3), partition=7)
    assert backup.run().records == 3
    settle(backup)
    create_topic(cluster, f"{topic}-new", partitions=2)
    report = backup.run()
    assert {each.topic for each in report.topics} == {topic, f"{topic}-new"}
    settle(backup)
    set_topic_config(cluster, topic, {"retention.ms": "123456789"})
    assert any(backup.run().committed for _ in range(20))
    kept = next(each for each in backup._state.known.knowledge.cluster.topics if each.name == topic)  # type: ignore[union-attr]
    assert dict(kept.configs or {})["retention.ms"] == "123456789"


def test_an_error_makes_the_next_interval_look_at_everything(
    backup: Backup, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(backup)
    with monkeypatch.context() as broken:
        broken.setattr(base, "capture", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backup.run()
    built.clear()
    backup.run()
    assert built.count("PartitionState") == PARTITIONS


PARTITION = PartitionId(topic_id="a-topic", partition=0)
STATE = PartitionState(
    topic="orders",
    topic_id="a-topic",
    partition=0,
    log_start=0,
    end=5,
    high_watermark=5,
    held=None,
    bytes_per_offset=None,
    compacted=False,
)
PLAN = PartitionBackup(state=STATE, first=5, start=5, end=5)
RUN = BackupRun(planned=True, plans={PARTITION: PLAN}, ends={PARTITION: 5})
OBSERVED = Observed(topics={}, present=frozenset(), states=(STATE,))
GRAVE = Notice(kind="corrupt", message="a batch is damaged", exit_code=4)
HELD_BACK = {PARTITION: replace(PLAN, state=replace(STATE, high_watermark=9))}


@pytest.mark.parametrize(
    ("run", "quiet"),
    [
        (RUN, True),
        (replace(RUN, committed=True), False),
        (replace(RUN, interrupted=True), False),
        (replace(RUN, notices=(GRAVE,)), False),
        (replace(RUN, ends={PARTITION: 4}), False),
        (replace(RUN, deferred=frozenset({PARTITION})), False),
        (replace(RUN, held_since_ms={PARTITION: 1}), False),
        (replace(RUN, suspect=frozenset({PARTITION})), False),
        (replace(RUN, plans=HELD_BACK), False),
        (replace(RUN, unanswered={PartitionId(topic_id="a-topic", partition=1): "orders"}), False),
    ],
)
def test_a_run_that_left_something_to_do_is_never_taken_for_quiet(run: BackupRun, quiet: bool) -> None:
    found = quiet_run(OBSERVED, run, run.report("archive", 1, 7), run.reaches(), {PARTITION: 7})
    assert (found is not None) is quiet


def test_partitions_that_a_run_does_not_choose_keep_their_recovery_points() -> None:
    other = PartitionId(topic_id="another", partition=3)
    found = quiet_run(OBSERVED, RUN, RUN.report("archive", 1, 7), RUN.reaches(), {PARTITION: 7, other: 2})
    assert found is not None
    later = BackupRun(started_at_ms=99)
    assert found.recovery_points(later) == {other: 2, PARTITION: 99}
    assert found.report(later, 4).recovery_point_ms == 99
    assert found.report(later, 4).version == 4
