"""A backup that may not see every topic is never complete, and says which right is missing."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from maxbrod.backup.follow import Interval, follow, open_backup
from maxbrod.backup.metrics import BackupMetrics, problem_of
from maxbrod.backup.observation import ChosenTopics, choose_topics
from maxbrod.backup.options import BackupOptions
from maxbrod.backup.run import Backup
from maxbrod.config import Config, from_java_properties
from maxbrod.kafka.state.cluster_state import HIDDEN_TOPIC, HIDDEN_TOPICS, ClusterState, MissingState
from maxbrod.replicate.egress import backup_config
from maxbrod.replicate.seed.egress import backup_config as tree_config
from maxbrod.sandbox.spec import SASL_PLAINTEXT
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.access_rules import allow, rule
from support.backups import config_of, kinds
from support.restores import Command
from support.sparkless import stay_without_spark, without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.notices import Notice
    from maxbrod.sandbox.cluster import Cluster

ALL = BackupOptions()
NOT_SURE = MissingState(what=HIDDEN_TOPICS, why="Kafka does not report it", hint="allow this user to Describe")


def state(*gaps: MissingState) -> ClusterState:
    nothing: dict[str, Any] = dict.fromkeys(("brokers", "topics", "groups"), ())
    nothing |= dict.fromkeys(("acls", "quotas", "users", "cluster_id"))
    return ClusterState(taken_at_ms=0, gaps=gaps, **nothing)


def hidden(name: str) -> MissingState:
    return MissingState(what=f"{HIDDEN_TOPIC}{name}", why="TOPIC_AUTHORIZATION_FAILED", hint="allow it")


def chosen(request: BackupOptions, seen: ClusterState, *names: str) -> ChosenTopics:
    topics = {name: SimpleNamespace(internal=False, topic_id=uuid4()) for name in names}
    client: Any = SimpleNamespace(metadata=lambda **_: SimpleNamespace(topics=topics))
    return choose_topics(client, request, patience_s=1, demand=True, cluster=seen)


def notices(request: BackupOptions, seen: ClusterState, *names: str) -> list[tuple[str, str | None, int]]:
    return [(each.kind, each.topic, each.exit_code) for each in chosen(request, seen, *names).notices]


def test_a_view_that_may_be_partial_is_incomplete_unless_every_topic_is_named_or_counted() -> None:
    view, doubt = state(NOT_SURE), ("hidden", None, 3)
    assert notices(ALL, view, "a", "b") == [doubt]
    assert notices(BackupOptions(topics=("a*",)), view, "a", "b") == [doubt]
    assert notices(BackupOptions(topics=("a", "b*")), view, "a", "b") == [doubt]
    assert notices(BackupOptions(topics=("a", "b")), view, "a", "b") == []
    assert notices(BackupOptions(min_topics=2), view, "a", "b") == [("hidden", None, 0)]
    assert notices(BackupOptions(min_topics=3), view, "a", "b") == [("hidden", None, 3)]
    (notice,) = chosen(ALL, view, "a").notices
    assert "--min-topics" in (notice.hint or "")
    assert "Describe" in (notice.hint or "")


def test_a_hidden_topic_counts_if_it_was_asked_for() -> None:
    view = state(hidden("orders-1"), hidden("__consumer_offsets"))
    assert notices(ALL, view, "a") == [("hidden", "orders-1", 3)]
    assert notices(BackupOptions(topics=("a*",)), view, "a") == []
    assert notices(BackupOptions(exclude=("orders-*",)), view, "a") == []
    assert notices(BackupOptions(topics=("orders-*",), min_topics=1), view, "orders-2") == [("hidden", "orders-1", 3)]
    assert len(notices(BackupOptions(internal=True), view, "a")) == 2


def test_no_topic_at_all_is_success_only_with_a_reason() -> None:
    assert notices(ALL, state()) == [("missing", None, 0)]
    assert "has no topic" in chosen(ALL, state()).notices[0].message
    assert "excluded" in chosen(BackupOptions(exclude=("a",)), state(), "a").notices[0].message
    assert notices(ALL, state(NOT_SURE)) == [("hidden", None, 3)]
    assert notices(BackupOptions(topics=("a*",)), state(NOT_SURE)) == [("missing", None, 0), ("hidden", None, 3)]
    assert notices(BackupOptions(min_topics=1), state()) == [("hidden", None, 3)]


# With brokers


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark():
        yield


@pytest.fixture
def prefix(fenced: Cluster, topic: str) -> str:
    """Two topics of a test, of which dave may see the first."""
    for number in range(2):
        create_topic(fenced, f"{topic}-{number}")
        produce(fenced, f"{topic}-{number}", numbered(10))
    allow(fenced, rule("dave", "TOPIC", f"{topic}-0", "READ"))
    return topic


def as_dave(cluster: Cluster, archive: Path, *topics: str, **request: Any) -> Config:
    config = config_of(cluster, archive, *topics, **request)
    properties = cluster.java_properties(SASL_PLAINTEXT, "dave", mechanism="SCRAM-SHA-256")
    return config.model_copy(update={"kafka": from_java_properties(properties)})


def grave(given: tuple[Notice, ...]) -> list[str]:
    return [str(each) for each in given if each.exit_code]


def test_a_backup_by_a_user_that_may_not_see_everything_is_incomplete_in_every_output(
    fenced: Cluster, prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dave = Command(fenced, tmp_path / "archive", capsys, user="dave")
    metrics = tmp_path / "m.prom"
    words = ("backup", "--topic", f"{prefix}-*", "--metrics-file", str(metrics))
    assert dave(*words, "--quiet", exits=3) == ""
    assert "may be hidden" in dave.said
    assert "Describe the cluster" in dave.said
    assert "recovery_point_timestamp_seconds" in metrics.read_text()
    told = {line.split("{")[0]: line.split()[-1] for line in metrics.read_text().splitlines()}
    assert told["maxbrod_backup_recovery_point_timestamp_seconds"] == "0.0"
    report = dave.json(*words, exits=3)
    assert (report["complete"], report["verdict"], report["recovery_point_ms"]) == (False, "incomplete", None)
    assert (report["waiting"], [each["topic"] for each in report["topics"]]) == (None, [f"{prefix}-0"])
    shown = dave(*words, exits=3)
    assert "recovery point: none yet" in shown
    verdict = shown.splitlines()[-1]
    assert verdict.startswith("incomplete")
    assert "hidden" in verdict

    archive = Command(fenced, tmp_path / "archive", capsys)
    archive.place = archive.place[2:]
    (status,) = archive.json("status", exits=3)["archives"]
    promises = {each["name"]: each for each in status["promises"]}
    assert {promises[each]["state"] for each in ("backup", "recovery point")} == {"FAILED"}
    assert all("Describe the cluster" in promises[each]["hint"] for each in ("backup", "recovery point"))
    listing = archive.json("ls")
    assert (listing["partial"], listing["recovery_point"]) == (True, None)
    assert "may be hidden" in archive("ls")
    assert archive.json("ls", f"{prefix}-0")["recovery_point"] is not None, "that one was seen"
    assert archive.json("check")["recovery_point"] is None

    # Each of the ways out.
    assert dave.json("backup", "--topic", f"{prefix}-0")["complete"]
    assert dave.json(*words, "--min-topics", "1")["complete"]
    assert archive.json("ls")["recovery_point"] is not None
    dave(*words, "--min-topics", "2", exits=3)
    assert archive.json("ls")["recovery_point"] is None
    allow(fenced, rule("dave", "CLUSTER", "kafka-cluster", "DESCRIBE"))
    report = dave.json(*words, exits=3)
    assert [(each["topic"], "may not see" in each["message"]) for each in report["notices"] if each["exit_code"]] == [
        (f"{prefix}-1", True)
    ]
    assert dave.json(*words, "--exclude", f"{prefix}-1")["complete"]
    allow(fenced, rule("dave", "TOPIC", f"{prefix}-1", "READ"))
    assert dave.json(*words)["complete"]
    assert archive.json("ls")["recovery_point"] is not None


@pytest.mark.parametrize("layout", [None, "kbs"])
def test_every_interval_of_a_follower_says_what_is_hidden_from_it(
    fenced: Cluster, prefix: str, tmp_path: Path, layout: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stay_without_spark(monkeypatch)
    config = as_dave(fenced, tmp_path / "archive", f"{prefix}-*", every=0.1).model_copy(update={"layout": layout})
    intervals: list[Interval] = []
    stop = threading.Event()

    def after(interval: Interval) -> None:
        intervals.append(interval)
        if len(intervals) == 2:
            stop.set()

    metrics = BackupMetrics()
    with open_backup(config, stop=stop) as backup:
        follow(config, stop=stop, on_interval=after, opened=backup)
    for interval in intervals:
        metrics.observe(interval)
        assert (interval.exit_code, interval.verdict) == (3, "incomplete")
        assert (interval.recovery_point_ms, interval.lag_offsets) == (None, None)
        assert "hidden" in (problem_of(interval) or "") or "may not see" in (problem_of(interval) or "")
    assert metrics.registry.get_sample_value("maxbrod_backup_notices_total", {"kind": "hidden"}) == 2
    assert metrics.registry.get_sample_value("maxbrod_backup_intervals_total", {"result": "complete"}) == 0


def test_a_topic_that_becomes_hidden_keeps_its_recovery_point_and_is_not_gone(
    fenced: Cluster, prefix: str, tmp_path: Path
) -> None:
    config = config_of(fenced, tmp_path / "archive", f"{prefix}-*")
    with Backup(config) as admin:
        assert admin.run().complete
        before = dict(admin._state.known.recovery_points)
    with Backup(as_dave(fenced, tmp_path / "archive", f"{prefix}-*")) as dave:
        report = dave.run()
        points = dict(dave._state.known.recovery_points)
    assert (report.exit_code, report.recovery_point_ms) == (3, None)
    assert "hidden" in kinds(report)
    assert points.keys() == before.keys()
    assert sum(points[each] == before[each] for each in before) == 1, "only what was seen has moved on"
    with Backup(config) as admin:
        again = admin.run()
    assert (again.complete, again.recovery_point_ms) == (True, again.started_at_ms)
    assert again.committed, "the archive says that it is whole again"


def test_a_named_topic_that_is_hidden_from_a_follower_is_incomplete(
    fenced: Cluster, prefix: str, tmp_path: Path
) -> None:
    with Backup(as_dave(fenced, tmp_path / "archive", f"{prefix}-0", f"{prefix}-1")) as dave:
        report = dave.run(demand_topics=False)
    assert (report.exit_code, report.recovery_point_ms) == (3, None)
    assert grave(report.notices)[0].startswith(f"{prefix}-1: this user may not see the topic")
    assert [each.records for each in report.topics] == [10], "what may be seen is archived all the same"


def test_a_name_that_no_topic_can_have_keeps_no_other_topic_from_being_archived(
    fenced: Cluster, prefix: str, tmp_path: Path
) -> None:
    with Backup(config_of(fenced, tmp_path / "archive", f"{prefix}-0", f"{prefix}-1,")) as admin:
        report = admin.run(demand_topics=False)
    assert ([each.records for each in report.topics], report.exit_code) == ([10], 0)
    assert "missing" in kinds(report)


def test_both_ways_of_egress_can_count_topics() -> None:
    config = Config()
    counted = config.model_copy(
        update={
            "replicate": replace(config.replicate, min_topics=7),
            "egress_tree": replace(config.egress_tree, min_topics=8),
        }
    )
    assert backup_config(counted).backup.min_topics == 7
    assert tree_config(counted).backup.min_topics == 8
