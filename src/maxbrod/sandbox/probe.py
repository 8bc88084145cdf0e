"""Asks a single broker what it knows, on a new socket.

kafka-python's admin client is unfit for requests every 50 ms while brokers die and start: it retries, picks any broker,
even a dead one, and leaks a thread or a socket if that one does not answer.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from maxbrod.sandbox.spec import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence


_TIMEOUT_S: Final = 5
_DESCRIBE_CONFIGS_VERSION: Final = 4
_TOPIC: Final = 2
"""What Kafka calls the kind of a resource."""
_LIST_OFFSETS_VERSION: Final = 7
_EARLIEST, _LATEST = -2, -1
"""What Kafka calls the timestamps of the first and the last offset."""


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
    """Where logs start and end for the broker on this port; None if it does not answer, or leads not all of them."""
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
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_S) as connection:
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
