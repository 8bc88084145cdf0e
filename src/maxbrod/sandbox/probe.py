"""Asks one broker one question, on a socket of its own: what does it know?

kafka-python's admin client would answer too, but it retries, asks whichever broker it likes, the dead ones
too, and leaks a thread or a socket when that one does not answer: all wrong for something that is asked
every 50 ms while brokers die and start.
"""

from __future__ import annotations

import socket
import struct
from typing import Any, Final

from kafka.protocol.admin import DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from maxbrod.sandbox.spec import HOST
from maxbrod.sandbox.wire import ask

_TIMEOUT_S: Final = 5


def known_brokers(port: int) -> frozenset[int]:
    """Ids of the brokers that the broker on this port has in its metadata; none while it does not answer."""
    response = _ask(port, MetadataRequest(topics=[], version=12), MetadataResponse)
    return frozenset(broker.node_id for broker in response.brokers) if response else frozenset()


def known_topic(port: int, topic: str) -> Any | None:  # noqa: ANN401 - kafka-python is untyped
    """What the broker on this port says about a topic, in the words of a Metadata response; None without answer."""
    wanted = MetadataRequest.MetadataRequestTopic(name=topic)
    response = _ask(port, MetadataRequest(topics=[wanted], version=12), MetadataResponse)
    return response.topics[0] if response else None


def known_scram_users(port: int) -> frozenset[tuple[str, int]]:
    """Users and mechanisms (by Kafka's number) of the SCRAM passwords that the broker on this port knows."""
    request = DescribeUserScramCredentialsRequest(users=None, version=0)
    response = _ask(port, request, DescribeUserScramCredentialsResponse)
    results = response.results if response else ()
    return frozenset((result.user, info.mechanism) for result in results for info in result.credential_infos)


def _ask(port: int, request: Any, response_class: Any) -> Any | None:  # noqa: ANN401 - kafka-python is untyped
    try:
        with socket.create_connection((HOST, port), timeout=_TIMEOUT_S) as connection:
            return ask(connection, request, response_class)
    except (OSError, struct.error):
        return None
