"""While tasks wait for a broker, somebody says so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from maxbrod.backup import progress as module
from maxbrod.backup.progress import BrokerWatch
from maxbrod.config import KafkaConfig
from maxbrod.kafka.state.cluster_state import Broker
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.sandbox.spec import free_ports

if TYPE_CHECKING:
    import pytest

    from maxbrod.sandbox.cluster import Cluster


def test_a_broker_that_cannot_be_talked_to_is_named_once_no_task_has_ended_for_a_while(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = KafkaConfig(bootstrap=cluster.bootstrap)
    with KafkaClient(config) as client:
        client.metadata([])
        (alive,) = client.brokers
    (port,) = free_ports(1)
    away = Broker(node_id=7, host="127.0.0.1", port=port)
    heard: list[int] = []
    caplog.set_level(logging.WARNING, "maxbrod")
    patient = BrokerWatch(config, [alive, away], then=heard.append)
    patient.tasks_done(0)
    assert caplog.messages == []

    monkeypatch.setattr(module, "_QUIET_S", 0.0)
    watched = BrokerWatch(config, [alive, away], then=heard.append)
    watched.tasks_done(1)  # one has ended just now
    assert caplog.messages == []
    watched.tasks_done(1)
    assert [message.partition(": ")[0] for message in caplog.messages] == [f"waiting for broker 7 at 127.0.0.1:{port}"]
    watched.tasks_done(1)  # and not again at once
    assert len(caplog.messages) == 1
    assert heard == [0, 1, 1, 1]
