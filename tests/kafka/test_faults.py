"""Brokers die, stop, hang and hand over while a range is read: all of it arrives once, or the error says what for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from maxbrod.config import KafkaConfig
from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, epoch_ends, list_offsets
from maxbrod.kafka.fetch.ranges import _RangeReader, read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.sandbox.process import free_ports
from maxbrod.sandbox.surgery import lose_by_unclean_election
from maxbrod.sandbox.topics import create_topic, replicas, wait_for_in_sync
from maxbrod.sandbox.traffic import numbered, produce
from support.kafka_reads import bounds, client_of, fill, joined, log_bytes, partition_of, read_all

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}
SMALL = 300_000


def filled(cluster: Cluster, topic: str, *, count: int = 10_000) -> bytes:
    """A topic on every broker, in sync; returns its bytes."""
    create_topic(cluster, topic, replication_factor=len(cluster.broker_ids), config=KEEP)
    fill(cluster, topic, count)
    wait_for_in_sync(cluster, topic, cluster.broker_ids)
    leader = replicas(cluster, topic).leader
    return log_bytes(cluster, topic, broker=leader)


@pytest.mark.parametrize("death", ["kill", "stop"])
def test_a_read_goes_on_at_the_next_leader(cluster3: Cluster, topic: str, death: str) -> None:
    expected = filled(cluster3, topic)
    leader = replicas(cluster3, topic).leader
    assert leader is not None
    with client_of(cluster3) as client:
        where = partition_of(topic)
        start, end = bounds(client, where)
        chunks = read_range(client, where, start, end, fetch_bytes=SMALL)
        received = [next(chunks)]
        getattr(cluster3, death)(leader)
        try:
            received.extend(chunks)
        finally:
            cluster3.restart(leader)
            cluster3.wait_until_settled()
            wait_for_in_sync(cluster3, topic, cluster3.broker_ids)
    assert joined(received) == expected


def test_a_suspended_broker_ends_in_an_error_that_says_what_was_waited_for(cluster: Cluster, topic: str) -> None:
    filled(cluster, topic)
    (broker,) = cluster.broker_ids
    with client_of(cluster, request_timeout_s=1) as client:
        where = partition_of(topic)
        chunks = read_range(client, where, *bounds(client, where), fetch_bytes=SMALL, patience_s=4)
        next(chunks)
        next(chunks)
        cluster.suspend(broker)
        try:
            with pytest.raises(UnavailableError, match="waited") as caught:
                list(chunks)
        finally:
            cluster.resume(broker)
            cluster.wait_until_settled()
    assert topic in str(caught.value)


def test_a_read_completes_after_a_suspended_broker_goes_on(cluster: Cluster, topic: str) -> None:
    expected = filled(cluster, topic)
    (broker,) = cluster.broker_ids
    with client_of(cluster, request_timeout_s=1) as client:
        where = partition_of(topic)
        chunks = read_range(client, where, *bounds(client, where), fetch_bytes=SMALL)
        received = [next(chunks)]
        cluster.suspend(broker)
        resume = threading.Timer(4, cluster.resume, [broker])
        resume.start()
        try:
            received.extend(chunks)
        finally:
            resume.join()
            cluster.wait_until_settled()
    assert joined(received) == expected


def test_a_cluster_that_is_not_there_is_an_error_in_time() -> None:
    (port,) = free_ports(1)
    with (
        KafkaClient(KafkaConfig(bootstrap=f"127.0.0.1:{port}")) as client,
        pytest.raises(UnavailableError, match=r"waited \d+ s for any broker to answer.*refused") as caught,
    ):
        client.metadata(deadline=Deadline.after(1))
    assert str(port) in str(caught.value)


def test_one_dead_bootstrap_address_is_no_obstacle(cluster3: Cluster, topic: str) -> None:
    expected = filled(cluster3, topic, count=1000)
    (port,) = free_ports(1)
    config = KafkaConfig(bootstrap=f"127.0.0.1:{port}, {cluster3.bootstrap}")
    with KafkaClient(config) as client:
        assert read_all(client, partition_of(topic)) == expected


def test_an_unclean_election_shows_in_the_end_of_its_epoch(cluster3: Cluster, topic: str) -> None:
    create_topic(cluster3, topic, replication_factor=2)
    produce(cluster3, topic, numbered(5))
    where = partition_of(topic)
    with client_of(cluster3) as client:
        epoch = client.leader(where, deadline=Deadline.after(60)).leader_epoch
        before = epoch_ends(client, {where: epoch})[where]
        assert (before.leader_epoch, before.end_offset) == (epoch, 5)
        lost = lose_by_unclean_election(cluster3, topic, numbered(7, first=100))
        try:
            produce(cluster3, topic, numbered(1, first=200))
            assert max(lost.lost_offsets) == 11
            after = epoch_ends(client, {where: epoch})[where]
            # What was read up to offset 12 is not what the log says now.
            assert after.end_offset == 5
            # Nor may a reader that has come that far go on.
            reader = _RangeReader(
                client, where, (12, 20), topic_id=None, fetch_bytes=SMALL, read_committed=True, patience_s=20
            )
            reader._last_epoch = epoch
            with pytest.raises(RefusedError, match="truncated: it matches what was read only up to offset 5"):
                reader.next_chunk()
            ends = list_offsets(client, {where: LATEST})[where], list_offsets(client, {where: EARLIEST})[where]
            assert [each.offset for each in ends] == [6, 0]
        finally:
            cluster3.restart(lost.old_leader)
            cluster3.wait_until_settled()
