"""Two processes that write the same log, one after the other: what the first one still sends does no harm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.producer import WriteTxnMarkersRequest

from maxbrod.errors import MisplacedBatchError, ProducerFencedError, UnavailableError
from maxbrod.kafka.fetch.offsets import log_end
from maxbrod.kafka.produce import producer as produce_loop
from maxbrod.kafka.produce.append_queue import AppendQueue
from maxbrod.kafka.produce.appends import Append, Hole
from maxbrod.kafka.produce.lane import markers_body
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import coordinator_epoch, new_producer_id
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.topics import create_topic
from support.kafka_appends import assert_stored, batches_of, feed_of
from support.kafka_reads import client_of, partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

_HOLE = 5


@pytest.fixture
def client(cluster: Cluster) -> Iterator[KafkaClient]:
    with client_of(cluster) as client:
        yield client


@pytest.mark.parametrize("arrived", [1, 3, _HOLE])
@pytest.mark.parametrize("when", ["before the log end is read", "after it"])
def test_markers_of_a_process_that_was_replaced_fill_a_hole_only_once(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch, arrived: int, when: str
) -> None:
    """They arrive when the next process knows where the log ended, and has sent nothing yet."""
    create_topic(cluster, topic)
    old = new_producer_id(client)
    new = replace(old, epoch=old.epoch + 1)
    late = [Hole(count=arrived, source_offset=0)]
    arriving = [late]

    def arrive() -> None:
        if arriving:
            list(produce_all(client, [feed_of(client, topic, arriving.pop())], markers=old))

    def log_end_then(*words: Any, **more: Any) -> int:
        end = log_end(*words, **more)
        monkeypatch.setattr(produce_loop, "log_end", log_end)
        arrive()
        return end

    if when == "after it":
        monkeypatch.setattr(produce_loop, "log_end", log_end_then)
    else:
        arrive()
    (batch,) = batches_of(orders(100), new_producer_id(client))
    feed = feed_of(client, topic, [Hole(count=_HOLE, source_offset=0), batch])
    if when == "after it" and arrived == _HOLE:
        with pytest.raises(MisplacedBatchError):
            list(produce_all(client, [feed], markers=new))
        assert log_end(client, partition_of(topic)) == _HOLE + 1, "one marker too many, and no record"
        return
    assert [each.base_offset for each in produce_all(client, [feed], markers=new)] == [0, _HOLE]
    assert log_end(client, partition_of(topic)) == _HOLE + 100
    if arrived < _HOLE:
        with pytest.raises(ProducerFencedError):
            list(produce_all(client, [feed_of(client, topic, late, first_offset=_HOLE + 100)], markers=old))
        assert log_end(client, partition_of(topic)) == _HOLE + 100


def test_a_hole_that_another_process_has_filled_and_passed_is_left_alone(
    cluster: Cluster, client: KafkaClient, topic: str
) -> None:
    create_topic(cluster, topic)
    (batch,) = batches_of(orders(100), new_producer_id(client))
    appends: list[Append] = [Hole(count=_HOLE, source_offset=0), batch]
    list(produce_all(client, [feed_of(client, topic, appends)]))
    with pytest.raises(UnavailableError, match="another process"):
        list(produce_all(client, [feed_of(client, topic, appends)]))
    assert log_end(client, partition_of(topic)) == _HOLE + 100


@pytest.mark.parametrize("when", ["before the epoch is learned", "after it"])
def test_an_epoch_that_an_earlier_attempt_has_raised_is_learned_from_the_broker(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """After each lost answer markers have a higher coordinator epoch. Brokers refuse lower ones for ever."""
    create_topic(cluster, topic)
    producer = new_producer_id(client)

    deadline = Deadline.after(60)

    def raise_epoch() -> None:
        body = markers_body([(partition_of(topic), 1)], producer, version=1, coordinator_epoch=7)
        leader = client.leader(partition_of(topic), deadline=deadline).node_id
        connection = client.connection(leader, deadline=deadline)
        ticket = connection.put_pieces(WriteTxnMarkersRequest.API_KEY, 1, body, deadline)
        connection.flush(deadline)
        connection.receive(ticket, deadline)

    def learn_then(*words: Any, **more: Any) -> int:
        epoch = coordinator_epoch(*words, **more)
        monkeypatch.setattr(produce_loop, "coordinator_epoch", coordinator_epoch)
        raise_epoch()
        return epoch

    if when == "after it":
        monkeypatch.setattr(produce_loop, "coordinator_epoch", learn_then)
    else:
        raise_epoch()
    first = 0 if when == "after it" else 1
    for number in range(2):
        hole = feed_of(client, topic, [Hole(count=_HOLE, source_offset=0)], first_offset=first + number * _HOLE)
        list(produce_all(client, [hole], markers=producer))
        assert log_end(client, partition_of(topic)) == first + (number + 1) * _HOLE
        known = coordinator_epoch(client, partition_of(topic), producer.producer_id, deadline=deadline)
        assert known == 8 + number, "an earlier attempt is fenced by each later one"


def test_a_process_that_was_suspended_until_brokers_forgot_its_producer_doubles_nothing(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another producer id stands for one that brokers have forgotten: they accept what it sends."""
    create_topic(cluster, topic)
    records = orders(200)
    mine, others = (batches_of(records, new_producer_id(client)) for _ in range(2))

    def suspended() -> Iterator[Append]:
        yield mine[0]
        list(produce_all(client, [feed_of(client, topic, others[1:], first_offset=100)]))
        monkeypatch.setattr(AppendQueue, "unproven_s", 100_000.0)
        yield mine[1]

    with pytest.raises(UnavailableError, match="another process"):
        list(produce_all(client, [feed_of(client, topic, suspended())]))
    assert_stored(cluster, topic, records)


def test_a_source_that_is_slow_for_long_is_no_fault(
    cluster: Cluster, client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic)
    monkeypatch.setattr(AppendQueue, "unproven_s", 100_000.0)
    records = orders(300)
    list(produce_all(client, [feed_of(client, topic, batches_of(records, new_producer_id(client)))]))
    assert_stored(cluster, topic, records)
