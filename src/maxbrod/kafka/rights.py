"""What this user may do with a cluster, as its brokers tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import DescribeClusterRequest

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.metadata import metadata_request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from maxbrod.kafka.client import KafkaClient
    from maxbrod.kafka.deadline import Deadline

_WRITE: Final = 4
_CREATE: Final = 5
_DELETE: Final = 6
_CLUSTER_ACTION: Final = 9
_ALTER_CONFIGS: Final = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRights:
    """What this user may do with one topic that exists."""

    write: bool
    delete: bool
    alter_configs: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRights:
    """False where it is denied, None where nobody tells."""

    create: bool | None
    """Any topic. Who may not may still create some, by their names."""
    cluster_action: bool | None


def cluster_rights(client: KafkaClient, *, deadline: Deadline) -> ClusterRights:
    told = _cluster_operations(client, deadline=deadline)
    if told is None:
        return ClusterRights(create=None, cluster_action=None)
    return ClusterRights(create=_CREATE in told, cluster_action=_CLUSTER_ACTION in told)


def topic_rights(client: KafkaClient, names: Iterable[str], *, deadline: Deadline) -> dict[str, TopicRights]:
    """Of those that exist and whose brokers tell."""
    wanted = sorted(set(names))

    def request() -> Any:  # noqa: ANN401 - kafka-python is untyped
        asked = metadata_request(wanted)
        asked.include_topic_authorized_operations = True
        return asked

    if not wanted:
        return {}
    try:
        answer = client.ask_any(request, deadline=deadline)
    except MaxbrodError:
        return {}
    found = {}
    for each in answer.topics:
        told = each.authorized_operations
        if not each.error_code and told is not None:
            found[each.name] = TopicRights(
                write=_WRITE in told, delete=_DELETE in told, alter_configs=_ALTER_CONFIGS in told
            )
    return found


def may_write_markers(client: KafkaClient, *, deadline: Deadline) -> bool:
    """Whether ClusterAction is allowed; False where nobody tells."""
    return bool(cluster_rights(client, deadline=deadline).cluster_action)


def _cluster_operations(client: KafkaClient, *, deadline: Deadline) -> Collection[int] | None:
    """None where nobody tells."""

    def request() -> Any:  # noqa: ANN401 - kafka-python is untyped
        return DescribeClusterRequest(include_cluster_authorized_operations=True)

    try:
        answer = client.ask_any(request, deadline=deadline)
    except MaxbrodError:
        return None
    # Who may not Describe the cluster is told of no operation at all, whatever else is allowed.
    return None if answer.error_code else answer.authorized_operations or None
