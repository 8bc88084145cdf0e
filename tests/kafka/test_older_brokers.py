"""Brokers before Kafka 3.1 are asked for records by the name of a topic: it is still the topic that was wanted.

Those before 3.0 are asked for the offsets of one group after the other.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as LibraryPartition

from maxbrod.errors import TopicGoneError
from maxbrod.kafka.fetch import ranges, request
from maxbrod.kafka.fetch.ranges import SmallRange, read_range, read_small_ranges
from maxbrod.kafka.state.capture import capture
from maxbrod.kafka.wire.connection import ApiVersions
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.topics import create_topic, recreate_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.kafka_reads import client_of, fill, log_bytes, partition_of, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

FETCH, OFFSET_FETCH, FIND_COORDINATOR = 1, 9, 10


def pretend(monkeypatch: pytest.MonkeyPatch, newest: dict[int, int]) -> None:
    """Clients believe that brokers know no newer versions of these requests."""
    choose = ApiVersions.choose

    def older(versions: ApiVersions, request_class: Any) -> int:
        known = {key: (first, min(last, newest.get(key, last))) for key, (first, last) in versions.ranges.items()}
        return choose(ApiVersions(broker=versions.broker, ranges=known), request_class)

    monkeypatch.setattr(ApiVersions, "choose", older)


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaClient]:
    """A client of brokers before Kafka 3.1."""
    pretend(monkeypatch, {FETCH: 12})
    with client_of(cluster) as opened:
        yield opened


def test_records_fetched_by_name_are_those_of_the_log(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    fill(cluster, topic, 5_000)
    assert read_all(client, partition_of(topic), fetch_bytes=200_000) == log_bytes(cluster, topic)


def test_records_of_a_topic_that_took_the_name_never_arrive(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recreated after the request was planned, and has records before the broker answers."""
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    read, recreated = request.read_answer, list[object]()

    def late(frame: np.ndarray, names: Any = None) -> Any:
        if not recreated:
            recreated.append(recreate_topic(cluster, topic))
            produce(cluster, topic, numbered(5, first=100))
        return read(frame, names)

    old = client.topic(topic, deadline=Deadline.after(60)).topic_id
    client.leader(partition_of(topic), deadline=Deadline.after(60))
    small = SmallRange(where=partition_of(topic), topic_id=old, start=0, end=5, bytes_estimate=100)
    monkeypatch.setattr(ranges, "read_answer", late)
    assert list(read_small_ranges(client, [small])) == []
    recreated.clear()
    now = client.topic(topic, deadline=Deadline.after(60)).topic_id
    with pytest.raises(TopicGoneError, match="created again"):
        list(read_range(client, partition_of(topic), 0, 5, topic_id=now))


@pytest.mark.parametrize("newest", [{OFFSET_FETCH: 7, FIND_COORDINATOR: 3}, {OFFSET_FETCH: 7}, {FIND_COORDINATOR: 3}])
def test_offsets_of_groups_are_the_same_when_each_is_asked_for_alone(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch, newest: dict[int, int]
) -> None:
    create_topic(cluster, topic, partitions=2)
    groups = [f"{topic}-{number}" for number in range(3)]
    for number, group_id in enumerate(groups):
        with closing(KafkaConsumer(bootstrap_servers=cluster.bootstrap, group_id=group_id)) as consumer:
            places = {LibraryPartition(topic, partition): number for partition in range(2)}
            consumer.commit(
                {place: OffsetAndMetadata(offset, f"note {offset}", -1) for place, offset in places.items()}
            )
    with client_of(cluster) as opened:
        expected = capture(opened, [topic], groups, deadline=Deadline.after(60))
    pretend(monkeypatch, newest)
    with client_of(cluster) as opened:
        found = capture(opened, [topic], groups, deadline=Deadline.after(60))
    assert [len(group.offsets or ()) for group in found.groups] == [2, 2, 2]
    assert found.groups == expected.groups
    assert found.gaps == expected.gaps
