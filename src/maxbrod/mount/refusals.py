"""Refuses everything that writes, with POLICY_VIOLATION and a sentence where the response has room for one.

A node that does not coordinate groups refuses what is for the one that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kafka.protocol.api_key import ApiKey

from maxbrod.kafka.wire.error_codes import Code

if TYPE_CHECKING:
    from maxbrod.mount.apis import Api, Message

SENTENCE: Final = "this is a read-only mount of an archive: nothing can be written to it"
_ELSEWHERE: Final = "another node coordinates the groups"
_CODES: Final = frozenset({"error_code", "partition_error_code"})
Tree: TypeAlias = Mapping[str, Any]
"""The fields of a response by name; of nested structures as well."""


def _places(topics: Iterable[Message], name: str = "name", number: str = "partition_index") -> list[Tree]:
    """What is asked about each partition of topics that list structures or numbers."""
    return [
        {
            "name": getattr(topic, name),
            "partitions": [
                {"partition_index": each if isinstance(each, int) else getattr(each, number)}
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]


def _produced(request: Message) -> Tree:
    return {
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {"index": each.index, "base_offset": -1, "log_append_time_ms": -1, "record_errors": []}
                    for each in topic.partition_data
                ],
            }
            for topic in request.topic_data
        ]
    }


def _deleted_topics(request: Message) -> Tree:
    states = request.topics or [None] * len(request.topic_names or ())
    names = request.topic_names or [None] * len(states)
    return {
        "responses": [
            {"name": name if state is None else state.name, "topic_id": None if state is None else state.topic_id}
            for state, name in zip(states, names, strict=True)
        ]
    }


def _added_to_transaction(request: Message) -> Tree:
    def results(topics: Iterable[Message]) -> list[Tree]:
        return [
            {"name": topic.name, "results_by_partition": [{"partition_index": each} for each in topic.partitions]}
            for topic in topics
        ]

    return {
        "results_by_transaction": [
            {"transactional_id": each.transactional_id, "topic_results": results(each.topics)}
            for each in request.transactions or ()
        ],
        "results_by_topic_v3_and_below": results(request.v3_and_below_topics or ()),
    }


def _marked(request: Message) -> Tree:
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {"name": topic.name, "partitions": [{"partition_index": each} for each in topic.partition_indexes]}
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


def _altered_configs(request: Message) -> Tree:
    resources = request.resources
    return {
        "responses": [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in resources]
    }


def _moved_replicas(request: Message) -> Tree:
    topics = [topic for directory in request.dirs for topic in directory.topics]
    return {"results": [{"topic_name": each["name"], "partitions": each["partitions"]} for each in _places(topics)]}


def _elected(request: Message) -> Tree:
    return {
        "replica_election_results": [
            {"topic": topic.topic, "partition_result": [{"partition_id": each} for each in topic.partitions]}
            for topic in request.topic_partitions or ()
        ]
    }


def _altered_quotas(request: Message) -> Tree:
    return {
        "entries": [
            {"entity": [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entry.entity]}
            for entry in request.entries
        ]
    }


def _altered_users(request: Message) -> Tree:
    changed = [*(request.deletions or ()), *(request.upsertions or ())]
    return {"results": [{"user": name} for name in dict.fromkeys(each.name for each in changed)]}


_ANSWERS: Final[dict[int, Callable[[Message], Tree]]] = {
    ApiKey.Produce: _produced,
    ApiKey.CreateTopics: lambda request: {
        "topics": [{"name": topic.name, "num_partitions": -1, "replication_factor": -1} for topic in request.topics]
    },
    ApiKey.DeleteTopics: _deleted_topics,
    ApiKey.DeleteRecords: lambda request: {
        "topics": [
            {**topic, "partitions": [{**each, "low_watermark": -1} for each in topic["partitions"]]}
            for topic in _places(request.topics)
        ]
    },
    ApiKey.InitProducerId: lambda _: {"producer_id": -1, "producer_epoch": -1},
    ApiKey.AddPartitionsToTxn: _added_to_transaction,
    ApiKey.AddOffsetsToTxn: lambda _: {},
    ApiKey.EndTxn: lambda _: {"producer_id": -1, "producer_epoch": -1},
    ApiKey.WriteTxnMarkers: _marked,
    ApiKey.TxnOffsetCommit: lambda request: {"topics": _places(request.topics)},
    ApiKey.CreateAcls: lambda request: {"results": [{} for _ in request.creations]},
    ApiKey.DeleteAcls: lambda request: {"filter_results": [{"matching_acls": []} for _ in request.filters]},
    ApiKey.AlterConfigs: _altered_configs,
    ApiKey.AlterReplicaLogDirs: _moved_replicas,
    ApiKey.CreatePartitions: lambda request: {"results": [{"name": topic.name} for topic in request.topics]},
    ApiKey.ElectLeaders: _elected,
    ApiKey.IncrementalAlterConfigs: _altered_configs,
    ApiKey.AlterPartitionReassignments: lambda request: {"responses": _places(request.topics)},
    ApiKey.AlterClientQuotas: _altered_quotas,
    ApiKey.AlterUserScramCredentials: _altered_users,
    ApiKey.UpdateFeatures: lambda request: {"results": [{"feature": each.feature} for each in request.feature_updates]},
}
REFUSED: Final = frozenset(_ANSWERS)


def _groups(request: Message) -> Tree:
    return {"groups": [{"group_id": group} for group in request.groups or ()]}


def _group_offsets(request: Message, version: int) -> Tree:
    if version >= 8:
        return {"groups": [{"group_id": group.group_id} for group in request.groups]}
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": number, "committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
                    for number in topic.partition_indexes
                ],
            }
            for topic in request.topics or ()
        ]
    }


def _committed(request: Message) -> Tree:
    # The newest version has the ids of topics in place of their names.
    places = zip(request.topics, _places(request.topics), strict=True)
    return {"topics": [{**place, "topic_id": topic.topic_id} for topic, place in places]}


_OF_GROUPS: Final[dict[int, Callable[[Message, int], Tree]]] = {
    ApiKey.OffsetCommit: lambda request, _: _committed(request),
    ApiKey.OffsetFetch: _group_offsets,
    ApiKey.JoinGroup: lambda _, __: {},
    ApiKey.Heartbeat: lambda _, __: {},
    ApiKey.LeaveGroup: lambda _, __: {},
    ApiKey.SyncGroup: lambda _, __: {},
    ApiKey.DescribeGroups: lambda request, _: _groups(request),
    # Clients ask every node for its groups: this one has none.
    ApiKey.ListGroups: lambda _, __: {"error_code": Code.NONE},
    ApiKey.DeleteGroups: lambda request, _: {"results": [{"group_id": group} for group in request.groups_names]},
    ApiKey.OffsetDelete: lambda _, __: {},
    ApiKey.ConsumerGroupDescribe: lambda request, _: {
        "groups": [{"group_id": group} for group in request.group_ids or ()]
    },
}


def refuse(api: Api, request: Message) -> Message:
    """The response that refuses all of a request."""
    return _built(api.response, _ANSWERS[api.key](request), Code.POLICY_VIOLATION, SENTENCE)


def answer_elsewhere(api: Api, request: Message, version: int) -> Message:
    """The response to a request about groups that came to a node which does not coordinate them."""
    return _built(api.response, _OF_GROUPS[api.key](request, version), Code.NOT_COORDINATOR, _ELSEWHERE)


def _built(kind: Message, tree: Tree, code: int, sentence: str) -> Message:
    values: dict[str, Any] = {}
    for field in kind._struct._fields:  # noqa: SLF001 - the schema of the message
        name = field.name
        if name in tree:
            nested = field.is_struct_array() and tree[name] is not None
            values[name] = (
                [_built(getattr(kind, field.type_str), each, code, sentence) for each in tree[name]]
                if nested
                else tree[name]
            )
        elif name in _CODES:
            values[name] = code
        elif name == "error_message":
            values[name] = sentence
        elif (field.is_array() or field.is_struct_array()) and field.tag is None:
            values[name] = []
    return kind(**values)
