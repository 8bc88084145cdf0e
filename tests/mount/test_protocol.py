"""Every request at its lowest and highest version, and what is not a request at all."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
)
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import ListOffsetsRequest, OffsetCommitRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest

from maxbrod.mount.refusals import REFUSED
from support.mounts import TABLE, RawClient, mounted
from support.native_logs import data_batch
from support.table_archives import write

UNSUPPORTED_VERSION, POLICY_VIOLATION, REBOOTSTRAP_REQUIRED = 35, 44, 129
ApiVersionsRequest = TABLE[ApiKey.ApiVersions].request


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Any:
    url: Path = tmp_path_factory.mktemp("mount") / "archive"
    write(url, [data_batch(5, 10), data_batch(20, 10)])
    with mounted(url) as found:
        yield found.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Any:
    with RawClient(bootstrap) as found:
        yield found


def served(client: RawClient) -> dict[int, tuple[int, int]]:
    answer = client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 3)
    assert answer.error_code == 0
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


@pytest.mark.parametrize("version", range(6))
def test_versions_are_told_in_every_form(client: RawClient, version: int) -> None:
    answer = client.ask(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), version)
    assert answer.error_code == 0
    ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert ranges[ApiKey.Fetch] == (4, 12)
    assert ranges[ApiKey.Metadata] == (0, 13)
    assert ranges[ApiKey.ListOffsets] == (1, 11)
    assert ranges[ApiKey.OffsetForLeaderEpoch] == (2, 4)


def test_requests_by_the_ids_of_topics_are_served_where_topics_have_ids(client: RawClient, tmp_path: Path) -> None:
    write(tmp_path / "archive", [data_batch(5, 10)])
    keys = (ApiKey.Fetch, ApiKey.OffsetCommit, ApiKey.OffsetFetch)
    assert [served(client)[key][1] for key in keys] == [12, 9, 9]
    with mounted(tmp_path / "archive", topic_ids=True) as found, RawClient(found.bootstrap) as asking:
        ranges = served(asking)
        assert [ranges[key][1] for key in keys] == [17, 10, 10]
        (topic,) = asking.ask(MetadataRequest(topics=None), 12).topics
        kind = OffsetCommitRequest.OffsetCommitRequestTopic
        place = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        commit = OffsetCommitRequest(group_id="g", topics=[kind(topic_id=topic.topic_id, partitions=[place])])
        (answered,) = asking.ask(commit, 10).topics
        assert (answered.topic_id, answered.partitions[0].error_code) == (topic.topic_id, 0)


@pytest.mark.parametrize("version", [6, 99, 32_767])
def test_an_unknown_version_of_api_versions_is_answered_in_the_oldest_form(client: RawClient, version: int) -> None:
    header = struct.pack(">hhih", ApiKey.ApiVersions, version, 7, -1)
    client.socket.sendall(struct.pack(">i", len(header) + 5) + header + b"\0\x02a\x02b")
    correlation_id, code, count, key, low, high = struct.unpack(">ihihhh", client.frame())
    assert (correlation_id, code, count, key) == (7, UNSUPPORTED_VERSION, 1, ApiKey.ApiVersions)
    assert (low, high) == (0, 5)


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, 0),
        ("ours", -1, 0),
        ("ours", 100_000, 0),
        ("that of the restored cluster", -1, REBOOTSTRAP_REQUIRED),
        ("that of the restored cluster", 100_000, REBOOTSTRAP_REQUIRED),
        ("ours", 1, REBOOTSTRAP_REQUIRED),
    ],
)
def test_a_client_that_means_another_cluster_is_sent_back_to_its_bootstrap_servers(
    client: RawClient, cluster_id: str | None, node_id: int, code: int
) -> None:
    known = client.ask(MetadataRequest(topics=[]), 12).cluster_id
    names = {"client_software_name": "raw", "client_software_version": "1"}
    meant = known if cluster_id == "ours" else cluster_id
    client.send(ApiVersionsRequest(**names, cluster_id=meant, node_id=node_id), 5)
    assert struct.unpack(">h", client.frame()[4:6]) == (code,)


@pytest.mark.parametrize("version", range(14))
def test_metadata_has_own_ids_an_ipv4_literal_and_no_epochs(client: RawClient, bootstrap: str, version: int) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("orders", "nowhere")]
    answer = client.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=True), version)
    (broker,) = answer.brokers
    assert f"{broker.host}:{broker.port}" == bootstrap
    orders, nowhere = answer.topics
    assert (orders.error_code, nowhere.error_code) == (0, 3)
    assert [each.partition_index for each in orders.partitions] == [0, 1, 2, 3]
    assert {each.leader_id for each in orders.partitions} == {broker.node_id}
    assert version < 7 or {each.leader_epoch for each in orders.partitions} == {-1}
    assert version < 10 or orders.topic_id is None  # kafka-python's nil
    assert version < 2 or answer.cluster_id != "sandbox"


def test_metadata_without_names_has_all_topics(client: RawClient) -> None:
    assert [topic.name for topic in client.ask(MetadataRequest(topics=None), 12).topics] == ["orders"]
    assert [topic.name for topic in client.ask(MetadataRequest(topics=[]), 0).topics] == ["orders"]
    assert client.ask(MetadataRequest(topics=[]), 1).topics == []


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(-1, (30, -1)), (-2, (5, -1)), (-3, (29, 1029)), (1024, (24, 1024)), (1016, (20, 1020)), (9999, (-1, -1))],
)
def test_offsets_are_found_by_every_kind_of_time(
    client: RawClient, version: int, timestamp: int, expected: tuple[int, int]
) -> None:
    kind = ListOffsetsRequest.ListOffsetsTopic
    partition = kind.ListOffsetsPartition(partition_index=3, current_leader_epoch=-1, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[kind(name="orders", partitions=[partition])], timeout_ms=1000
    )
    (answer,) = client.ask(request, version).topics[0].partitions
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, *expected)
    assert version < 4 or answer.leader_epoch == -1


@pytest.mark.parametrize("version", [2, 3, 4])
def test_leader_epochs_are_unknown(client: RawClient, version: int) -> None:
    kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = kind.OffsetForLeaderPartition(partition=3, current_leader_epoch=-1, leader_epoch=57)
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic="orders", partitions=[partition])])
    (answer,) = client.ask(request, version).topics[0].partitions
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)


@pytest.mark.parametrize("version", range(3))
def test_the_cluster_describes_itself(client: RawClient, bootstrap: str, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=1)
    answer = client.ask(request, version)
    assert [f"{each.host}:{each.port}" for each in answer.brokers] == [bootstrap]
    assert answer.cluster_id == client.ask(MetadataRequest(topics=[]), 12).cluster_id


def test_partitions_are_described_in_pages(client: RawClient) -> None:
    found, cursor = [], None
    while True:
        request = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=3, cursor=cursor)
        answer = client.ask(request, 0)
        found += [(topic.name, each.partition_index) for topic in answer.topics for each in topic.partitions]
        if answer.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
    assert found == [("orders", number) for number in range(4)]


@pytest.mark.parametrize("version", range(7))
def test_groups_have_a_coordinator(client: RawClient, bootstrap: str, version: int) -> None:
    request = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
    answer = client.ask(request, version)
    found = answer if version < 4 else answer.coordinators[0]
    assert (found.error_code, f"{found.host}:{found.port}") == (0, bootstrap)


def test_whatever_writes_is_refused_at_both_ends_of_its_versions(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        ranges = served(client)
        for key in sorted(REFUSED):
            for version in {*ranges[key]}:
                request = TABLE[key].request(**_filled(TABLE[key].request, version))
                assert POLICY_VIOLATION in _codes(client.ask(request, version)), (key, version)


def test_every_request_is_answered_at_both_ends_of_its_versions(bootstrap: str) -> None:
    with RawClient(bootstrap) as asking:
        ranges = served(asking)
    logins = {ApiKey.SaslHandshake, ApiKey.SaslAuthenticate}
    for key in sorted(ranges.keys() - logins - {ApiKey.ApiVersions}):
        for version in {*ranges[key]}:
            with RawClient(bootstrap) as client:
                client.socket.settimeout(10)
                request = TABLE[key].request(**_filled(TABLE[key].request, version))
                assert client.ask(request, version) is not None, (key, version)


def test_a_user_interface_finds_all_that_it_asks_for(client: RawClient) -> None:
    kind = DescribeConfigsRequest.DescribeConfigsResource
    wanted = [kind(resource_type=2, resource_name="orders", configuration_keys=None)]
    wanted += [kind(resource_type=2, resource_name="nowhere", configuration_keys=None)]
    wanted += [kind(resource_type=4, resource_name="100000", configuration_keys=None)]
    answer = client.ask(DescribeConfigsRequest(resources=wanted, include_synonyms=True), 4)
    assert [each.error_code for each in answer.results] == [0, 3, 0]
    assert {each.name: each.value for each in answer.results[2].configs}["delete.topic.enable"] == "false"
    sizes = client.ask(DescribeLogDirsRequest(topics=None), 4).results[0].topics[0].partitions
    assert [each.partition_size > 0 for each in sizes] == [False, False, False, True]
    assert client.ask(TABLE[71].request(client_instance_id=None), 0).requested_metrics == []


def test_a_refused_produce_says_why(client: RawClient) -> None:
    kind = ProduceRequest.TopicProduceData
    data = kind(name="orders", partition_data=[kind.PartitionProduceData(index=3, records=data_batch(0))])
    answer = client.ask(ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1000, topic_data=[data]), 9)
    (refused,) = answer.responses[0].partition_responses
    assert refused.error_code == POLICY_VIOLATION
    assert "read-only" in refused.error_message


@pytest.mark.parametrize(
    "sent",
    [
        b"\x7f\xff\xff\xff",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">ihhih", 10, 9999, 0, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.Fetch, 99, 1, -1),
        struct.pack(">ihhih", 10, ApiKey.Metadata, 12, 1, 32_767),
        struct.pack(">ihhih", 14, ApiKey.Metadata, 9, 1, -1) + b"\x80\x80\x80\x80",
        struct.pack(">ihhih", 14, ApiKey.Metadata, 1, 1, -1) + b"\x7f\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_request_end_the_connection_and_nothing_else(bootstrap: str, sent: bytes) -> None:
    with RawClient(bootstrap) as client, RawClient(bootstrap) as other:
        client.socket.sendall(sent)
        client.socket.shutdown(1)
        assert client.socket.recv(100) == b""
        assert served(other)


def test_half_a_frame_is_waited_for(client: RawClient) -> None:
    request = ApiVersionsRequest()
    request.API_VERSION = 0
    request.with_header(correlation_id=3)
    data = request.encode(header=True, framed=True)
    for byte in data:
        client.socket.sendall(bytes([byte]))
    assert client.frame()[:4] == struct.pack(">i", 3)


def _filled(kind: Any, version: int) -> dict[str, Any]:
    """The fields of a message whose arrays have one entry each."""
    values: dict[str, Any] = {}
    for field in kind._struct._fields:
        if not field.for_version_q(version) or field.tagged_field_q(version):
            continue
        if field.is_struct_array():
            nested = getattr(kind, field.type_str)
            values[field.name] = [nested(**_filled(nested, version))]
        elif field.is_array():
            values[field.name] = ["a" if field.array_of._type_str == "string" else 0]
        elif field._type_str == "string":
            values[field.name] = "a"
        elif field._type_str in {"bytes", "records"}:
            values[field.name] = b""
        elif field._type_str == "int16" and field.name == "acks":
            values[field.name] = -1
    return values


def _codes(message: Any) -> list[int]:
    """All error codes anywhere in a response."""
    found = []
    for field in message._struct._fields:
        if field.name.endswith("error_code"):
            found.append(getattr(message, field.name))
        elif field.is_struct_array():
            found += [code for each in getattr(message, field.name) or () for code in _codes(each)]
    return found
