"""What a broker wrote into `__consumer_offsets` is read as the broker itself answers OffsetFetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as LibraryPartition

from maxbrod.batch.decode import decode
from maxbrod.kafka.groups import ListedGroup, delete_offsets, read_offsets
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.internal_topics import COLUMNS, OFFSETS_TOPIC, OffsetsTopic, read_offsets_topic
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.cluster_changes import await_coordinator, classic_member, commit, consume_by_the_new_protocol
from support.kafka_reads import bounds, client_of, partition_of, read_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

Standing = set[tuple[str, int, int, int, str | None]]


def told_by_the_topic(client: KafkaClient) -> OffsetsTopic:
    topic = client.metadata([OFFSETS_TOPIC]).topics[OFFSETS_TOPIC]

    def batches(partition: int) -> Iterator[pa.RecordBatch]:
        where = partition_of(OFFSETS_TOPIC, partition)
        start, end = bounds(client, where)
        if start < end:
            yield decode(read_all(client, where), columns=COLUMNS)

    return read_offsets_topic(batches(partition) for partition in sorted(topic.partitions))


def by_topic(topic: OffsetsTopic, group_id: str) -> Standing:
    return {
        (where.topic, where.partition, found.offset, found.leader_epoch, found.metadata)
        for where, found in topic.commits.get(group_id, {}).items()
    }


def by_broker(client: KafkaClient, group_id: str) -> Standing:
    group = ListedGroup(group_id=group_id, type="classic", state="Empty", protocol_type="")
    answers = read_offsets(client, [group], {}, deadline=Deadline.after(30))
    assert not answers.refused
    found: Iterable[CommittedOffset] = answers.found[group_id]
    return {(each.topic, each.partition, each.offset, each.leader_epoch, each.metadata) for each in found}


def commit_in_a_transaction(cluster: Cluster, group_id: str, topic: str, offset: int, *, end: str) -> None:
    offsets = {LibraryPartition(topic, 0): OffsetAndMetadata(offset, end, -1)}
    producer: Any = KafkaProducer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{group_id}-{end}")
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction(offsets, group_id)
        if end == "commit":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    finally:
        producer.close()


def test_groups_read_from_their_topic_stand_where_the_broker_says(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic, partitions=3)
    produce(cluster, topic, numbered(20))
    names = {kind: f"{topic}-{kind}" for kind in ("plain", "member", "new", "deleted", "transactional")}
    commit(cluster, names["plain"], topic, {0: (1, "", -1), 1: (5, "", -1)})
    commit(cluster, names["plain"], topic, {0: (17, "seventeen ä", 0), 2: ((1 << 62) + 1, "", -1)})
    commit(cluster, names["deleted"], topic, {0: (3, "", -1), 1: (4, "", -1)})
    commit(cluster, names["transactional"], topic, {0: (2, "plainly", -1)})
    commit_in_a_transaction(cluster, names["transactional"], topic, 11, end="commit")
    commit_in_a_transaction(cluster, names["transactional"], topic, 12, end="abort")
    consume_by_the_new_protocol(cluster, names["new"], topic, 20)
    with cluster.admin() as admin:
        await_coordinator(admin, names["member"])
    with classic_member(cluster, names["member"], topic, until=20), client_of(cluster) as client:
        assert all(each.done for each in delete_offsets(client, names["deleted"], [partition_of(topic, 0)]).values())

        def equal() -> bool:
            """The end of a transaction reaches the coordinator a moment after the producer hears of it."""
            found = told_by_the_topic(client)
            return all(by_topic(found, name) == by_broker(client, name) for name in names.values())

        wait_for("topic and broker to say the same", equal, timeout_s=60)
        found = told_by_the_topic(client)
        assert not found.unreadable
        assert {where.partition for where in found.commits[names["plain"]]} == {0, 1, 2}
        assert {each.offset for each in found.commits[names["transactional"]].values()} == {11}
        assert {where.partition for where in found.commits[names["deleted"]]} == {1}
        assert {each.offset for each in found.commits[names["member"]].values()} >= {20}
        assert names["new"] in found.commits
        groups = {group.group_id: group.offsets for group in found.groups()}
        assert groups[names["plain"]][partition_of(topic, 2)] == (1 << 62) + 1
