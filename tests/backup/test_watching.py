"""While tasks wait for a broker, somebody says so."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from maxbrod.backup import waves as module
from maxbrod.backup.waves import BrokerWatch
from maxbrod.config import KafkaConfig
from maxbrod.kafka.state.cluster_state import Broker
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.sandbox.process import free_ports
from maxbrod.work.progress import Meter, Progress

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
    heard: list[Progress] = []
    meter = Meter(heard.append, "reading")
    caplog.set_level(logging.WARNING, "maxbrod")
    patient = BrokerWatch(config, [alive, away], then=meter)
    patient.seen(0, 0)
    assert caplog.messages == []

    monkeypatch.setattr(module, "_QUIET_S", 0.0)
    watched = BrokerWatch(config, [alive, away], then=meter)
    watched.seen(1, 5)  # one has ended just now
    assert caplog.messages == []
    watched.seen(1, 5)
    assert [message.partition(": ")[0] for message in caplog.messages] == [f"waiting for broker 7 at 127.0.0.1:{port}"]
    watched.seen(1, 5)  # and not again at once
    watched.seen(1, 6)  # its tasks read on
    assert len(caplog.messages) == 1
    assert len(heard) == 5
