"""Settings of groups, client metrics and brokers are captured, and come back as asked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.kafka.admin import alter_configs
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.state.cluster_state import BROKER_SETTINGS, GROUP_SETTINGS, METRICS_SETTINGS
from maxbrod.kafka.state.settings import KINDS, read_settings
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command, put
from support.sparkless import without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

Settings = dict[tuple[str, str], dict[str, str | None]]
NUMBERS = {kind: number for number, kind in KINDS.items()}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as found:
        yield found


def settings(client: KafkaClient) -> Settings:
    found = read_settings(client, groups=(), deadline=Deadline.after(30))
    return {(entity.kind, entity.name): dict(entity.values) for entity in found}


def change(client: KafkaClient, kind: str, name: str, values: Mapping[str, str | None]) -> None:
    outcomes = alter_configs(client, {name: values}, kind=NUMBERS[kind])
    assert outcomes[name].done, outcomes

    def is_made() -> bool:
        there = settings(client).get((kind, name), {})
        return all(there.get(key) == value for key, value in values.items())

    wait_for("the settings", is_made, timeout_s=30)


@contextmanager
def made(client: KafkaClient, wanted: Settings) -> Iterator[None]:
    """Settings of the shared cluster, taken back in the end."""
    try:
        for (kind, name), values in wanted.items():
            change(client, kind, name, values)
        yield
    finally:
        for (kind, name), values in wanted.items():
            change(client, kind, name, dict.fromkeys(values))


def test_settings_of_groups_come_back_with_them_and_others_if_asked(
    cluster: Cluster, client: KafkaClient, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = (GROUP_SETTINGS, f"group-{topic}")
    metrics = (METRICS_SETTINGS, f"metrics-{topic}")
    brokers = (BROKER_SETTINGS, "")
    one = (BROKER_SETTINGS, "1")
    wanted: Settings = {
        group: {"share.auto.offset.reset": "earliest"},
        metrics: {"interval.ms": "60000", "metrics": "org.apache.kafka.consumer."},
        brokers: {"log.cleaner.backoff.ms": "14999"},
        one: {"log.cleaner.backoff.ms": "14998"},
    }
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(3))
    put(cluster, group[1], {(topic, 0): 2})
    with made(client, wanted):
        assert back_up(config_of(cluster, tmp_path, topic)).complete
        delete_topic(cluster, topic)
        for kind, name in (group, metrics, brokers):
            change(client, kind, name, dict.fromkeys(wanted[kind, name]))
        command = Command(cluster, tmp_path, capsys)
        with without_spark():
            command("restore", "--groups", group[1], "--yes")
            wait_for("the group's settings", lambda: settings(client).get(group) == wanted[group], timeout_s=30)
            assert metrics not in settings(client)
            report = command.json("restore", "--with-settings", "--groups", group[1], "--suffix", "-2", "--yes")
        wait_for("all settings", lambda: settings(client).get(metrics) == wanted[metrics], timeout_s=30)
        assert wanted[brokers].items() <= settings(client)[brokers].items()
        (warning,) = [text for text in report["warnings"] if "broker 1" in text]
        assert "not restored, because they belong to one broker: log.cleaner.backoff.ms" in warning


def test_settings_and_features_of_a_cluster_are_captured_only_for_a_snapshot(
    cluster: Cluster, client: KafkaClient
) -> None:
    assert capture(client, [], ()).settings is None
    state = capture(client, settings=True)
    assert state.settings is not None
    assert state.features is not None
    assert state.features["metadata.version"] > 0
    assert not [gap for gap in state.gaps if "settings" in gap.what or "features" in gap.what]
