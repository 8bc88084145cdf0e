"""Reads ACLs, client quotas and SCRAM users from any broker. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeUserScramCredentialsRequest,
)

from maxbrod.kafka.state.cluster_state import (
    MECHANISMS,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    Quota,
    QuotaEntity,
    ScramUser,
    name_of,
)
from maxbrod.kafka.wire.error_codes import Code, answered_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline


_ANY: Final = 1
_DESCRIBE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Acls:
    """`authorized` is false if the cluster has no authorizer and therefore no ACLs."""

    authorized: bool
    acls: tuple[Acl, ...]


def may_describe_cluster(client: KafkaClient, *, deadline: Deadline) -> bool:
    """True if this user may Describe the cluster. Without it Kafka silently omits groups."""

    def request() -> Message:
        return DescribeClusterRequest(include_cluster_authorized_operations=True)

    answer = _ask(client, request, "describe the cluster", deadline)
    return _DESCRIBE in answer.authorized_operations


def read_acls(client: KafkaClient, *, deadline: Deadline) -> Acls:
    """Every ACL of the cluster."""

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
    return Acls(authorized=not answer.error_code, acls=tuple(_acls(answer)))


def _acls(answer: Message) -> Iterator[Acl]:
    for resource in answer.resources:
        for acl in resource.acls:
            yield Acl(
                resource_type=name_of(RESOURCE_TYPES, resource.resource_type),
                resource_name=resource.resource_name,
                pattern_type=name_of(PATTERN_TYPES, resource.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=name_of(OPERATIONS, acl.operation),
                permission=name_of(PERMISSIONS, acl.permission_type),
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
