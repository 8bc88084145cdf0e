"""Reads topics, their replicas and their configurations, as far as this user may see them. Changes nothing.

Unlike `KafkaClient.metadata`, a topic that this user may not Describe is returned separately instead of raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import DescribeConfigsRequest

from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.state.cluster_state import EFFECTIVE_CONFIGS
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, code_name, reaction
from maxbrod.kafka.wire.metadata import Topic, metadata_request, read_metadata
from maxbrod.kafka.wire.partitions import in_requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

TOPIC: Final = 2  # a type of resource
BROKER: Final = 4
_DYNAMIC_TOPIC_CONFIG: Final = 1  # where a value was set
_DEFAULTS: Final = {
    "log.cleanup.policy": "cleanup.policy",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
}
"""A broker's names for the defaults of topics, and the names in topics."""
_RETENTION_UNITS: Final = {"log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
# A response has about 2 KB for each topic.
_TOPICS_PER_REQUEST: Final = 500
# A broker may learn of a new topic a moment after another one reported it.
_UNKNOWN_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopics:
    """The topics that exist, and those that this user may not Describe, which may exist or not."""

    topics: Mapping[str, Topic]
    denied: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigs:
    """The values set on the topic itself, and those in effect for EFFECTIVE_CONFIGS."""

    own: Mapping[str, str | None]
    effective: Mapping[str, str]


def see_topics(client: KafkaClient, names: Iterable[str] | None, *, deadline: Deadline) -> SeenTopics:
    """These topics, or all. From the list of all, Kafka silently omits those that this user may not Describe."""
    wanted = None if names is None else sorted(set(names))
    found: SeenTopics = client.ask_any(lambda: metadata_request(wanted), _read_seen, deadline=deadline)
    return found


def _read_seen(answer: Message) -> SeenTopics:
    denied = [topic for topic in answer.topics if topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED]
    # No topic can have an invalid name, so that there is none.
    absent = {Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC}
    answer.topics = [topic for topic in answer.topics if topic.error_code not in absent]
    return SeenTopics(topics=read_metadata(answer).topics, denied=tuple(sorted(each.name for each in denied)))


def read_configs(
    client: KafkaClient, names: Iterable[str], *, deadline: Deadline
) -> tuple[dict[str, TopicConfigs], dict[str, str]]:
    """The configurations of these topics, and the reasons for those that could not be read."""
    wanted = sorted(set(names))
    found: dict[str, TopicConfigs] = {}
    refused: dict[str, str] = {}

    def once(_: Deadline) -> None:
        passing = 0
        missing = [name for name in wanted if name not in found and name not in refused]
        for asked in in_requests(missing, _TOPICS_PER_REQUEST):
            answer = client.ask_any(partial(configs_request, asked), deadline=deadline)
            for each in answer.results:
                if not each.error_code:
                    found[each.resource_name] = _configs(each.configs)
                elif reaction(each.error_code) is Reaction.FATAL:
                    refused[each.resource_name] = code_name(each.error_code)
                else:
                    passing = each.error_code
        if passing:
            raise answered_with(passing, operation="read configurations", object_name="topics")

    try:
        limit = deadline.within(_UNKNOWN_PATIENCE_S)
        retry(once, deadline=limit, what="the configurations of topics", stop=client.stop)
    except UnavailableError as error:
        missing = (name for name in wanted if name not in found and name not in refused)
        refused |= dict.fromkeys(missing, error.message)
    return found, refused


def read_defaults(client: KafkaClient, *, deadline: Deadline) -> dict[str, str] | None:
    """The cluster's defaults for retention and cleanup of topics; None if this user may not read them.

    They are read from one broker. This requires DescribeConfigs on the cluster.
    """
    nodes = sorted(client.metadata([], deadline=deadline).brokers)
    try:
        answer = client.ask_broker(nodes[0], configs_request([str(nodes[0])], BROKER), deadline=deadline)
    except (MaxbrodError, IndexError):
        return None
    (result,) = answer.results
    if result.error_code:
        return None
    values = {config.name: config.value for config in result.configs}
    found = {topic: values.get(broker) for broker, topic in _DEFAULTS.items()}
    for name, factor in _RETENTION_UNITS.items():
        # The finer unit takes precedence; the coarsest always has a value.
        if found["retention.ms"] is None and values.get(name) is not None:
            found["retention.ms"] = str(int(values[name]) * factor) if int(values[name]) >= 0 else "-1"
    return {name: value for name, value in found.items() if value is not None}


def configs_request(names: Iterable[str], kind: int = TOPIC) -> Message:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configuration_keys=None) for name in names],
        include_synonyms=False,
        include_documentation=False,
    )


def _configs(entries: Iterable[Any]) -> TopicConfigs:
    own = {}
    effective = {}
    for entry in entries:
        if entry.config_source == _DYNAMIC_TOPIC_CONFIG:
            own[entry.name] = entry.value
        if entry.name in EFFECTIVE_CONFIGS and entry.value is not None:
            effective[entry.name] = entry.value
    return TopicConfigs(own=own, effective=effective)
