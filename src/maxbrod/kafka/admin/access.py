"""Creates ACLs and sets client quotas. Each has its own outcome. `state.access` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.protocol.admin import AlterClientQuotasRequest, CreateAclsRequest

from maxbrod.errors import UnsupportedFormatError
from maxbrod.kafka.admin.outcomes import Outcome, change_each
from maxbrod.kafka.state.access_names import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES
from maxbrod.kafka.state.cluster_state import Acl, Quota, QuotaEntity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

    Entities = tuple[QuotaEntity, ...]


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
        for each in answer.entries:
            who = frozenset(QuotaEntity(type=one.entity_type, name=one.entity_name) for one in each.entity)
            yield known[who], Outcome(code=each.error_code, details=each.error_message or None)

    return change_each(client, wanted, request, read, deadline=deadline)


def _entry(entities: Entities, values: Mapping[str, float]) -> Message:
    entry = AlterClientQuotasRequest.EntryData
    return entry(
        entity=[entry.EntityData(entity_type=entity.type, entity_name=entity.name) for entity in entities],
        ops=[entry.OpData(key=key, value=value, remove=False) for key, value in values.items()],
    )
