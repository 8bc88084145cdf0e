"""A topic that was deleted comes back as it was, however many backups have run since."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.backup import archive_state
from maxbrod.backup import run as backup
from maxbrod.backup import run_state as backup_run
from maxbrod.backup.run_state import BackupRun
from maxbrod.cli.main import run
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command, configs_of, put, read_all, stand
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

DAY_MS = 86_400_000
OWN = {"cleanup.policy": "compact", "retention.ms": "-1", "min.compaction.lag.ms": "86400000000"}


def delete_group(cluster: Cluster, group_id: str) -> None:
    with cluster.admin() as admin:
        admin.delete_groups([group_id])


def aged(count: int) -> list[Any]:
    """Records that are 60 days old."""
    then = int(time.time() * 1000) - 60 * DAY_MS
    return [each._replace(key=each.value, timestamp_ms=then) for each in numbered(count)]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def command(cluster: Cluster, archive: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with without_spark():
        yield Command(cluster, archive, capsys)


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run stores a snapshot of its own, as runs do that are minutes apart."""
    monkeypatch.setattr(archive_state, "_SHARED_MS", 0)


@pytest.fixture
def lost(cluster: Cluster, topic: str, archive: Path) -> str:
    """The run that last saw a topic with a configuration of its own and a group at 50; two more have run since."""
    create_topic(cluster, topic, partitions=2, config=OWN)
    produce(cluster, topic, aged(100))
    put(cluster, topic, {(topic, 0): 50})
    request = config_of(cluster, archive, f"{topic}*")
    assert back_up(request).complete
    put(cluster, topic, {(topic, 0): 51})
    seen = back_up(request)
    delete_topic(cluster, topic)
    delete_group(cluster, topic)
    for number in range(2):
        create_topic(cluster, f"{topic}-{number}")
        assert back_up(request).committed
    return seen.run_id


def test_a_deleted_topic_keeps_its_configuration_and_its_groups(
    cluster: Cluster, topic: str, lost: str, command: Command
) -> None:
    planned = command.json("restore", "--topic", topic, "--groups", topic, "--dry-run")
    assert [line["known_from"] for line in planned["lines"]] == [lost]
    assert planned["obstacles"] == [], "its own configuration keeps the old records"
    report = command.json("restore", "--topic", topic, "--groups", topic)
    assert report["known_from"] == {topic: lost}
    assert [(each["offset"], each["run_id"]) for each in report["groups"]] == [(51, lost)]
    assert configs_of(cluster, topic) == OWN
    assert stand(cluster, topic) == {(topic, 0): 51}
    assert len(read_all(cluster, topic)) == 100


