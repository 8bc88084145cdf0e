"""Topics of a sandbox: creates, describes, configures and deletes them, and waits until every broker agrees.

Each broker is asked what it knows on a new socket. kafka-python's admin client is unfit for requests every 50 ms while
brokers die and start: it retries, picks any broker, even a dead one, and leaks a thread or a socket if that one does
not answer.
"""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.process import HOST, wait_for
from maxbrod.text import did_you_mean

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster


_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The brokers that hold a partition. `leader` is None while it has none."""

    leader: int | None
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = 1,
    replication_factor: int = -1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    config: Mapping[str, str] | None = None,
) -> UUID:
    """Create a topic, wait until every partition has a leader, and return the topic's id."""
    details: dict[str, Any] = {"configs": dict(config or {})}
    if assignments:
        details["assignments"] = {partition: list(brokers) for partition, brokers in assignments.items()}
    else:
        details |= {"num_partitions": partitions, "replication_factor": replication_factor}
    with cluster.admin() as admin:
        admin.create_topics({topic: details})
    return wait_until_known(cluster, topic)


def list_topics(cluster: Cluster) -> set[str]:
    with cluster.admin() as admin:
        return set(admin.list_topics())


def demand_topic(cluster: Cluster, topic: str) -> None:
    """UsageError: there is no such topic."""
    known = list_topics(cluster)
    if topic not in known:
        hint = did_you_mean(topic, known) or "'maxbrod sandbox fill' creates it"
        raise UsageError(f"the sandbox has no topic {topic!r}", hint=hint)


def topic_id(cluster: Cluster, topic: str) -> UUID:
    found: UUID = _describe(cluster, topic).topic_id
    return found


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Delete a topic and wait until no running broker has a folder of it."""
    with cluster.admin() as admin:
        admin.delete_topics([topic])

    def gone() -> bool:
        # A deleted partition is first renamed to <topic>-<partition>.<uuid>-delete, and removed later.
        names = (folder.name for broker in cluster.running for folder in cluster.log_dir(broker).iterdir())
        return all(name.partition(".")[0].rpartition("-")[0] != topic for name in names)

    wait_for(f"deletion of {topic}", gone, timeout_s=_TIMEOUT_S)


def recreate_topic(cluster: Cluster, topic: str, *, config: Mapping[str, str] | None = None) -> tuple[UUID, UUID]:
    """Delete a topic and create it again: same name, offsets from 0, another id. Returns the old and the new id."""
    old = topic_id(cluster, topic)
    delete_topic(cluster, topic)
    return old, create_topic(cluster, topic, config=config)


def set_topic_config(cluster: Cluster, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic, and wait until every running broker knows them."""
    with cluster.admin() as admin:
        answers = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))])
    if (answer := answers["topic"][topic]) != "OK":
        raise UsageError(f"Kafka refused new settings: {answer}", object_name=topic)

    def known() -> bool:
        settings = [known_config(cluster.port(broker), topic) for broker in cluster.running]
        return all(config.items() <= found.items() for found in settings)

    wait_for(f"every broker to know the settings of {topic}", known, timeout_s=_TIMEOUT_S)


def offsets(cluster: Cluster, topic: str, partition: int = 0) -> tuple[int, int]:
    """The log start offset and the log end offset of a partition."""

    def found() -> tuple[int, int] | None:
        leader = replicas(cluster, topic, partition).leader
        answer = None if leader is None else known_offsets(cluster.port(leader), topic, [partition])
        return None if answer is None else answer[0]

    return wait_for(f"a leader of {topic}-{partition}", found, timeout_s=_TIMEOUT_S)


def replicas(cluster: Cluster, topic: str, partition: int = 0) -> Replicas:
    for found in _describe(cluster, topic).partitions:
        if found.partition_index == partition:
            return Replicas(
                leader=found.leader_id if found.leader_id >= 0 else None,
                replicas=tuple(found.replica_nodes),
                in_sync=frozenset(found.isr_nodes),
            )
    raise UsageError(f"no partition {partition}", object_name=topic)


def wait_for_in_sync(cluster: Cluster, topic: str, brokers: Collection[int], *, partition: int = 0) -> None:
    """Wait until exactly these brokers are in sync, and every running broker knows it: also the leader, which may be
    the last to hear of it.
    """

    def known() -> bool:
        answers = [known_topic(cluster.port(broker), topic) for broker in cluster.running]
        found = [
            {frozenset(found.isr_nodes) for found in answer.partitions if found.partition_index == partition}
            for answer in answers
            if answer is not None
        ]
        return found == [{frozenset(brokers)}] * len(answers)

    wait_for(f"{sorted(brokers)} in sync for {topic}-{partition}", known, timeout_s=_TIMEOUT_S)


