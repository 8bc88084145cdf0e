"""What a client knows of a cluster is what the cluster is; what it cannot work with it says at once."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
from kafka.protocol.admin import AlterClientQuotasRequest
from kafka.protocol.metadata import ApiVersionsResponse

from maxbrod.config import KafkaConfig
from maxbrod.errors import MaxbrodError, UnsupportedFormatError, UsageError
from maxbrod.kafka.fetch.offsets import EARLIEST, LATEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient, metadata_request
from maxbrod.kafka.wire.connection import Connection
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, reaction
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic, replicas
from maxbrod.sandbox.traffic import Message, produce
from support.kafka_reads import bounds, client_of, fill, joined, log_bytes, partition_of
from support.s3 import loopback_server

if TYPE_CHECKING:
    import socket

    from maxbrod.sandbox.cluster import Cluster


def test_metadata_tells_topics_with_their_ids_and_who_leads(cluster3: Cluster, topic: str) -> None:
    topic_id = create_topic(cluster3, topic, partitions=3, replication_factor=2)
    with client_of(cluster3) as client:
        found = client.metadata()
        assert tuple(sorted(found.brokers)) == tuple(sorted(cluster3.broker_ids))
        assert found.topics[topic] == client.metadata([topic]).topics[topic]
    assert found.topics[topic].topic_id == topic_id
    for index, partition in found.topics[topic].partitions.items():
        truth = replicas(cluster3, topic, index)
        assert (partition.leader, partition.replicas) == (truth.leader, truth.replicas)
        assert frozenset(partition.in_sync) == truth.in_sync


def test_asking_for_a_topic_does_not_create_it(cluster: Cluster, topic: str) -> None:
    with client_of(cluster) as client:
        assert client.metadata([topic]).topics == {}
        with pytest.raises(UsageError, match="no such topic"):
            list_offsets(client, {partition_of(topic): LATEST})
        assert topic not in client.metadata().topics


def is_led(cluster: Cluster, topic: str, partition: int) -> bool:
    """False while brokers do not know it."""
    try:
        return replicas(cluster, topic, partition).leader is not None
    except UsageError:
        return False


def test_a_partition_added_since_is_found_and_one_that_is_not_there_is_refused(cluster: Cluster, topic: str) -> None:
    create_topic(cluster, topic)
    with client_of(cluster) as client:
        with pytest.raises(UsageError, match="no such partition"):
            client.leader(partition_of(topic, 1), deadline=Deadline.after(60))
        with cluster.admin() as admin:
            admin.create_partitions({topic: 2})
        wait_for("the new partition", lambda: is_led(cluster, topic, 1), timeout_s=60)
        assert client.leader(partition_of(topic, 1), deadline=Deadline.after(60)).node_id in cluster.broker_ids


def test_offsets_are_found_by_time_over_the_partitions_of_several_leaders(cluster3: Cluster, topic: str) -> None:
    create_topic(cluster3, topic, partitions=6, replication_factor=1)
    for partition in range(6):
        messages = [Message(value=b"v", timestamp_ms=1_760_000_000_000 + 10 * row) for row in range(partition + 1)]
        produce(cluster3, topic, messages, partition=partition)
    every = [partition_of(topic, partition) for partition in range(6)]
    with client_of(cluster3) as client:
        earliest = list_offsets(client, dict.fromkeys(every, EARLIEST))
        latest = list_offsets(client, dict.fromkeys(every, LATEST))
        by_time = list_offsets(client, dict.fromkeys(every, 1_760_000_000_025))
    assert [earliest[where].offset for where in every] == [0] * 6
    assert [latest[where].offset for where in every] == [1, 2, 3, 4, 5, 6]
    assert [by_time[where].offset for where in every] == [-1, -1, -1, 3, 3, 3]
    assert by_time[every[3]].timestamp_ms == 1_760_000_000_030


def consumer_quota(*, client_id: str, bytes_per_second: float) -> Any:
    entry = AlterClientQuotasRequest.EntryData
    who = entry.EntityData(entity_type="client-id", entity_name=client_id)
    change = entry.OpData(key="consumer_byte_rate", value=bytes_per_second, remove=False)
    return AlterClientQuotasRequest(entries=[entry(entity=[who], ops=[change])], validate_only=False)


def test_a_quota_slows_the_reader_and_loses_nothing(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_to_wait_ms = []
    throttle = Connection.throttle

    def watched(connection: Connection, milliseconds: int) -> None:
        asked_to_wait_ms.append(milliseconds)
        throttle(connection, milliseconds)

    monkeypatch.setattr(Connection, "throttle", watched)
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    fill(cluster, topic, 15_000)
    with client_of(cluster, client_id=topic) as client:
        # A broker looks at the last ten seconds.
        client.ask_any(lambda: consumer_quota(client_id=topic, bytes_per_second=300_000.0))
        where = partition_of(topic)
        began = time.monotonic()
        received = list(read_range(client, where, *bounds(client, where), fetch_bytes=1 << 20))
        waited_s = time.monotonic() - began
    assert max(asked_to_wait_ms) > 0
    assert waited_s >= sum(asked_to_wait_ms) / 1000
    assert joined(received) == log_bytes(cluster, topic)


def test_a_throttled_connection_is_silent_until_its_time_is_over(cluster: Cluster) -> None:
    deadline = Deadline.after(30)
    with client_of(cluster) as client:
        (node_id,) = client.metadata().brokers
        connection = client.connection(node_id, deadline=deadline)
        connection.throttle(400)
        began = time.monotonic()
        assert connection.ask(metadata_request([]), deadline).brokers
        assert time.monotonic() - began >= 0.4


def test_answers_of_pipelined_requests_find_their_owners_in_any_order(cluster: Cluster) -> None:
    deadline = Deadline.after(30)
    with client_of(cluster) as client:
        (node_id,) = client.metadata().brokers
        connection = client.connection(node_id, deadline=deadline)
        tickets = [connection.send(metadata_request([]), deadline) for _ in range(3)]
        for ticket in reversed(tickets):
            assert struct.unpack_from(">i", connection.receive(ticket, deadline)) == (ticket,)
        assert connection.idle


def broker_that_speaks(fetch_versions: tuple[int, int], error_code: int = 0) -> Any:
    """A server that answers ApiVersions as a broker of another age would."""
    api = ApiVersionsResponse.ApiVersion
    keys = [api(api_key=1, min_version=fetch_versions[0], max_version=fetch_versions[1])]
    keys += [api(api_key=3, min_version=0, max_version=12)]

    def serve(connection: socket.socket) -> None:
        while size := connection.recv(4):
            request = connection.recv(struct.unpack(">i", size)[0], 0x100)
            answer = ApiVersionsResponse(error_code=error_code, api_keys=keys, version=0 if error_code else 3)
            answer.with_header(correlation_id=struct.unpack_from(">i", request, 4)[0])
            connection.sendall(answer.encode(header=True, framed=True))

    return loopback_server(serve)


@pytest.mark.parametrize(
    ("versions", "error_code", "said"),
    [
        ((0, 11), 0, "up to version 11, but at least 12 is required"),
        ((0, 4), 35, "not even version 3"),
        ((99, 100), 0, "99"),
    ],
)
def test_a_broker_of_another_age_is_refused_with_the_version_that_would_do(
    versions: tuple[int, int], error_code: int, said: str
) -> None:
    from kafka.protocol.consumer import FetchRequest  # noqa: PLC0415 - only here

    with broker_that_speaks(versions, error_code) as (host, port):
        config = KafkaConfig(bootstrap=f"{host}:{port}")
        with KafkaClient(config) as client, pytest.raises(UnsupportedFormatError, match=said) as caught:
            client._connected((host, port), Deadline.after(60)).versions.choose(FetchRequest)
    assert "2.8" in str(caught.value.hint) or versions == (99, 100)


def test_a_bootstrap_address_that_is_none_is_refused() -> None:
    for bootstrap in ("", " , ", "host:port"):
        with pytest.raises(UsageError):
            KafkaClient(KafkaConfig(bootstrap=bootstrap))
    client = KafkaClient(KafkaConfig(bootstrap="plain, [::1]:7 ,v4:8"))
    assert client._bootstrap == [("plain", 9092), ("::1", 7), ("v4", 8)]


def test_every_code_of_the_table_has_one_reaction_and_unknown_ones_are_fatal() -> None:
    assert reaction(Code.NOT_LEADER_OR_FOLLOWER) is Reaction.REFRESH
    assert reaction(Code.REQUEST_TIMED_OUT) is Reaction.RETRY
    assert reaction(31_000) is Reaction.FATAL
    error = answered_with(31_000, operation="fetch", object_name="t-0")
    assert type(error) is MaxbrodError
    assert not error.retryable
    assert "31000" in str(error) or "UNKNOWN" in str(error)
