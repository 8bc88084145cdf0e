"""The longest transaction timeout that a cluster allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeConfigsRequest

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.deadline import Deadline

if TYPE_CHECKING:
    from maxbrod.kafka.wire.client import KafkaClient

DEFAULT_MAX_MS: Final = 900_000
"""Kafka's default, for users that may not read the configuration of brokers."""
_BROKER: Final = 4  # a type of resource
_SETTING: Final = "transaction.max.timeout.ms"
_PATIENCE_S: Final = 15.0


def longest_timeout_ms(client: KafkaClient) -> int:
    """The lowest limit of all reachable brokers, because any of them may coordinate a transaction."""
    found: list[int] = []
    brokers = client.metadata([]).brokers
    deadline = Deadline.after(_PATIENCE_S)
    for node_id in brokers:
        try:
            found += _allowed_ms(client, node_id, deadline)
        except MaxbrodError:
            continue  # an unreachable broker coordinates nothing now
    return min(found, default=DEFAULT_MAX_MS)


def _allowed_ms(client: KafkaClient, node_id: int, deadline: Deadline) -> list[int]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    request = DescribeConfigsRequest(
        resources=[resource(resource_type=_BROKER, resource_name=str(node_id), configuration_keys=[_SETTING])],
        include_synonyms=False,
        include_documentation=False,
    )
    answer = client.ask_broker(node_id, request, deadline=deadline)
    return [int(config.value) for result in answer.results for config in result.configs if config.value is not None]
