"""Answers about the cluster itself: versions, nodes, topics and partitions, coordinators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.view import NIL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maxbrod.mount.apis import Api, Message
    from maxbrod.mount.view import ClusterView, ServedNode, ServedTopic

UNKNOWN_TOPIC_ID: Final = 100
REBOOTSTRAP_REQUIRED: Final = 129
_BROKERS: Final = 1
_UNSUPPORTED_ENDPOINT_TYPE: Final = 115
_PARTITIONS_MAX: Final = 2000


def api_versions(api: Api, shown: Iterable[Api], code: int = Code.NONE) -> Message:
    """The versions of these requests."""
    keys = [api.response.ApiVersion(api_key=each.key, min_version=each.low, max_version=each.high) for each in shown]
    return api.response(error_code=code, api_keys=keys)


def meant_for_another(request: Message, cluster_id: str, node_id: int) -> bool:
    """True if a request of ApiVersions 5 names another cluster or node: an address has moved under its client."""
    meant: tuple[str | None, int] = request.cluster_id, request.node_id
    return meant[0] not in {None, cluster_id} or (meant[1] >= 0 and meant[1] != node_id)


def describe(api: Api, request: Message, version: int, view: ClusterView) -> Message:
    """The answer to Metadata."""
    response = api.response
    topics = []
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        topics = [_topic(response, view, topic) for topic in view.topics.values()]
    else:
        for asked in wanted:
            by_id = version >= 10 and asked.topic_id is not None and asked.topic_id != NIL
            topic = view.by_id.get(asked.topic_id) if by_id else view.topics.get(asked.name)
            if topic is not None:
                topics.append(_topic(response, view, topic))
                continue
            code = UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
            name = None if by_id else asked.name
            unknown = response.MetadataResponseTopic(
                error_code=code,
                name=name or ("" if version < 12 else name),
                topic_id=asked.topic_id or NIL,
                partitions=[],
            )
            topics.append(unknown)
    return response(
        brokers=[_broker(response.MetadataResponseBroker, node) for node in view.nodes],
        cluster_id=view.cluster_id,
        controller_id=view.nodes[0].node_id,
        topics=topics,
    )


def _topic(response: Message, view: ClusterView, topic: ServedTopic) -> Message:
    return response.MetadataResponseTopic(
        error_code=Code.NONE,
        name=topic.name,
        topic_id=topic.served_id,
        is_internal=topic.internal,
        partitions=[
            response.MetadataResponseTopic.MetadataResponsePartition(**placed)
            for placed in _partitions(view, topic, range(topic.partition_count))
        ],
    )


def _partitions(view: ClusterView, topic: ServedTopic, numbers: Iterable[int]) -> Iterator[dict[str, object]]:
    for number in numbers:
        leader = view.leader(topic.name, number).node_id
        yield {
            "error_code": Code.NONE,
            "partition_index": number,
            "leader_id": leader,
            "leader_epoch": -1,
            "replica_nodes": [leader],
            "isr_nodes": [leader],
            "offline_replicas": [],
        }


def _broker(kind: Message, node: ServedNode) -> Message:
    return kind(node_id=node.node_id, host=node.host, port=node.port, rack=None)


def describe_cluster(api: Api, request: Message, version: int, view: ClusterView) -> Message:
    response = api.response
    if version >= 1 and request.endpoint_type != _BROKERS:
        return response(
            error_code=_UNSUPPORTED_ENDPOINT_TYPE,
            error_message="a mount has no controllers",
            endpoint_type=request.endpoint_type,
            cluster_id="",
            brokers=[],
        )
    return response(
        error_code=Code.NONE,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=view.cluster_id,
        controller_id=view.nodes[0].node_id,
        brokers=[
            response.DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=None, is_fenced=False
            )
            for node in view.nodes
        ],
    )


def describe_partitions(api: Api, request: Message, _version: int, view: ClusterView) -> Message:
    """The answer to DescribeTopicPartitions, which is cut into pages."""
    response, cursor = api.response, request.cursor
    names = sorted({topic.name for topic in request.topics} or view.topics)
    left = min(max(request.response_partition_limit, 1), _PARTITIONS_MAX)
    topics, following = [], None
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        topic = view.topics.get(name)
        first = cursor.partition_index if cursor is not None and name == cursor.topic_name else 0
        if left <= 0:
            following = response.Cursor(topic_name=name, partition_index=first)
            break
        if topic is None:
            topics.append(
                response.DescribeTopicPartitionsResponseTopic(
                    error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, name=name, topic_id=NIL, partitions=[]
                )
            )
            continue
        last = min(topic.partition_count, first + left)
        kind = response.DescribeTopicPartitionsResponseTopic
        placed = _partitions(view, topic, range(first, last))
        topics.append(
            kind(
                error_code=Code.NONE,
                name=name,
                topic_id=topic.served_id,
                is_internal=topic.internal,
                partitions=[
                    kind.DescribeTopicPartitionsResponsePartition(
                        **values, eligible_leader_replicas=[], last_known_elr=[]
                    )
                    for values in placed
                ],
            )
        )
        left -= last - first
        if last < topic.partition_count:
            following = response.Cursor(topic_name=name, partition_index=last)
            break
    return response(topics=topics, next_cursor=following)


def find_coordinator(api: Api, request: Message, version: int, view: ClusterView) -> Message:
    """Every group has its coordinator on the first node. Transactions have none: nothing is written here."""
    response, node = api.response, view.nodes[0]
    is_group = version == 0 or request.key_type == 0
    code = Code.NONE if is_group else Code.POLICY_VIOLATION
    message = None if is_group else "a mount is read-only: it coordinates no transactions"
    place = (
        {"node_id": node.node_id, "host": node.host, "port": node.port}
        if is_group
        else {"node_id": -1, "host": "", "port": -1}
    )
    if version < 4:
        return response(error_code=code, error_message=message, **place)
    return response(
        coordinators=[
            response.Coordinator(key=key, error_code=code, error_message=message, **place)
            for key in request.coordinator_keys
        ]
    )
