"""The offsets of many partitions as columns are those that kafka-python's classes would have given."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.consumer import ListOffsetsRequest

from maxbrod.config import KafkaConfig
from maxbrod.kafka.fetch import offsets as log_bounds
from maxbrod.kafka.fetch.offsets import LogBounds, LogBoundsReader
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, open_transaction, produce

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


@pytest.mark.parametrize("version", log_bounds._VERSIONS)
@pytest.mark.parametrize("partitions", [1, 126, 127, 20_000])
def test_the_request_has_the_bytes_that_kafka_python_writes(version: int, partitions: int) -> None:
    asked = {"orders": [(number, number % 3 - 1) for number in range(partitions)], "ü" * 70: [(7, 2**31 - 1)]}
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    theirs = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        topics=[
            topic_class(
                name=name,
                partitions=[
                    topic_class.ListOffsetsPartition(partition_index=index, current_leader_epoch=epoch, timestamp=-2)
                    for index, epoch in each
                ],
            )
            for name, each in asked.items()
        ],
        timeout_ms=10_000,
        version=version,
    )
    assert log_bounds._request(asked, -2, 1, version) == theirs.encode()


def test_bounds_are_answered_in_one_round_and_the_unknown_is_left_out(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, partitions=3)
    produce(cluster, topic, numbered(5), partition=0)
    produce(cluster, topic, numbered(2), partition=2)
    places = [TopicPartition(topic=topic, partition=number) for number in (2, 0, 1)]
    limit = Deadline.after(30)
    with (
        open_transaction(cluster, topic, numbered(3), transactional_id=topic, partition=2),
        KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client,
    ):
        known = client.topic(topic, deadline=limit)
        unknown = replace(known, name=f"{topic}-unknown")
        found = LogBoundsReader().read(client, [known, unknown], deadline=limit)
    assert found == {places[0]: LogBounds(0, 2, 5), places[1]: LogBounds(0, 5, 5), places[2]: LogBounds(0, 0, 0)}


def test_the_same_answers_are_not_read_again_and_news_are(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, partitions=3)
    built: list[str] = []

    def counted(name: str) -> None:
        real = getattr(log_bounds, name)

        def count(*values: Any) -> Any:
            built.append(name)
            return real(*values)

        monkeypatch.setattr(log_bounds, name, count)

    counted("_read")
    counted("_request")
    limit, reader = Deadline.after(30), LogBoundsReader()
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        known = client.topic(topic, deadline=limit)
        first = reader.read(client, [known], deadline=limit)
        assert len(first) == 3
        built.clear()
        assert reader.read(client, [known], deadline=limit) is first
        assert built == []
        produce(cluster, topic, numbered(5), partition=1)
        second = reader.read(client, [known], deadline=limit)
        assert built == ["_read"] * 3
        assert second == {**first, TopicPartition(topic=topic, partition=1): LogBounds(0, 5, 5)}
        # Another leader epoch, and so another value, is asked with it.
        assert reader.read(client, [replace(known)], deadline=limit) == second
        assert built.count("_request") == 3 * len({each.leader for each in known.partitions.values()})
