"""Answers of administration that only look: configurations, sizes, and lists that are empty here.

User interfaces count a cluster as offline if one of these fails. The configurations are those of the archived topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from kafka.protocol.api_key import ApiKey

from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.refusals import SENTENCE
from maxbrod.mount.view import NIL

if TYPE_CHECKING:
    from maxbrod.mount.apis import Api, Message
    from maxbrod.mount.loads import ChunkLoader
    from maxbrod.mount.view import ClusterView, ServedTopic

TOPIC, BROKER, CLIENT_METRICS, GROUP = 2, 4, 16, 32
"""Types of resources that have a configuration."""
_DYNAMIC_TOPIC, _STATIC_BROKER, _DEFAULT = 1, 4, 5
"""Where a value comes from."""
_BROKER: Final = {
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "false",
    "group.coordinator.rebalance.protocols": "classic",
}
_PUSH_INTERVAL_MS: Final = 2**31 - 1
_FOLDER: Final = "/archive"
Value = tuple[str, str | None, int]
"""Name, value and source."""


class Describer:
    def __init__(self, view: ClusterView, loader: ChunkLoader, node_id: int) -> None:
        self._view, self._loader, self._node_id = view, loader, node_id
        self.answers = {
            ApiKey.DescribeConfigs: self._configs,
            ApiKey.ListConfigResources: self._resources,
            ApiKey.GetTelemetrySubscriptions: self._telemetry,
            ApiKey.PushTelemetry: self._nothing,
            ApiKey.DescribeAcls: self._acls,
            ApiKey.DescribeClientQuotas: self._quotas,
            ApiKey.DescribeUserScramCredentials: self._users,
            ApiKey.ListPartitionReassignments: self._reassignments,
            ApiKey.ListTransactions: self._transactions,
            ApiKey.DescribeLogDirs: self._log_dirs,
        }

    async def _configs(self, api: Api, request: Message, _version: int) -> Message:
        kind = api.response.DescribeConfigsResult
        return api.response(results=[self._config(kind, asked, request) for asked in request.resources])

    def _config(self, kind: Message, asked: Message, request: Message) -> Message:
        values = self._values(asked.resource_type, asked.resource_name)
        about = {"resource_type": asked.resource_type, "resource_name": asked.resource_name}
        if values is None:
            unknown = asked.resource_type == TOPIC
            code = Code.UNKNOWN_TOPIC_OR_PARTITION if unknown else Code.INVALID_REQUEST
            message = f"the mount has no resource {asked.resource_name!r} of type {asked.resource_type}"
            return kind(error_code=code, error_message=message, configs=[], **about)
        wanted = asked.configuration_keys
        nested = kind.DescribeConfigsResourceResult
        configs = [
            nested(
                name=name,
                value=value,
                read_only=True,
                config_source=source,
                is_sensitive=value is None,
                synonyms=[nested.DescribeConfigsSynonym(name=name, value=value, source=source)]
                if request.include_synonyms
                else [],
                config_type=0,
                documentation=None,
            )
            for name, value, source in values
            if wanted is None or name in wanted
        ]
        return kind(error_code=Code.NONE, error_message=None, configs=configs, **about)

    def _values(self, resource_type: int, name: str) -> Iterable[Value] | None:
        """None: there is no such resource."""
        if resource_type == TOPIC:
            topic = self._view.topics.get(name)
            return None if topic is None else _topic_values(topic)
        if resource_type == BROKER and name in {"", *(str(node.node_id) for node in self._view.nodes)}:
            return [(key, value, _STATIC_BROKER) for key, value in _BROKER.items()] if name else []
        return [] if resource_type in {CLIENT_METRICS, GROUP} else None

    async def _resources(self, api: Api, request: Message, version: int) -> Message:
        wanted = (set(request.resource_types) or {TOPIC, BROKER}) if version >= 1 else {CLIENT_METRICS}
        found = [
            *((name, TOPIC) for name in self._view.topics if TOPIC in wanted),
            *((str(node.node_id), BROKER) for node in self._view.nodes if BROKER in wanted),
        ]
        kind = api.response.ConfigResource
        return api.response(
            error_code=Code.NONE,
            config_resources=[kind(resource_name=name, resource_type=each) for name, each in found],
        )

    async def _telemetry(self, api: Api, request: Message, _version: int) -> Message:
        """Nothing is wanted, and that for long."""
        known = request.client_instance_id
        return api.response(
            error_code=Code.NONE,
            client_instance_id=known if known is not None and known != NIL else uuid4(),
            subscription_id=0,
            accepted_compression_types=[],
            push_interval_ms=_PUSH_INTERVAL_MS,
            telemetry_max_bytes=0,
            delta_temporality=True,
            requested_metrics=[],
        )

    async def _nothing(self, api: Api, _request: Message, _version: int) -> Message:
        return api.response(error_code=Code.NONE)

    async def _acls(self, api: Api, _request: Message, _version: int) -> Message:
        message = f"a mount has no ACLs: {SENTENCE}"
        return api.response(error_code=Code.SECURITY_DISABLED, error_message=message, resources=[])

    async def _quotas(self, api: Api, _request: Message, _version: int) -> Message:
        return api.response(error_code=Code.NONE, error_message=None, entries=[])

    async def _users(self, api: Api, _request: Message, _version: int) -> Message:
        return api.response(error_code=Code.NONE, error_message=None, results=[])

    async def _reassignments(self, api: Api, _request: Message, _version: int) -> Message:
        return api.response(error_code=Code.NONE, error_message=None, topics=[])

    async def _transactions(self, api: Api, _request: Message, _version: int) -> Message:
        return api.response(error_code=Code.NONE, unknown_state_filters=[], transaction_states=[])

    async def _log_dirs(self, api: Api, request: Message, _version: int) -> Message:
        """Sizes of the partitions that this node leads, before compression."""
        kind = api.response.DescribeLogDirsResult
        asked: Mapping[str, Iterable[int]] | None = (
            None if request.topics is None else {topic.topic: topic.partitions for topic in request.topics}
        )
        topics = []
        for topic in self._view.topics.values():
            if asked is not None and topic.name not in asked:
                continue
            numbers = range(topic.partition_count) if asked is None else asked[topic.name]
            sizes = await self._sizes(topic, set(numbers))
            nested = kind.DescribeLogDirsTopic
            topics.append(
                nested(
                    name=topic.name,
                    partitions=[
                        nested.DescribeLogDirsPartition(
                            partition_index=number, partition_size=size, offset_lag=0, is_future_key=False
                        )
                        for number, size in sizes
                    ],
                )
            )
        total = sum(each.partition_size for topic in topics for each in topic.partitions)
        result = kind(
            error_code=Code.NONE, log_dir=_FOLDER, topics=topics, total_bytes=total, usable_bytes=0, is_cordoned=False
        )
        return api.response(error_code=Code.NONE, results=[result])

    async def _sizes(self, topic: ServedTopic, wanted: set[int]) -> list[tuple[int, int]]:
        logs = topic.logs or await self._loader.load_topic(topic)
        return [
            (number, logs[number].raw_bytes)
            for number in sorted(wanted & logs.keys())
            if self._view.leader(topic.name, number).node_id == self._node_id
        ]


def _topic_values(topic: ServedTopic) -> Iterator[Value]:
    state = topic.state
    if state is None:
        return
    own = state.configs or {}
    for name, value in own.items():
        yield name, value, _DYNAMIC_TOPIC
    for name, value in (state.effective or {}).items():
        if name not in own:
            yield name, value, _DEFAULT
