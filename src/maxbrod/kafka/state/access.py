"""Reads ACLs, client quotas, SCRAM users, delegation tokens, and what this user may do. Changes nothing.

Operations have Kafka's names (WRITE, ALTER_CONFIGS), as in ACLs. Brokers also report them for topics and groups that
do not exist yet, to users that may Describe those. A user without Describe has no other useful right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from kafka.protocol.admin import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeGroupsRequest,
    DescribeUserScramCredentialsRequest,
)

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.state.cluster_state import (
    MECHANISMS,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    DelegationToken,
    Quota,
    QuotaEntity,
    ScramUser,
    name_of,
)
from maxbrod.kafka.wire.client import KafkaClient, metadata_request
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.coordination import ask_coordinators
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, answered_with, code_name
from maxbrod.kafka.wire.messages import message_pair

Operations: TypeAlias = "frozenset[str]"
NOTHING: Final[Operations] = frozenset()
_ANY: Final = 1
_DescribeDelegationTokenRequest, _described = message_pair("DescribeDelegationToken")


def read_acls(client: KafkaClient, *, deadline: Deadline) -> tuple[bool, tuple[Acl, ...]]:
    """Every ACL of the cluster. False: the cluster has no authorizer and therefore no ACLs."""

    def request() -> Message:
        return DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )

    answer = _ask(client, request, "read ACLs", deadline, accepted=Code.SECURITY_DISABLED)
    return not answer.error_code, tuple(
        Acl(
            resource_type=name_of(RESOURCE_TYPES, resource.resource_type),
            resource_name=resource.resource_name,
            pattern_type=name_of(PATTERN_TYPES, resource.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=name_of(OPERATIONS, acl.operation),
            permission=name_of(PERMISSIONS, acl.permission_type),
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def read_quotas(client: KafkaClient, *, deadline: Deadline) -> tuple[Quota, ...]:
    """Every client quota: for users, client ids and addresses, and the defaults."""
    answer = _ask(client, lambda: DescribeClientQuotasRequest(components=[], strict=False), "read quotas", deadline)
    return tuple(
        Quota(
            entities=tuple(QuotaEntity(type=entity.entity_type, name=entity.entity_name) for entity in entry.entity),
            values={value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or ()
    )


def read_users(client: KafkaClient, *, deadline: Deadline) -> tuple[ScramUser, ...]:
    """Every SCRAM user, once for each mechanism."""
    # Empty means all. So does null, but a broker fails on it when it must refuse the request (Kafka 4.3).
    answer = _ask(client, lambda: DescribeUserScramCredentialsRequest(users=[]), "read SCRAM users", deadline)
    return tuple(
        ScramUser(name=user.user, mechanism=name_of(MECHANISMS, info.mechanism), iterations=info.iterations)
        for user in answer.results
        for info in user.credential_infos
    )


def read_tokens(client: KafkaClient, *, deadline: Deadline) -> tuple[DelegationToken, ...] | None:
    """Every delegation token that this user may see. None: brokers do not tell, because it has not logged in."""
    answer = client.ask_any(lambda: _DescribeDelegationTokenRequest(owners=None), deadline=deadline)
    if answer.error_code == Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED:
        return None
    if answer.error_code == Code.DELEGATION_TOKEN_AUTH_DISABLED:
        return ()
    if answer.error_code:
        raise answered_with(answer.error_code, operation="read delegation tokens", object_name="the cluster")
    return tuple(
        DelegationToken(
            token_id=token.token_id,
            owner=f"{token.principal_type}:{token.principal_name}",
            # Before Kafka 3.3 a token was always requested by its owner.
            requester=f"{token.token_requester_principal_type or token.principal_type}:"
            f"{token.token_requester_principal_name or token.principal_name}",
            renewers=tuple(sorted(f"{one.principal_type}:{one.principal_name}" for one in token.renewers)),
            issued_at_ms=token.issue_timestamp,
            expires_at_ms=token.expiry_timestamp,
        )
        for token in answer.tokens
    )


def may_describe_cluster(client: KafkaClient, *, deadline: Deadline) -> bool:
    """True if this user may Describe the cluster. Without it Kafka silently omits groups."""
    return "DESCRIBE" in _named(_ask(client, _cluster_request, "describe the cluster", deadline).authorized_operations)


def cluster_operations(client: KafkaClient, *, deadline: Deadline) -> Operations | None:
    """The operations on the cluster; None if unknown: without Describe on the cluster, brokers report no operation."""
    try:
        answer = client.ask_any(_cluster_request, deadline=deadline)
    except MaxbrodError:
        return None
    return None if answer.error_code else _named(answer.authorized_operations) or None


def may_write_markers(client: KafkaClient, *, deadline: Deadline) -> bool:
    """True if ClusterAction is allowed; False if unknown."""
    return "CLUSTER_ACTION" in (cluster_operations(client, deadline=deadline) or NOTHING)


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

    def read(answer: Message) -> Iterator[tuple[str, int, Operations | None]]:
        for group in answer.groups:
            operations = group.authorized_operations
            yield group.group_id, group.error_code, None if operations is None else _named(operations)

    answers = ask_coordinators(
        client,
        set(group_ids),
        lambda asked: DescribeGroupsRequest(groups=list(asked), include_authorized_operations=True),
        read,
        deadline=deadline,
    )
    denied = code_name(Code.GROUP_AUTHORIZATION_FAILED)
    refused = {group_id: NOTHING for group_id, why in answers.refused.items() if why == denied}
    return {group_id: known for group_id, known in answers.found.items() if known is not None} | refused


def _cluster_request() -> Message:
    return DescribeClusterRequest(include_cluster_authorized_operations=True)


def _named(operations: Iterable[int] | None) -> Operations:
    return frozenset(OPERATIONS.get(operation, str(operation)) for operation in operations or ())


def _ask(
    client: KafkaClient,
    request: Callable[[], Message],
    operation: str,
    deadline: Deadline,
    *,
    accepted: int = Code.NONE,
) -> Message:
    answer = client.ask_any(request, deadline=deadline)
    if answer.error_code not in {Code.NONE, accepted}:
        raise answered_with(answer.error_code, operation=operation, object_name="the cluster")
    return answer
