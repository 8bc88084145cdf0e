"""What this user may do with a cluster, its topics and its groups, as its brokers tell.

Operations have Kafka's names (WRITE, ALTER_CONFIGS), as in ACLs. Brokers also report them for topics and groups that
do not exist yet, to users that may Describe those. A user without Describe has no other useful right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from kafka.protocol.admin import DescribeClusterRequest, DescribeGroupsRequest

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.state.access_names import OPERATIONS
from maxbrod.kafka.wire.coordination import ask_coordinators
from maxbrod.kafka.wire.error_codes import Code, code_name
from maxbrod.kafka.wire.metadata import metadata_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

Operations: TypeAlias = "frozenset[str]"
NOTHING: Final[Operations] = frozenset()
_CLUSTER_ACTION: Final = "CLUSTER_ACTION"


def cluster_operations(client: KafkaClient, *, deadline: Deadline) -> Operations | None:
    """The operations on the cluster; None if unknown: without Describe on the cluster, brokers report no operation."""

    def request() -> Message:
        return DescribeClusterRequest(include_cluster_authorized_operations=True)

    try:
        answer = client.ask_any(request, deadline=deadline)
    except MaxbrodError:
        return None
    return None if answer.error_code else _named(answer.authorized_operations) or None


def topic_operations(client: KafkaClient, names: Iterable[str], *, deadline: Deadline) -> dict[str, Operations]:
    """The operations on these topics, existing or not, as far as brokers report them."""
    wanted = sorted(set(names))

    def request() -> Message:
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
        if each.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
            found[each.name] = NOTHING
        elif each.authorized_operations is not None:
            found[each.name] = _named(each.authorized_operations)
    return found


def group_operations(client: KafkaClient, group_ids: Iterable[str], *, deadline: Deadline) -> dict[str, Operations]:
    """The operations on these groups, existing or not, as far as coordinators report them."""
    wanted = set(group_ids)
    answers = ask_coordinators(client, wanted, _describe_groups_request, _group_operations, deadline=deadline)
    denied = code_name(Code.GROUP_AUTHORIZATION_FAILED)
    refused = {group_id: NOTHING for group_id, why in answers.refused.items() if why == denied}
    return {group_id: known for group_id, known in answers.found.items() if known is not None} | refused


def may_write_markers(client: KafkaClient, *, deadline: Deadline) -> bool:
    """Whether ClusterAction is allowed; False if unknown."""
    return _CLUSTER_ACTION in (cluster_operations(client, deadline=deadline) or NOTHING)


def _describe_groups_request(group_ids: Sequence[str]) -> Message:
    return DescribeGroupsRequest(groups=list(group_ids), include_authorized_operations=True)


def _group_operations(answer: Message) -> Iterator[tuple[str, int, Operations | None]]:
    for group in answer.groups:
        operations = group.authorized_operations
        yield group.group_id, group.error_code, None if operations is None else _named(operations)


def _named(operations: Iterable[int] | None) -> Operations:
    return frozenset(OPERATIONS.get(operation, str(operation)) for operation in operations or ())
