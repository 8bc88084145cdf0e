"""Every change to a topic has its own outcome, and one that is refused hides no other."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.kafka.admin import UP_TO_NOW, NewTopic, alter_configs, create_topics, delete_records, delete_topics
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.state.topics import read_configs
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.proxy.faults import KafkaMatch, LoseAnswer
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.sandbox.spec import PLAINTEXT
from maxbrod.sandbox.topics import create_topic, replicas, wait_until_known
from support.kafka_appends import batches_of, feed_of
from support.kafka_reads import bounds, client_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with client_of(cluster) as opened:
        yield opened


def own_configs(client: KafkaClient, topic: str) -> dict[str, str | None]:
    found, refused = read_configs(client, [topic], deadline=Deadline.after(60))
    assert not refused
    return dict(found[topic].own)


def test_topics_are_created_with_their_configuration_and_each_refusal_is_told(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    configs = {"cleanup.policy": "compact", "max.message.bytes": "2000000"}
    wanted = [
        NewTopic(name=topic, partitions=3, replication_factor=1, configs=configs),
        NewTopic(name=f"{topic}-wide", partitions=2, replication_factor=3),
        NewTopic(name="no such/name", partitions=1),
        NewTopic(name=f"{topic}-bad", partitions=1, configs={"retention.ms": "soon"}),
    ]
    outcomes = create_topics(client, wanted)
    assert [outcomes[each.name].done for each in wanted] == [True, False, False, False]
    assert outcomes[f"{topic}-wide"].reason.startswith("INVALID_REPLICATION_FACTOR")
    assert outcomes["no such/name"].code == Code.INVALID_TOPIC
    assert "retention.ms" in outcomes[f"{topic}-bad"].reason
    wait_until_known(cluster, topic)
    assert len(client.topic(topic, deadline=Deadline.after(60)).partitions) == 3
    assert own_configs(client, topic) == configs
    assert create_topics(client, wanted[:1])[topic].code == Code.TOPIC_ALREADY_EXISTS


def test_what_would_be_is_told_and_nothing_is_created(client: KafkaClient, topic: str) -> None:
    outcomes = create_topics(client, [NewTopic(name=topic, partitions=1)], validate_only=True)
    assert outcomes[topic].done
    assert topic not in client.metadata([topic]).topics


def test_replicas_stand_where_they_were_assigned(cluster3: Cluster, topic: str) -> None:
    with client_of(cluster3) as client:
        assert create_topics(client, [NewTopic(name=topic, assignment=[[3, 1], [2, 3]])])[topic].done
    wait_until_known(cluster3, topic)
    assert replicas(cluster3, topic, 0).replicas == (3, 1)
    assert replicas(cluster3, topic, 1).replicas == (2, 3)


@pytest.mark.parametrize("api", ["CreateTopics", "DeleteTopics"])
def test_a_change_whose_answer_was_lost_is_done(cluster: Cluster, topic: str, api: str) -> None:
    (broker,) = cluster.spec.brokers
    address = ("127.0.0.1", broker.ports[PLAINTEXT])
    with FaultProxy(address, protocol="kafka").start() as proxy, client_of(cluster) as direct:
        # The bootstrap address is asked first, and that is the proxy.
        with KafkaClient(KafkaConfig(bootstrap=proxy.bootstrap)) as client:
            number = proxy.add(LoseAnswer(on=KafkaMatch(api), times=1))
            assert create_topics(client, [NewTopic(name=topic, partitions=2)])[topic].done
        wait_until_known(cluster, topic)
        found = direct.metadata([topic]).topics[topic]
        with KafkaClient(KafkaConfig(bootstrap=proxy.bootstrap)) as client:
            assert delete_topics(client, [found.topic_id])[found.topic_id].done
        assert proxy.fired[number] == 1


def test_a_topic_is_deleted_by_its_id_and_never_another_one(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    topic_id = create_topic(cluster, topic)
    other = uuid.uuid4()
    outcomes = delete_topics(client, [topic_id, other])
    assert outcomes[topic_id].done
    assert outcomes[other].code == Code.UNKNOWN_TOPIC_ID


def test_values_are_set_and_taken_away_and_all_others_stay(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config={"retention.ms": "1000", "segment.ms": "60000"})
    changes: dict[str, dict[str, str | None]] = {
        topic: {"retention.ms": None, "cleanup.policy": "compact"},
        f"{topic}-none": {"retention.ms": "1"},
    }
    outcomes = alter_configs(client, changes)
    assert outcomes[topic].done
    assert outcomes[f"{topic}-none"].code == Code.UNKNOWN_TOPIC_OR_PARTITION
    expected = {"segment.ms": "60000", "cleanup.policy": "compact"}
    # The controller answers before the broker that is asked next has heard of it.
    wait_for("the configuration", lambda: own_configs(client, topic) == expected, timeout_s=60)
    refused = alter_configs(client, {topic: {"segment.ms": "1000000", "cleanup.policy": "burn"}})
    assert "burn" in refused[topic].reason
    assert own_configs(client, topic) == {"segment.ms": "60000", "cleanup.policy": "compact"}


def test_records_are_deleted_up_to_an_offset_and_each_refusal_is_told(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic, partitions=3, config={"retention.ms": "-1"})
    identity = new_producer_id(client)
    feeds = [feed_of(client, topic, batches_of(orders(100), identity), partition=index) for index in range(3)]
    list(produce_all(client, feeds))
    first, second, third = (partition_of(topic, index) for index in range(3))
    moved, failed = delete_records(client, {first: 40, second: UP_TO_NOW, third: 101, partition_of(topic, 9): 1})
    assert moved == {first: 40, second: 100}
    assert bounds(client, first) == (40, 100)
    assert "OFFSET_OUT_OF_RANGE" in str(failed[third])
    assert set(failed) == {third, partition_of(topic, 9)}
