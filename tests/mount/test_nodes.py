"""Several processes of one mount: each is a node with its share of the partitions, and one coordinates groups."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import HeartbeatRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from maxbrod.errors import UsageError
from maxbrod.mount.refusals import answer_elsewhere
from maxbrod.sandbox.process import free_ports, wait_for
from support.client_readers import read_with_librdkafka
from support.mounts import TABLE, RawClient, fetch_request, mounted, partitions_of
from support.native_logs import NAME, data_batch
from support.table_archives import write

NOT_LEADER, NOT_COORDINATOR = 6, 16
with_proc = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    url: Path = tmp_path_factory.mktemp("nodes") / "archive"
    write(url, [b"".join(data_batch(10 * number, 10) for number in range(20))])
    return url


@pytest.fixture(scope="module")
def nodes(archive: Path) -> Iterator[list[str]]:
    """The addresses of two nodes."""
    with mounted(archive, processes=2) as found:
        yield found.bootstrap.split(",")


def leaders(client: RawClient) -> dict[int, str]:
    """The address of the leader of each partition."""
    answer = client.ask(MetadataRequest(topics=None), 12)
    brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
    (topic,) = answer.topics
    return {partition.partition_index: brokers[partition.leader_id] for partition in topic.partitions}


def test_nodes_share_the_partitions_and_agree_on_it(nodes: list[str]) -> None:
    found = []
    for node in nodes:
        with RawClient(node) as client:
            found.append(leaders(client))
            for partition, leader in found[-1].items():
                answer = client.ask(fetch_request({(NAME.topic, partition): 0}, wait_ms=2000), 12)
                code = partitions_of(answer)[NAME.topic, partition].error_code
                assert code == (0 if leader == node else NOT_LEADER)
    assert found[0] == found[1]
    assert sorted(found[0].values()) == sorted(nodes * 2)


def test_a_client_reads_all_partitions_from_whichever_node_it_knows(nodes: list[str]) -> None:
    for node in nodes:
        seen = read_with_librdkafka(node, NAME.topic, "read_committed")
        assert [record.offset for record in seen] == list(range(200))


def test_one_node_coordinates_and_the_other_says_so(nodes: list[str]) -> None:
    with RawClient(nodes[1]) as client:
        coordinator = client.ask(FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"]), 3)
        assert f"{coordinator.host}:{coordinator.port}" == nodes[0]
        # A client asks every node for its groups, and must not get one twice.
        listed = client.ask(ListGroupsRequest(states_filter=[], types_filter=[]), 5)
        assert (listed.error_code, listed.groups) == (0, [])
        beat: Any = HeartbeatRequest(group_id="g", generation_id=1, member_id="m", group_instance_id=None)
        assert client.ask(beat, 4).error_code == NOT_COORDINATOR
        described = client.ask(DescribeGroupsRequest(groups=["g"], include_authorized_operations=False), 5)
        assert [group.error_code for group in described.groups] == [NOT_COORDINATOR]
        kind = OffsetFetchRequest.OffsetFetchRequestGroup
        fetched = client.ask(OffsetFetchRequest(groups=[kind(group_id="g", topics=None)], require_stable=False), 8)
        assert [group.error_code for group in fetched.groups] == [NOT_COORDINATOR]
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(partition_index=3, committed_offset=1, committed_metadata="")
        commit = OffsetCommitRequest(group_id="g", topics=[topic(name=NAME.topic, partitions=[partition])])
        (refused,) = client.ask(commit, 2).topics[0].partitions
        assert refused.error_code == NOT_COORDINATOR


@pytest.mark.parametrize("version", range(11))
def test_offsets_are_elsewhere_at_every_version(version: int) -> None:
    kind = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [kind(name="orders", partition_indexes=[0, 1])]
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[])]
    answer = answer_elsewhere(TABLE[9], OffsetFetchRequest(topics=topics, groups=groups), version)
    found = TABLE[9].response.decode(answer.encode(version=version), version=version)
    if version >= 8:
        assert [group.error_code for group in found.groups] == [NOT_COORDINATOR]
    elif version >= 2:
        assert found.error_code == NOT_COORDINATOR
    else:
        assert [place.error_code for place in found.topics[0].partitions] == [NOT_COORDINATOR] * 2


def test_a_commit_by_the_id_of_a_topic_is_answered_by_it() -> None:
    kind = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = kind.OffsetCommitRequestPartition(partition_index=3, committed_offset=1, committed_metadata="")
    asked = OffsetCommitRequest(group_id="g", topics=[kind(topic_id=UUID(int=7), partitions=[partition])])
    answer = answer_elsewhere(TABLE[8], OffsetCommitRequest.decode(asked.encode(version=10), version=10), 10)
    (topic,) = TABLE[8].response.decode(answer.encode(version=10), version=10).topics
    assert topic.topic_id == UUID(int=7)
    assert [place.error_code for place in topic.partitions] == [NOT_COORDINATOR]


@with_proc
def test_a_port_in_use_is_told_and_no_process_is_left(archive: Path) -> None:
    (port,) = free_ports(1)
    before = children()
    with (
        socket.create_server(("127.0.0.1", port + 1)),
        pytest.raises(UsageError, match="cannot listen"),
        mounted(archive, processes=3, listen=f"127.0.0.1:{port}"),
    ):
        pass
    assert children() == before


@with_proc
def test_a_node_that_was_killed_comes_back_at_its_address(archive: Path) -> None:
    before = children()
    with mounted(archive, processes=2) as found:
        other = found.bootstrap.split(",")[1]
        (process,) = children() - before
        os.kill(process, signal.SIGKILL)

        def is_back() -> bool:
            try:
                with RawClient(other) as client:
                    return bool(leaders(client)) and children() - before != {process}
            except OSError:
                return False

        wait_for("the node that was killed", is_back, timeout_s=60)
    assert children() == before


def children() -> set[int]:
    """The processes of nodes that this one has started."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and b"maxbrod.mount.node_process" in words:
            found.add(int(entry.name))
    return found