def wait_until_known(cluster: Cluster, topic: str) -> UUID:
    """Wait until every running broker knows a new topic and all leaders answer; returns the topic's id.

    Until a broker has learnt of a topic, it answers that there is none. It may know from the metadata that it leads a
    partition, and open the log a moment later.
    """

    def known() -> UUID | None:
        answers = [known_topic(cluster.port(broker), topic) for broker in cluster.running]
        if not answers or not all(map(_is_known, answers)):
            return None
        first: Any = answers[0]
        led = defaultdict[int, list[int]](list)
        for partition in first.partitions:
            led[partition.leader_id].append(partition.partition_index)
        answered = all(known_offsets(cluster.port(leader), topic, partitions) for leader, partitions in led.items())
        return first.topic_id if answered else None

    return wait_for(f"every broker to know {topic}", known, timeout_s=_TIMEOUT_S)


def _is_known(answer: Any) -> bool:  # noqa: ANN401 - kafka-python is untyped
    if answer is None or answer.error_code:
        return False
    return all(not partition.error_code and partition.leader_id >= 0 for partition in answer.partitions)


def _describe(cluster: Cluster, topic: str) -> Any:  # noqa: ANN401 - kafka-python is untyped
    for broker in cluster.running:
        found = known_topic(cluster.port(broker), topic)
        if found is not None and found.error_code == UnknownTopicOrPartitionError.errno:
            raise UsageError("no such topic", object_name=topic)
        if found is not None:
            return found
    raise UnavailableError("no broker answers", object_name=topic, operation="describe")


_ANSWER_TIMEOUT_S: Final = 5
_DESCRIBE_CONFIGS_VERSION: Final = 4
_TOPIC: Final = 2
"""Kafka's number for this kind of a resource."""
_LIST_OFFSETS_VERSION: Final = 7
_EARLIEST, _LATEST = -2, -1
"""Kafka's words for the timestamps of the first and the last offset."""


def known_brokers(port: int) -> frozenset[int]:
    """The ids of the brokers in the metadata of the broker on this port; none if it does not answer."""
    response = _ask(port, MetadataRequest(topics=[], version=12), MetadataResponse)
    return frozenset(broker.node_id for broker in response.brokers) if response else frozenset()


def known_topic(port: int, topic: str) -> Any | None:  # noqa: ANN401 - kafka-python is untyped
    """A topic in the Metadata response of the broker on this port; None without an answer."""
    named = MetadataRequest.MetadataRequestTopic(name=topic)
    response = _ask(port, MetadataRequest(topics=[named], version=12), MetadataResponse)
    return response.topics[0] if response else None


def known_offsets(port: int, topic: str, partitions: Sequence[int]) -> list[tuple[int, int]] | None:
    """The start and end of logs for the broker on this port; None if it does not answer, or leads not all of them."""
    starts, ends = (_listed_offsets(port, topic, partitions, timestamp) for timestamp in (_EARLIEST, _LATEST))
    return None if starts is None or ends is None else list(zip(starts, ends, strict=True))


def known_config(port: int, topic: str) -> dict[str, str]:
    """The settings of a topic that the broker on this port knows; none if it does not answer."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC, resource_name=topic, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False, version=_DESCRIBE_CONFIGS_VERSION
    )
    response = _ask(port, request, DescribeConfigsResponse)
    return {config.name: config.value for config in response.results[0].configs} if response else {}


def known_scram_users(port: int) -> frozenset[tuple[str, int]]:
    """The users and mechanisms (as Kafka numbers them) with SCRAM passwords on the broker on this port."""
    request = DescribeUserScramCredentialsRequest(users=None, version=0)
    response = _ask(port, request, DescribeUserScramCredentialsResponse)
    results = response.results if response else ()
    return frozenset((result.user, info.mechanism) for result in results for info in result.credential_infos)


def _listed_offsets(port: int, topic: str, partitions: Sequence[int], timestamp: int) -> list[int] | None:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    asked = [
        topic_class.ListOffsetsPartition(partition_index=number, current_leader_epoch=-1, timestamp=timestamp)
        for number in partitions
    ]
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        topics=[topic_class(name=topic, partitions=asked)],
        version=_LIST_OFFSETS_VERSION,
    )
    response = _ask(port, request, ListOffsetsResponse)
    if response is None or any(partition.error_code for partition in response.topics[0].partitions):
        return None
    offsets = {partition.partition_index: int(partition.offset) for partition in response.topics[0].partitions}
    return [offsets[number] for number in partitions]


def _ask(port: int, request: Any, response_class: Any) -> Any | None:  # noqa: ANN401 - kafka-python is untyped
    try:
        with socket.create_connection((HOST, port), timeout=_ANSWER_TIMEOUT_S) as connection:
            return ask(connection, request, response_class)
    except (OSError, struct.error):
        return None


def ask(connection: socket.socket, request: Any, response_class: Any) -> Any:  # noqa: ANN401 - kafka-python is untyped
    """Send a kafka-python request and wait for its response. OSError or struct.error: there is none."""
    request.with_header(correlation_id=1, client_id="maxbrod-sandbox")
    connection.sendall(request.encode(header=True, framed=True))
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4))
        answer = stream.read(size)
    return response_class.decode(answer, version=request.API_VERSION, header=True)
