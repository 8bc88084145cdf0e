"""Changes of a cluster: topics, their configurations and log starts, ACLs and client quotas. `state` reads them.

Each change has its own outcome, done or refused with Kafka's error code, so that a refused one does not hide the
others. A request goes to any broker, which forwards it to the controller. Changes with a retriable error are requested
again. So is a change whose response was lost: it may have been applied. Therefore creating what exists and deleting
what does not exist count as done from the second request on, and only then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)

from maxbrod.errors import MaxbrodError, UnavailableError, UnsupportedFormatError
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.state.cluster_state import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    Quota,
    QuotaEntity,
)
from maxbrod.kafka.state.topics import TOPIC
from maxbrod.kafka.wire.client import KafkaClient, Leader, each_partition, in_requests, retry, topic_messages
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, code_name, reaction
from maxbrod.model import TopicPartition

Item = TypeVar("Item", bound="Hashable")
Entities: TypeAlias = tuple[QuotaEntity, ...]
PATIENCE_S: Final = 60.0
_REQUEST_TIMEOUT_MS: Final = 20_000
"""The time that a broker waits for the controller."""
_CHANGES_PER_REQUEST: Final = 500
UP_TO_NOW: Final = -1
"""An offset for `delete_records`: the high watermark."""
_SET: Final = 0  # what to do with a value
_DELETE: Final = 1
# The controller knows which topics exist, so this error is final.
_NOT_THERE: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOutcome:
    """`code` is Kafka's error code; 0 is done. `details` is the broker's message."""

    code: int
    details: str | None = None

    @property
    def done(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """The reason why it was refused, in one line."""
        return code_name(self.code) + (f": {self.details}" if self.details else "")


def change_each(
    client: KafkaClient,
    items: Iterable[Item],
    request: Callable[[Sequence[Item]], Message],
    read: Callable[[Message, Sequence[Item]], Iterable[tuple[Item, Message]]],
    *,
    as_good_as_done: Collection[int] = (),
    final: Collection[int] = (),
    deadline: Deadline | None,
) -> dict[Item, ChangeOutcome]:
    """Return the outcome of each item. At the deadline an item has its last retriable outcome.

    `read` yields the part of an answer about each item. `as_good_as_done` are codes that count as done if the change
    was requested before. `final` are codes that are retriable elsewhere but not here. UnavailableError if no broker
    answers.
    """
    wanted = list(dict.fromkeys(items))
    outcomes: dict[Item, ChangeOutcome] = {}
    retriable: dict[Item, ChangeOutcome] = {}
    requests: Counter[Item] = Counter()

    def build(portion: Sequence[Item]) -> Message:
        requests.update(portion)
        return request(portion)

    def once(limit: Deadline) -> None:
        for portion in in_requests([item for item in wanted if item not in outcomes], _CHANGES_PER_REQUEST):
            for item, answer in read(client.ask_any(partial(build, portion), deadline=limit), portion):
                outcome = ChangeOutcome(code=answer.error_code, details=answer.error_message or None)
                # Requested before, and that response was lost: the change had been made.
                if requests[item] > 1 and outcome.code in as_good_as_done:
                    outcomes[item] = ChangeOutcome(code=0, details=outcome.details)
                elif outcome.done or outcome.code in final or reaction(outcome.code) is Reaction.FATAL:
                    outcomes[item] = outcome
                else:
                    retriable[item] = outcome
        if len(outcomes) < len(wanted):
            raise UnavailableError("some changes may still be made")

    try:
        retry(once, deadline=deadline or Deadline.after(PATIENCE_S), what="changes to be made")
    except UnavailableError:
        if any(item not in outcomes and item not in retriable for item in wanted):
            raise
    return {item: outcomes[item] if item in outcomes else retriable[item] for item in wanted}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create, with a number of partitions and replicas, or with `assignment`, the brokers of each partition.

    -1 uses the cluster's default.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Sequence[Sequence[int]] | None = None
    configs: Mapping[str, str | None] = field(default_factory=dict)


def create_topics(
    client: KafkaClient, topics: Iterable[NewTopic], *, validate_only: bool = False, deadline: Deadline | None = None
) -> dict[str, ChangeOutcome]:
    """Create topics; the result is by name. With `validate_only` nothing is created, and the outcome is predicted."""
    wanted = {topic.name: topic for topic in topics}
    kind = CreateTopicsRequest.CreatableTopic

    def creatable(topic: NewTopic) -> Message:
        assigned = topic.assignment is not None
        return kind(
            name=topic.name,
            num_partitions=-1 if assigned else topic.partitions,
            replication_factor=-1 if assigned else topic.replication_factor,
            assignments=[
                kind.CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in enumerate(topic.assignment or ())
            ],
            configs=[kind.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
        )

    def request(names: Sequence[str]) -> Message:
        made = [creatable(wanted[name]) for name in names]
        return CreateTopicsRequest(topics=made, timeout_ms=_REQUEST_TIMEOUT_MS, validate_only=validate_only)

    return change_each(
        client,
        wanted,
        request,
        lambda answer, _: ((topic.name, topic) for topic in answer.topics),
        as_good_as_done=() if validate_only else {Code.TOPIC_ALREADY_EXISTS},
        deadline=deadline,
    )


def delete_topics(
    client: KafkaClient, topic_ids: Iterable[UUID], *, deadline: Deadline | None = None
) -> dict[UUID, ChangeOutcome]:
    """Delete topics by id, so that a newer topic of the same name is never deleted."""

    def request(ids: Sequence[UUID]) -> Message:
        states = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id) for topic_id in ids]
        return DeleteTopicsRequest(topics=states, timeout_ms=_REQUEST_TIMEOUT_MS)

    return change_each(
        client,
        topic_ids,
        request,
        lambda answer, _: ((response.topic_id, response) for response in answer.responses),
        as_good_as_done=_NOT_THERE,
        final=_NOT_THERE,
        deadline=deadline,
    )


def alter_configs(
    client: KafkaClient,
    changes: Mapping[str, Mapping[str, str | None]],
    *,
    kind: int = TOPIC,
    deadline: Deadline | None = None,
) -> dict[str, ChangeOutcome]:
    """Set these values of each topic and leave all others. None removes a value, and the cluster's default applies.

    The changes of a topic are made together or not at all. `kind` is Kafka's number for another kind of resource.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource

    def altered(name: str) -> Message:
        configs = [
            resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
            for key, value in changes[name].items()
        ]
        return resource(resource_type=kind, resource_name=name, configs=configs)

    return change_each(
        client,
        changes,
        lambda names: IncrementalAlterConfigsRequest(resources=[altered(name) for name in names], validate_only=False),
        lambda answer, _: ((response.resource_name, response) for response in answer.responses),
        final=_NOT_THERE,
        deadline=deadline,
    )


