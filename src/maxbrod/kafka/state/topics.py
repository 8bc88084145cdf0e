"""Reads topics, their replicas, configurations and sizes, as far as this user may see them. Changes nothing.

Sizes are for estimates: unknown ones are left out and are no error.
Unlike `KafkaClient.metadata`, a topic that this user may not Describe is returned separately instead of raised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest, DescribeLogDirsRequest

from maxbrod.errors import MaxbrodError, UnavailableError, naming
from maxbrod.kafka.state.cluster_state import EFFECTIVE_CONFIGS
from maxbrod.kafka.wire.client import (
    KafkaClient,
    Topic,
    each_partition,
    in_requests,
    metadata_request,
    read_metadata,
    retry,
)
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, code_name, reaction
from maxbrod.model import TopicPartition

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

_PREFIX: Final = "log."
_OTHER_NAMES: Final = {
    "message.max.bytes": "max.message.bytes",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.local.retention.bytes": "local.retention.bytes",
    "log.local.retention.ms": "local.retention.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "remote.log.storage.system.enable": "remote.storage.enable",
}
"""A broker's name for the default of a setting, and the topic's name."""
_WITHOUT_DEFAULT: Final = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
    }
)
_SAME_NAME: Final = frozenset({"compression", "min", "unclean"})
"""The first words of settings that brokers and topics call alike."""

_PATIENCE_S: Final = 30.0


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
    denied = sorted(topic.name for topic in answer.topics if topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED)
    # No topic can have an invalid name, so that there is none.
    absent = {Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC}
    answer.topics = [topic for topic in answer.topics if topic.error_code not in absent]
    return SeenTopics(topics=read_metadata(answer).topics, denied=tuple(denied))


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
            for result in answer.results:
                if not result.error_code:
                    found[result.resource_name] = _configs(result.configs)
                elif reaction(result.error_code) is Reaction.FATAL:
                    refused[result.resource_name] = code_name(result.error_code)
                else:
                    passing = result.error_code
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
        answer = client.ask_broker(nodes[0], configs_request(nodes[:1], BROKER), deadline=deadline)
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


def configs_request(names: Iterable[object], kind: int = TOPIC, *, keys: list[str] | None = None) -> Message:
    """A request for the settings of topics, or of the brokers with these ids; only for `keys` if given."""
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=str(name), configuration_keys=keys) for name in names],
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


def read_known_configs(client: KafkaClient, topics: Iterable[str], *, deadline: Deadline) -> frozenset[str] | None:
    """The names of settings that a topic of this cluster may have; None if this user may not find out.

    Any existing topic tells them. Without one, they follow from the names of the brokers' defaults.
    """
    nodes = sorted(client.metadata([], deadline=deadline).brokers)
    for kind, names in ((TOPIC, sorted(topics)[:1]), (BROKER, nodes[:1])):
        if not names:
            continue
        try:
            (result,) = client.ask_broker(nodes[0], configs_request(names, kind), deadline=deadline).results
        except MaxbrodError:
            continue
        if not result.error_code:
            found = {config.name for config in result.configs}
            return frozenset(found if kind == TOPIC else _of_topics(found))
    return None


def _of_topics(names: Iterable[str]) -> set[str]:
    found = {_OTHER_NAMES.get(name, name.removeprefix(_PREFIX)) for name in names if name.startswith(_PREFIX)}
    found |= {topic for broker, topic in _OTHER_NAMES.items() if broker in names}
    return found | _WITHOUT_DEFAULT | {name for name in names if name.partition(".")[0] in _SAME_NAME}


def partition_sizes(client: KafkaClient, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The bytes of each partition's log on its leader's disk, if this user may Describe the cluster.

    For a topic with remote storage it is the local part. A partition whose leader is unknown or does not answer is left
    out.
    """
    limit = Deadline.after(_PATIENCE_S)
    led: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for where in places:
        with suppress(MaxbrodError):
            led[client.leader(where, deadline=limit).node_id][where.topic].append(where.partition)
    sizes: dict[TopicPartition, int] = {}
    for leader, partitions in led.items():
        with suppress(MaxbrodError):  # no permission, no answer, or an old broker: the caller estimates
            answer = client.ask_broker(leader, _sizes_request(partitions), deadline=limit)
            _demand_success(answer)
            sizes |= {
                where: partition.partition_size
                for folder in answer.results
                if not folder.error_code
                for where, partition in each_partition(folder.topics)
                if not partition.is_future_key  # a copy on its way to another disk of the same broker
            }
    return sizes


def topics_on_disk(client: KafkaClient, *, deadline: Deadline) -> set[str]:
    """Every topic with a replica on a broker, including those that this user may not Describe.

    An error if this user may not Describe the cluster.
    """
    found: set[str] = set()
    for node_id in client.metadata([], deadline=deadline).brokers:
        limit = deadline.within(client.request_timeout_s)
        with naming(f"broker {node_id}"):
            found |= client.connection(node_id, deadline=limit).ask_for(_sizes_request(None), _names, limit)
    return found


def _names(answer: Message) -> frozenset[str]:
    """The topics that a broker has, from its answer about everything. The same answer is not decoded twice."""
    _demand_success(answer)
    return frozenset(
        topic.name
        for folder in answer.results
        if not folder.error_code
        for topic in folder.topics
        if any(not partition.is_future_key for partition in topic.partitions)
    )


def _demand_success(answer: Message) -> None:
    if answer.error_code:
        raise answered_with(answer.error_code, operation="read sizes of logs", object_name="")


def _sizes_request(partitions: Mapping[str, Sequence[int]] | None) -> Message:
    wanted = None
    if partitions is not None:
        topic = DescribeLogDirsRequest.DescribableLogDirTopic
        wanted = [topic(topic=name, partitions=sorted(numbers)) for name, numbers in sorted(partitions.items())]
    return DescribeLogDirsRequest(topics=wanted)
