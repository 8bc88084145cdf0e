"""A group without members stands where it was put; one with members is left alone, and that is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kafka import KafkaConsumer

from maxbrod.kafka.groups import ACTIVE, ListedGroup, commit_offsets, delete_offsets, read_offsets, remove_members
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.cluster_changes import classic_member
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with client_of(cluster) as opened:
        yield opened


def at(topic: str, partition: int, offset: int, *, epoch: int = -1, metadata: str | None = "") -> CommittedOffset:
    return CommittedOffset(
        topic=topic, topic_id=None, partition=partition, offset=offset, leader_epoch=epoch, metadata=metadata
    )


def standing(client: KafkaClient, group_id: str) -> set[CommittedOffset]:
    group = ListedGroup(group_id=group_id, type="classic", state="Empty", protocol_type="")
    answers = read_offsets(client, [group], {}, deadline=Deadline.after(30))
    assert not answers.refused
    return set(answers.found[group_id])


def test_a_group_stands_where_it_was_put_with_epoch_and_metadata(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic, partitions=3)
    wanted = {
        at(topic, 0, 17, epoch=0, metadata="seventeen"),
        at(topic, 1, (1 << 62) + 1),
        at(topic, 2, 0, metadata="ä€"),
    }
    outcomes = commit_offsets(client, topic, wanted)
    assert {where: each.done for where, each in outcomes.items()} == {
        partition_of(topic, index): True for index in range(3)
    }
    assert standing(client, topic) == wanted


def test_offsets_are_deleted_and_the_others_stay(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, partitions=2)
    commit_offsets(client, topic, [at(topic, 0, 3), at(topic, 1, 4)])
    (outcome,) = delete_offsets(client, topic, [partition_of(topic, 0)]).values()
    assert outcome.done
    assert standing(client, topic) == {at(topic, 1, 4)}


def test_each_refusal_is_told_beside_what_was_done(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    outcomes = commit_offsets(client, topic, [at(topic, 0, 3), at(f"{topic}-none", 0, 4)])
    assert outcomes[partition_of(topic)].done
    assert outcomes[partition_of(f"{topic}-none")].code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert standing(client, topic) == {at(topic, 0, 3)}
    (missing,) = delete_offsets(client, f"{topic}-none", [partition_of(topic)]).values()
    assert missing.code == Code.GROUP_ID_NOT_FOUND


def test_an_active_group_is_never_moved(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    with classic_member(cluster, topic, topic, until=5):
        (committed,) = commit_offsets(client, topic, [at(topic, 0, 1)]).values()
        (deleted,) = delete_offsets(client, topic, [partition_of(topic)]).values()
        assert committed.code in ACTIVE
        assert deleted.code in ACTIVE
        assert {each.offset for each in standing(client, topic)} == {5}


@pytest.mark.parametrize("instance_id", [None, "always-the-same"])
def test_a_member_that_was_removed_comes_back_and_reads_on_where_the_group_was_put(
    cluster: Cluster, client: KafkaClient, topic: str, instance_id: str | None
) -> None:
    create_topic(cluster, topic)
    produce(cluster, topic, numbered(5))
    consumer = KafkaConsumer(
        topic,
        group_id=topic,
        group_instance_id=instance_id,
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=200,
        # It may join before it knows the topic's partitions, is then given none of them, and must look again.
        metadata_max_age_ms=500,
    )
    read: list[int] = []

    def arrived(count: int) -> bool:
        read.extend(record.offset for records in consumer.poll(200).values() for record in records)
        return len(read) >= count

    try:
        wait_for("the records", lambda: arrived(5), timeout_s=60)
        assert remove_members(client, topic) == 1
        (outcome,) = commit_offsets(client, topic, [at(topic, 0, 2)]).values()
        assert outcome.done
        wait_for("the records once more", lambda: arrived(8), timeout_s=60)
    finally:
        consumer.close()
    assert read == [0, 1, 2, 3, 4, 2, 3, 4]


def test_of_a_group_that_is_not_there_no_member_is_removed(client: KafkaClient, topic: str) -> None:
    assert remove_members(client, topic) == 0