def create_partitions(
    client: KafkaClient, counts: Mapping[str, int], *, deadline: Deadline | None = None
) -> dict[str, ChangeOutcome]:
    """Give topics more partitions, as many in total as `counts` says."""

    def request(names: Sequence[str]) -> Message:
        topic = CreatePartitionsRequest.CreatePartitionsTopic
        topics = [topic(name=name, count=counts[name], assignments=None) for name in names]
        return CreatePartitionsRequest(topics=topics, timeout_ms=_REQUEST_TIMEOUT_MS, validate_only=False)

    return change_each(
        client,
        counts,
        request,
        lambda answer, _: ((result.name, result) for result in answer.results),
        # Asked for a second time, a broker answers that the topic already has as many.
        as_good_as_done={Code.INVALID_PARTITIONS},
        final=_NOT_THERE,
        deadline=deadline,
    )


def delete_records(
    client: KafkaClient, before: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MaxbrodError]]:
    """Move the start of each log up to this offset. Returns the new log start offsets, and the errors of the others."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Message:
        topics = topic_messages(
            asked, topic, lambda index, wanted: topic.DeleteRecordsPartition(partition_index=index, offset=wanted[0])
        )
        return DeleteRecordsRequest(topics=topics, timeout_ms=_REQUEST_TIMEOUT_MS)

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int, int]]:
        for where, partition in each_partition(answer.topics):
            yield where, partition.error_code, partition.low_watermark

    failed: dict[TopicPartition, MaxbrodError] = {}
    done = ask_leaders(client, before, request, read, operation="delete records", deadline=deadline, failed=failed)
    return done, failed


def create_acls(
    client: KafkaClient, acls: Iterable[Acl], *, deadline: Deadline | None = None
) -> dict[Acl, ChangeOutcome]:
    """Create ACLs. An existing one counts as done. A cluster without an authorizer answers SECURITY_DISABLED."""

    def number(names: Mapping[int, str], name: str, acl: Acl) -> int:
        """Kafka's number for a name. A number that had no name at capture is refused: its meaning is unknown."""
        for known, found in names.items():
            if found == name:
                return known
        raise UnsupportedFormatError(
            f"an ACL has {name!r}, which this release does not support",
            operation="create ACLs",
            object_name=f"{acl.resource_type} {acl.resource_name}",
            hint="create it with Kafka's tools",
        )

    def creation(acl: Acl) -> Message:
        return CreateAclsRequest.AclCreation(
            resource_type=number(RESOURCE_TYPES, acl.resource_type, acl),
            resource_name=acl.resource_name,
            resource_pattern_type=number(PATTERN_TYPES, acl.pattern_type, acl),
            principal=acl.principal,
            host=acl.host,
            operation=number(OPERATIONS, acl.operation, acl),
            permission_type=number(PERMISSIONS, acl.permission, acl),
        )

    return change_each(
        client,
        acls,
        lambda portion: CreateAclsRequest(creations=list(map(creation, portion))),
        lambda answer, portion: zip(portion, answer.results, strict=True),
        deadline=deadline,
    )


def set_quotas(
    client: KafkaClient, quotas: Iterable[Quota], *, deadline: Deadline | None = None
) -> dict[Entities, ChangeOutcome]:
    """Set client quotas. The result is by entity. Values that a quota does not name are unchanged."""
    wanted = {quota.entities: quota.values for quota in quotas}
    kind = AlterClientQuotasRequest.EntryData

    def entry(entities: Entities) -> Message:
        return kind(
            entity=[kind.EntityData(entity_type=entity.type, entity_name=entity.name) for entity in entities],
            ops=[kind.OpData(key=key, value=value, remove=False) for key, value in wanted[entities].items()],
        )

    def read(answer: Message, portion: Sequence[Entities]) -> Iterator[tuple[Entities, Message]]:
        known = {frozenset(entities): entities for entities in portion}
        for found in answer.entries:
            yield (
                known[frozenset(QuotaEntity(type=one.entity_type, name=one.entity_name) for one in found.entity)],
                found,
            )

    return change_each(
        client,
        wanted,
        lambda portion: AlterClientQuotasRequest(entries=list(map(entry, portion)), validate_only=False),
        read,
        deadline=deadline,
    )
