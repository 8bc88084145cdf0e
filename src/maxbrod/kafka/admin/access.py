"""Creates ACLs, sets client quotas, and reads what this user may do. `state.access` reads ACLs and quotas.

Operations have Kafka's names (WRITE, ALTER_CONFIGS), as in ACLs. Brokers also report them for topics and groups that
do not exist yet, to users that may Describe those. A user without Describe has no other useful right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    DescribeClusterRequest,
    DescribeGroupsRequest,
)

from maxbrod.errors import MaxbrodError, UnsupportedFormatError
from maxbrod.kafka.admin.outcomes import Outcome, change_each
from maxbrod.kafka.state.cluster_state import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    Quota,
    QuotaEntity,
)
from maxbrod.kafka.wire.coordination import ask_coordinators
from maxbrod.kafka.wire.error_codes import Code, code_name
from maxbrod.kafka.wire.metadata import metadata_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline


Entities: TypeAlias = tuple[QuotaEntity, ...]

Operations: TypeAlias = "frozenset[str]"
NOTHING: Final[Operations] = frozenset()
_CLUSTER_ACTION: Final = "CLUSTER_ACTION"


def create_acls(client: KafkaClient, acls: Iterable[Acl], *, deadline: Deadline | None = None) -> dict[Acl, Outcome]:
    """Create ACLs. An existing one counts as done. A cluster without an authorizer answers SECURITY_DISABLED."""

    def request(portion: Sequence[Acl]) -> Message:
        return CreateAclsRequest(creations=[_creation(acl) for acl in portion])

    def read(answer: Message, portion: Sequence[Acl]) -> Iterator[tuple[Acl, Outcome]]:
        for acl, each in zip(portion, answer.results, strict=True):
            yield acl, Outcome(code=each.error_code, details=each.error_message or None)

    return change_each(client, acls, request, read, deadline=deadline)


def _creation(acl: Acl) -> Message:
    return CreateAclsRequest.AclCreation(
        resource_type=_number(RESOURCE_TYPES, acl.resource_type, acl),
        resource_name=acl.resource_name,
        resource_pattern_type=_number(PATTERN_TYPES, acl.pattern_type, acl),
        principal=acl.principal,
        host=acl.host,
        operation=_number(OPERATIONS, acl.operation, acl),
        permission_type=_number(PERMISSIONS, acl.permission, acl),
    )


def _number(names: Mapping[int, str], name: str, acl: Acl) -> int:
    """Kafka's number for a name. A number that had no name at capture is refused: its meaning is unknown."""
    for number, known in names.items():
        if known == name:
            return number
    raise UnsupportedFormatError(
        f"an ACL has {name!r}, which this release does not support",
        operation="create ACLs",
        object_name=f"{acl.resource_type} {acl.resource_name}",
        hint="create it with Kafka's tools",
    )


def set_quotas(
    client: KafkaClient, quotas: Iterable[Quota], *, deadline: Deadline | None = None
) -> dict[Entities, Outcome]:
    """Set client quotas. The result is by entity. Values that a quota does not name are unchanged."""
    wanted = {quota.entities: quota.values for quota in quotas}

    def request(portion: Sequence[Entities]) -> Message:
        entries = [_entry(entities, wanted[entities]) for entities in portion]
        return AlterClientQuotasRequest(entries=entries, validate_only=False)

    def read(answer: Message, portion: Sequence[Entities]) -> Iterator[tuple[Entities, Outcome]]:
        known = {frozenset(entities): entities for entities in portion}
        for entry in answer.entries:
            who = frozenset(QuotaEntity(type=one.entity_type, name=one.entity_name) for one in entry.entity)
            yield known[who], Outcome(code=entry.error_code, details=entry.error_message or None)

    return change_each(client, wanted, request, read, deadline=deadline)


def _entry(entities: Entities, values: Mapping[str, float]) -> Message:
    entry = AlterClientQuotasRequest.EntryData
    return entry(
        entity=[entry.EntityData(entity_type=entity.type, entity_name=entity.name) for entity in entities],
        ops=[entry.OpData(key=key, value=value, remove=False) for key, value in values.items()],
    )


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
    for topic in answer.topics:
        if topic.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
            found[topic.name] = NOTHING
        elif topic.authorized_operations is not None:
            found[topic.name] = _named(topic.authorized_operations)
    return found


def group_operations(client: KafkaClient, group_ids: Iterable[str], *, deadline: Deadline) -> dict[str, Operations]:
    """The operations on these groups, existing or not, as far as coordinators report them."""
    wanted = set(group_ids)

    def request(asked: Sequence[str]) -> Message:
        return DescribeGroupsRequest(groups=list(asked), include_authorized_operations=True)

    answers = ask_coordinators(client, wanted, request, _group_operations, deadline=deadline)
    denied = code_name(Code.GROUP_AUTHORIZATION_FAILED)
    refused = {group_id: NOTHING for group_id, why in answers.refused.items() if why == denied}
    return {group_id: known for group_id, known in answers.found.items() if known is not None} | refused


def may_write_markers(client: KafkaClient, *, deadline: Deadline) -> bool:
    """True if ClusterAction is allowed; False if unknown."""
    return _CLUSTER_ACTION in (cluster_operations(client, deadline=deadline) or NOTHING)


def _group_operations(answer: Message) -> Iterator[tuple[str, int, Operations | None]]:
    for group in answer.groups:
        operations = group.authorized_operations
        yield group.group_id, group.error_code, None if operations is None else _named(operations)


def _named(operations: Iterable[int] | None) -> Operations:
    return frozenset(OPERATIONS.get(operation, str(operation)) for operation in operations or ())
