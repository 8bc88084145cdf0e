"""Batches that are produced stand in the log once, in order, where they belong; and a refusal says what and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from kafka.errors import KafkaError

from maxbrod.batch.headers import walk
from maxbrod.errors import RefusedError, TopicGoneError, UsageError
from maxbrod.kafka.fetch.offsets import log_end
from maxbrod.kafka.produce.appends import Append, Batch, Hole, stamped
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.wire.connection import ApiVersions
from maxbrod.model import Codec
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, delete_topic, recreate_topic, set_topic_config
from maxbrod.sandbox.traffic import Message, numbered
from maxbrod.sandbox.traffic import produce as produce_messages
from support.java_records import RECORDS, at_offsets, to_arrow
from support.kafka_appends import assert_stored, batches_of, feed_of, produce_orders
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster
    from support.java_oracle import JavaOracle

KEEP = {"retention.ms": "-1"}
ANY_TIME = {"message.timestamp.after.max.ms": str((1 << 63) - 1), **KEEP, "segment.ms": str((1 << 63) - 1)}


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with client_of(cluster) as opened:
        yield opened


@pytest.mark.parametrize("codec", list(Codec))
def test_java_reads_what_was_produced_in_every_codec(
    cluster: Cluster, client: KafkaClient, java: JavaOracle, topic: str, codec: Codec
) -> None:
    create_topic(cluster, topic, config=ANY_TIME)
    batches = batches_of(to_arrow(RECORDS), new_producer_id(client), rows=2, codec=codec)
    done = list(produce_all(client, [feed_of(client, topic, batches)]))
    assert [(each.base_offset, each.count, each.log_append_time_ms) for each in done] == [
        (0, 2, -1),
        (2, 2, -1),
        (4, 2, -1),
    ]
    assert java.consume(cluster.bootstrap, topic, 0) == at_offsets(RECORDS)


def test_the_log_has_the_batches_byte_for_byte_but_for_offset_and_epoch(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic, config=KEEP)
    identity = new_producer_id(client)
    batches = batches_of(orders(1000), identity)
    sent = [batch.data.tobytes() for batch in batches]
    list(produce_all(client, [feed_of(client, topic, batches)]))
    (log,) = (cluster.log_dir(cluster.broker_ids[0]) / f"{topic}-0").glob("*.log")
    data = np.fromfile(log, np.uint8)
    headers = walk(data)
    found = [data[p : p + s].tobytes() for p, s in zip(headers.position.tolist(), headers.size.tolist(), strict=True)]
    # The checksum does not cover the base offset and the leader epoch, which are the broker's.
    assert [each[8:12] + each[16:] for each in found] == [each[8:12] + each[16:] for each in sent]
    assert headers["base_offset"].tolist() == list(range(0, 1000, 100))


def test_many_partitions_go_side_by_side_and_each_keeps_its_order(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic, partitions=7, config=KEEP)
    identity = new_producer_id(client)
    records = {index: orders(300 * (index + 1), seed=index) for index in range(7)}
    feeds = [
        feed_of(client, topic, iter(batches_of(each, identity, rows=50)), partition=index)
        for index, each in records.items()
    ]
    done = list(produce_all(client, feeds, request_bytes=20_000))
    assert len(done) == sum(each.num_rows for each in records.values()) // 50
    for index, each in records.items():
        mine = [ack.base_offset for ack in done if ack.where.partition == index]
        assert mine == list(range(0, each.num_rows, 50))
        assert_stored(cluster, topic, each, partition=index)


def test_no_more_partitions_than_allowed_are_ever_asked_for_batches_at_once(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic, partitions=7, config=KEEP)
    identity = new_producer_id(client)
    records = {index: orders(0 if index == 3 else 100 * (7 - index), seed=index) for index in range(7)}
    under_way: set[int] = set()
    most: list[int] = []

    def watched(index: int) -> Iterator[Append]:
        under_way.add(index)
        most.append(len(under_way))
        yield from batches_of(records[index], identity, rows=50) if records[index].num_rows else ()
        under_way.remove(index)

    feeds = [feed_of(client, topic, watched(index), partition=index) for index in records]
    done = list(produce_all(client, feeds, at_once=2))
    assert max(most) == 2
    assert len(most) == 7
    assert not under_way
    for index, each in records.items():
        assert sum(ack.count for ack in done if ack.where.partition == index) == each.num_rows
        if each.num_rows:
            assert_stored(cluster, topic, each, partition=index)


def test_topics_are_named_by_name_where_a_broker_does_not_know_ids(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = ApiVersions.choose
    monkeypatch.setattr(
        ApiVersions, "choose", lambda self, kind: min(choose(self, kind), 9 if kind.API_KEY == 0 else 1 << 15)
    )
    create_topic(cluster, topic, config=KEEP)
    records = produce_orders(client, topic, new_producer_id(client), 500)
    assert_stored(cluster, topic, records)


def test_sequence_numbers_go_on_at_0_after_the_last_one(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    records = orders(1000)
    # The seventh batch begins before the last number and ends after it.
    batches = batches_of(records, new_producer_id(client), first_sequence=(1 << 31) - 650)
    list(produce_all(client, [feed_of(client, topic, batches)]))
    assert_stored(cluster, topic, records)


def test_batches_that_are_sent_twice_stand_in_the_log_once(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    identity = new_producer_id(client)
    records = orders(500)
    batches = batches_of(records, identity)
    for _ in range(2):  # as one who got no answer would
        done = list(produce_all(client, [feed_of(client, topic, batches)]))
        assert [each.base_offset for each in done] == [0, 100, 200, 300, 400]
    assert_stored(cluster, topic, records)


def test_the_time_of_appending_is_told(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config={**KEEP, "message.timestamp.type": "LogAppendTime"})
    batches = batches_of(orders(10), new_producer_id(client))
    (done,) = produce_all(client, [feed_of(client, topic, batches)])
    assert done.log_append_time_ms > 1_700_000_000_000


def test_a_foreign_write_is_refused(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    batches = iter(batches_of(orders(1000), new_producer_id(client)))

    def interrupted() -> Iterator[Batch]:
        yield next(batches)
        yield next(batches)
        produce_messages(cluster, topic, numbered(1))
        yield from batches

    with pytest.raises(RefusedError, match="was appended at offset 201 of the target instead of 200") as caught:
        list(produce_all(client, [feed_of(client, topic, interrupted())], in_flight=1))
    assert (caught.value.object_name, caught.value.offset) == (f"{topic}-0", 200)


def test_a_recreated_topic_is_refused_and_stays_empty(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    batches = iter(batches_of(orders(1000), new_producer_id(client)))

    def interrupted() -> Iterator[Batch]:
        yield next(batches)
        yield next(batches)
        recreate_topic(cluster, topic)
        yield from batches

    with pytest.raises(TopicGoneError, match="deleted and created again"):
        list(produce_all(client, [feed_of(client, topic, interrupted())], in_flight=1))
    client.forget(topic)
    assert log_end(client, partition_of(topic)) == 0


def test_a_deleted_topic_is_refused(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    create_topic(cluster, topic, config=KEEP)
    feed = feed_of(client, topic, batches_of(orders(100), new_producer_id(client)))
    delete_topic(cluster, topic)
    with pytest.raises(TopicGoneError, match="deleted"):
        list(produce_all(client, [feed], patience_s=20))


def refuses(cluster: Cluster, topic: str, *, partition: int) -> bool:
    """Whether a record without a key, large and old, is refused by now: brokers change their minds some time later."""
    try:
        produce_messages(cluster, topic, [Message(value=bytes(10_000), timestamp_ms=0)], partition=partition)
    except KafkaError:
        return True
    return False


@pytest.mark.parametrize(
    ("config", "message", "hint"),
    [
        ({"max.message.bytes": "5000"}, "exceeds the size limit of the topic", "max.message.bytes"),
        (
            {"message.timestamp.before.max.ms": "1000"},
            "does not accept the timestamp",
            "message.timestamp.before.max.ms",
        ),
        ({"cleanup.policy": "compact"}, "does not accept a record", "cleanup.policy=delete"),
    ],
    ids=["size", "time", "key"],
)
def test_a_refusal_names_the_archives_offset_and_the_way_out(
    cluster: Cluster, client: KafkaClient, topic: str, config: dict[str, str], message: str, hint: str
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    identity = new_producer_id(client)
    records = orders(300)
    null_keys = pa.nulls(300, pa.binary())
    records = records.set_column(records.schema.get_field_index("key"), "key", null_keys)
    batches = iter(batches_of(records, identity))

    def tightened() -> Iterator[Batch]:
        yield next(batches)
        set_topic_config(cluster, topic, config)
        wait_for("the topic to be stricter", lambda: refuses(cluster, topic, partition=1), timeout_s=60)
        yield from batches

    with pytest.raises(RefusedError, match=message) as caught:
        list(produce_all(client, [feed_of(client, topic, tightened())], in_flight=1))
    assert (caught.value.object_name, caught.value.offset) == (f"{topic}-0", 100)
    assert hint in str(caught.value.hint)


def test_a_log_that_lost_acknowledged_batches_is_refused(cluster: Cluster, client: KafkaClient, topic: str) -> None:
    """A gap in the sequence, as an unclean election leaves it."""
    create_topic(cluster, topic, config=KEEP)
    batches = batches_of(orders(1000), new_producer_id(client))
    list(produce_all(client, [feed_of(client, topic, batches[:3])]))
    feed = feed_of(client, topic, batches[5:], first_offset=500)
    with pytest.raises(RefusedError, match="ends at 300, but records up to 500 were acknowledged") as caught:
        list(produce_all(client, [feed]))
    assert caught.value.offset == 500


def test_no_more_than_a_broker_remembers_may_be_under_way(client: KafkaClient) -> None:
    with pytest.raises(UsageError, match="1 to 5"):
        list(produce_all(client, [], in_flight=6))


def test_batches_that_no_client_may_send_are_refused_before_anything_is_sent(client: KafkaClient) -> None:
    identity = new_producer_id(client)
    data = batches_of(orders(200), identity)[0].data.copy()
    headers = walk(data)
    for change, what in (({"attributes": 0x2B}, "control"), ({"attributes": 0x0B}, "log-append time")):
        other = data.copy()
        other[21:23] = np.frombuffer(change["attributes"].to_bytes(2, "big"), np.uint8)
        with pytest.raises(RefusedError, match=what):
            stamped(other, walk(other, check_crc=False), identity, first_sequence=0)
    holey = data.copy()
    holey[23:27] = np.frombuffer((500).to_bytes(4, "big"), np.uint8)
    with pytest.raises(RefusedError, match="holes"):
        stamped(holey, walk(holey, check_crc=False), identity, first_sequence=0)
    assert len(stamped(data, headers, identity, first_sequence=0)) == 1


def test_holes_are_filled_and_no_consumer_sees_them(
    cluster: Cluster, client: KafkaClient, java: JavaOracle, topic: str
) -> None:
    create_topic(cluster, topic, config=KEEP)
    records = orders(300)
    first, second, third = batches_of(records, new_producer_id(client))
    appends: list[Append] = [
        Hole(count=3, source_offset=0),
        first,
        Hole(count=1, source_offset=103),
        second,
        Hole(count=12_345, source_offset=204),
        third,
        Hole(count=2, source_offset=12_649),
    ]
    where = partition_of(topic)
    feed = feed_of(client, topic, appends)
    done = list(produce_all(client, [feed]))
    assert [each.base_offset for each in done] == [0, 3, 103, 104, 204, 12_549, 12_649]
    assert log_end(client, where) == 12_651
    places = [*range(3, 103), *range(104, 204), *range(12_549, 12_649)]
    for isolation in ("read_committed", "read_uncommitted"):
        seen = java.consume(cluster.bootstrap, topic, 0, isolation_level=isolation)
        assert [each.offset for each in seen] == places
        assert [each.value for each in seen] == records.column("value").to_pylist()