@pytest.fixture
def looking(archive: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command that needs no cluster."""

    def look(*words: str) -> str:
        assert run([*words, "--archive", str(archive)]) == 0
        return capsys.readouterr().out

    return look


def test_ls_and_show_mark_what_the_cluster_has_lost(topic: str, lost: str, looking: Callable[..., str]) -> None:
    (listed,) = json.loads(looking("ls", topic, "--json"))["topics"]
    assert (listed["last_seen"], listed["records"]) == (lost, 100)
    told = " ".join(looking("ls", topic).split())
    assert f"not seen in the cluster any more: {topic} (last seen by run {lost})" in told
    (shown,) = json.loads(looking("show", topic, "--json"))["topics"]
    assert (shown["last_seen"], shown["described_by"], shown["configs"]) == (lost, lost, OWN)
    assert [(each["offset"], each["last_known"]) for each in shown["groups"]] == [(51, lost)]
    assert f"last seen by run {lost}" in " ".join(looking("show", topic).split())


def test_the_report_says_which_run_saw_what_the_cluster_has_lost(topic: str, lost: str, command: Command) -> None:
    told = command("restore", "--topic", topic, "--groups", topic, "--yes")
    assert f"restored as run {lost} last saw it" in " ".join(told.split())
    assert f"as run {lost} knew it" in " ".join(told.split())
    assert "complete: every committed record" in " ".join(told.split())


def test_older_snapshots_are_not_needed_for_what_is_carried_on(
    cluster: Cluster, topic: str, unshared: None, lost: str, command: Command, archive: Path
) -> None:
    del unshared
    for each in open_archive(str(archive)).catalog.runs()[:-1]:
        (archive / str(each.snapshot)).unlink()
    command("restore", "--topic", topic, "--groups", topic, "--suffix", "-back")
    assert configs_of(cluster, f"{topic}-back") == OWN
    assert stand(cluster, topic) == {(f"{topic}-back", 0): 51}
    assert lost


def test_as_of_a_run_says_what_that_run_knew(topic: str, lost: str, command: Command, archive: Path) -> None:
    first, seen = [run.run_id for run in open_archive(str(archive)).catalog.runs()][:2]
    assert seen == lost
    for as_of, expected in ((first, 50), (lost, 51), ("latest", 51)):
        suffix = f"-{as_of[-6:]}"
        report = command.json("restore", "--topic", topic, "--groups", topic, "--as-of", as_of, "--suffix", suffix)
        assert [each["offset"] for each in report["groups"]] == [expected]
        assert [each["run_id"] for each in report["groups"]] == [first if as_of == first else lost]


def test_groups_are_moved_later_from_what_the_archive_carries_on(
    cluster: Cluster, topic: str, lost: str, command: Command
) -> None:
    command("restore", "--topic", topic)
    told = command.json("groups", "apply", "--group", topic)
    assert [(each["offset"], each["run_id"]) for each in told["positions"]] == [(51, lost)]
    assert stand(cluster, topic) == {(topic, 0): 51}


def test_a_topic_of_the_same_name_is_another_one(
    cluster: Cluster, topic: str, lost: str, command: Command, archive: Path, looking: Callable[..., str]
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "123456789000"})
    produce(cluster, topic, numbered(7))
    put(cluster, topic, {(topic, 0): 3})
    assert back_up(config_of(cluster, archive, topic)).committed
    shown = json.loads(looking("show", topic, "--all", "--json"))["topics"]
    assert [each["newest"] for each in shown] == [True, False]
    old = shown[1]["topic_id"]
    newest = command.json("restore", "--topic", topic, "--suffix", "-new", "--groups", topic)
    assert (newest["records"], newest["known_from"], [each["offset"] for each in newest["groups"]]) == (7, {}, [3])
    assert configs_of(cluster, f"{topic}-new") == {"retention.ms": "123456789000"}
    before = command.json("restore", "--topic", topic, "--topic-id", old, "--suffix", "-old", "--groups", topic)
    assert (before["records"], before["known_from"]) == (100, {topic: lost})
    assert [each["offset"] for each in before["groups"]] == [51]
    assert configs_of(cluster, f"{topic}-old") == OWN


def test_a_named_group_that_could_be_put_nowhere_is_never_complete(
    cluster: Cluster, topic: str, lost: str, command: Command, archive: Path
) -> None:
    elsewhere = f"{topic}-elsewhere"
    put(cluster, elsewhere, {(f"{topic}-0", 0): 0})
    assert back_up(config_of(cluster, archive, f"{topic}*")).committed
    planned = command.json("restore", "--topic", topic, "--groups", elsewhere, "--dry-run")
    assert [(each["kind"], each["fatal"]) for each in planned["obstacles"]] == [("groups", False)]
    report = command.json("restore", "--topic", topic, "--groups", elsewhere, exits=3)
    assert not report["complete"]
    assert [each["group"] for each in report["groups_missing"]] == [elsewhere]
    assert "not restored" in command("groups", "apply", "--group", elsewhere, exits=3)
    assert command.json("groups", "plan", "--group", elsewhere, exits=3)["groups_missing"]
    assert command.json("groups", "plan", "--group", "*")["groups_missing"] == [], "a pattern is about what there is"
    assert lost


@pytest.mark.parametrize("groups", ["nobody", "nobody-*", "/no.*/"])
def test_groups_that_the_archive_does_not_know_are_refused(
    topic: str, lost: str, command: Command, groups: str
) -> None:
    refused = command.json("restore", "--topic", topic, "--groups", groups, exits=2)
    assert [each["kind"] for each in refused["obstacles"]] == ["group missing"]
    assert groups in refused["message"]
    assert lost


def test_retention_that_will_empty_the_topic_is_told_in_plan_report_and_last_line(
    cluster: Cluster, topic: str, command: Command, archive: Path
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    produce(cluster, topic, aged(10))
    assert back_up(config_of(cluster, archive, topic)).complete
    short = ("--config-set", "retention.ms=604800000", "--suffix")
    planned = command.json("restore", *short, "-a", "--dry-run")
    assert [each["kind"] for each in planned["obstacles"]] == ["retention"]
    assert command.json("restore", *short, "-b")["retention"]
    told = " ".join(command("restore", *short, "-c").split())
    assert "retention: " in told
    assert told.endswith("but the brokers will delete records of 1 topic, see above")
    command("restore", *short, "-d", "--quiet")
    assert "the oldest are 60 days old" in " ".join(command.said.split())


def test_internal_topics_that_a_whole_restore_leaves_out_are_told(
    cluster: Cluster, topic: str, command: Command, archive: Path
) -> None:
    create_topic(cluster, topic)
    create_topic(cluster, f"__{topic}")
    produce(cluster, f"__{topic}", numbered(3))
    assert back_up(config_of(cluster, archive, topic, f"__{topic}")).complete
    planned = command.json("restore", "--suffix", "-whole", "--dry-run")
    assert [each["topic"] for each in planned["left_out"]] == [f"__{topic}"]
    told = " ".join(command("restore", "--suffix", "-whole").split())
    assert f"__{topic}: left out: its name begins with __" in told
    assert command.json("restore", "--topic", f"__{topic}", "--suffix", "-named")["left_out"] == []


def test_a_clock_that_steps_back_is_told_and_the_groups_are_those_of_the_last_commit(
    cluster: Cluster, topic: str, command: Command, archive: Path
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(10))
    put(cluster, topic, {(topic, 0): 3})
    request = config_of(cluster, archive, topic)
    ahead_ms = int(time.time() * 1000) + 3_600_000
    early = BackupRun(run_id="29991231T235959Z-aaaaaa", started_at_ms=ahead_ms)
    with (
        patch.object(backup, "BackupRun", lambda: early),
        patch.object(backup, "now_ms", lambda: ahead_ms),
        patch.object(backup_run, "now_ms", lambda: ahead_ms),
    ):
        assert back_up(request).complete
    put(cluster, topic, {(topic, 0): 8})
    later = back_up(request)
    (notice,) = (each for each in later.notices if each.kind == "clock")
    assert early.run_id in notice.message
    assert later.complete
    report = command.json("restore", "--groups", topic, "--suffix", "-back")
    assert [(each["offset"], each["run_id"]) for each in report["groups"]] == [(8, later.run_id)]
    assert [each for each in back_up(request).notices if each.kind == "clock"] == [], "only the newest run counts"
