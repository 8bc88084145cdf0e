"""Where a partition begins is settled by the run that meets it, and holds whatever becomes of that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.backup import observation
from maxbrod.backup import run as engine
from maxbrod.backup.plan.ranges import Failure, FailureKind, Outcome, RangeItem
from maxbrod.cli.main import run
from maxbrod.config import Config, SparkConfig
from maxbrod.convert.options import ConvertOptions
from maxbrod.convert.verb import Conversion
from maxbrod.errors import EnvironmentMissingError, UnavailableError
from maxbrod.kafka.fetch.offsets import LogBoundsReader, list_offsets
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.work.executor import Workers
from maxbrod.work.work import Work
from support.archive_oracle import read_archive
from support.backups import back_up, config_of
from support.ledger import Ledger
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}


def fail_job(_: object, __: object, tasks: Sequence[Sequence[RangeItem]], **___: Any) -> list[Outcome]:
    """No leader answers."""
    failure = Failure(kind=FailureKind.UNAVAILABLE, message="nobody answers")
    return [
        Outcome(item=item, slices=(), reached=item.start, log_start_offset=0, failure=failure)
        for items in tasks
        for item in items
    ]


def test_a_beginning_within_a_batch_is_never_lost_because_its_first_run_failed(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 100)
    config = config_of(cluster, tmp_path / "archive", topic, start=f"{topic}:0:20")
    with without_spark(fail_job), engine.Backup(config) as backup:
        assert backup.run().exit_code == 3
    report = back_up(config)
    assert (report.exit_code, report.records) == (0, 100)
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_a_partition_first_met_in_a_quiet_run_never_begins_later_than_there(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a first run partition 1 has no leader. At the second one it has, and nothing else is new."""
    create_topic(cluster, topic, partitions=2, config=KEEP)
    config = config_of(cluster, tmp_path / "archive", topic, start="latest")

    def without_a_leader(client: Any, wanted: Any, *, failed: Any, **options: Any) -> Any:
        found = list_offsets(client, wanted, failed=failed, **options)
        lost = [where for where in found if where.partition == 1]
        failed.update({where: UnavailableError("the partition has no leader now") for where in lost})
        return {where: each for where, each in found.items() if where not in failed}

    with monkeypatch.context() as patched:
        patched.setattr(LogBoundsReader, "read", lambda *_, **__: {})
        patched.setattr(observation, "list_offsets", without_a_leader)
        assert back_up(config).exit_code == 3
    assert back_up(config).exit_code == 0
    ledger = Ledger()
    ledger.write(cluster, topic, 30, partition=1)
    report = back_up(config)
    assert (report.exit_code, report.records) == (0, 30)
    read_archive(str(tmp_path / "archive")).assert_equals(ledger)


def test_offsets_to_begin_at_never_stand_in_the_way_of_a_topic_that_was_created_again(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    ledger = Ledger()
    ledger.write(cluster, topic, 50)
    config = config_of(cluster, tmp_path / "archive", topic, start=f"{topic}:0:50")
    assert back_up(config).records == 0
    delete_topic(cluster, topic)
    create_topic(cluster, topic, config=KEEP)
    again = Ledger()
    again.write(cluster, topic, 30)
    report = back_up(config)
    assert (report.exit_code, report.records) == (0, 30)
    read_archive(str(tmp_path / "archive")).assert_equals(again)


@pytest.mark.parametrize("command", ["backup", "backup --layout kbs", "replicate egress --once"])
def test_a_backup_that_never_reached_a_broker_leaves_no_archive_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    place = ["--archive", str(tmp_path / "archive")]
    assert run([*command.split(), *place, "--bootstrap", "127.0.0.1:1", "--patience", "0.1"]) == 1
    assert run(["ls", *place]) != 0
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    capsys.readouterr()


def test_a_name_without_a_topic_leaves_no_archive_behind(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--archive", str(tmp_path / "archive")]
    assert run(["backup", *place, "--bootstrap", cluster.bootstrap, "--topic", topic]) == 2
    assert run(["ls", *place]) != 0
    capsys.readouterr()


def test_executors_that_fail_their_test_leave_no_archive_behind(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise EnvironmentMissingError("the Python of the Spark workers lacks maxbrod")

    create_topic(cluster, topic, config=KEEP)
    Ledger().write(cluster, topic, 10)
    config = config_of(cluster, tmp_path / "archive", topic)
    assert back_up(config_of(cluster, tmp_path / "source", topic)).complete
    remote = SparkConfig(master="spark://nowhere:1")
    monkeypatch.setattr(Workers, "session", fail)
    with (
        pytest.raises(EnvironmentMissingError),
        engine.Backup(config.model_copy(update={"spark": remote})) as backup,
    ):
        backup.run()
    options = ConvertOptions(source=str(tmp_path / "source"), target=str(tmp_path / "converted"), to="kafka")
    with pytest.raises(EnvironmentMissingError), Work(Config(spark=remote)) as work:
        Conversion(work, options)
    for folder in ("archive", "converted"):
        assert [each for each in (tmp_path / folder).rglob("*") if each.is_file()] == []
