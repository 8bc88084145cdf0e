"""Creates and deletes topics, sets their configurations, and moves the start of a log.

Each change has its own outcome, so that a refused one does not hide the others. `state.topics` reads topics and
configurations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
)

from maxbrod.kafka.admin.outcomes import REQUEST_TIMEOUT_MS, Outcome, change_each
from maxbrod.kafka.fetch.offsets import ask_leaders
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.kafka.wire.metadata import by_topic, each_partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from maxbrod.errors import MaxbrodError
    from maxbrod.kafka.wire.client import KafkaClient, Leader
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.model import TopicPartition

UP_TO_NOW: Final = -1
"""An offset for `delete_records`: the high watermark."""
_TOPICS_PER_REQUEST: Final = 500
_TOPIC: Final = 2  # a type of resource
_SET: Final = 0  # what to do with a value
_DELETE: Final = 1
# The controller knows which topics exist, so this error is final.
_NOT_THERE: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID})


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
) -> dict[str, Outcome]:
    """Create topics; the result is by name. With `validate_only` nothing is created, and the outcome is predicted."""
    wanted = {topic.name: topic for topic in topics}

    def request(names: Sequence[str]) -> Message:
        creatable = [_creatable(wanted[name]) for name in names]
        return CreateTopicsRequest(topics=creatable, timeout_ms=REQUEST_TIMEOUT_MS, validate_only=validate_only)

    return change_each(
        client,
        wanted,
        request,
        lambda answer, _: ((topic.name, _outcome(topic)) for topic in answer.topics),
        as_good_as_done=() if validate_only else {Code.TOPIC_ALREADY_EXISTS},
        per_request=_TOPICS_PER_REQUEST,
        deadline=deadline,
    )


def _creatable(topic: NewTopic) -> Message:
    kind = CreateTopicsRequest.CreatableTopic
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


def delete_topics(
    client: KafkaClient, topic_ids: Iterable[UUID], *, deadline: Deadline | None = None
) -> dict[UUID, Outcome]:
    """Delete topics by id, so that a newer topic of the same name is never deleted."""

    def request(ids: Sequence[UUID]) -> Message:
        state = DeleteTopicsRequest.DeleteTopicState
        states = [state(name=None, topic_id=topic_id) for topic_id in ids]
        return DeleteTopicsRequest(topics=states, timeout_ms=REQUEST_TIMEOUT_MS)

    return change_each(
        client,
        topic_ids,
        request,
        lambda answer, _: ((response.topic_id, _outcome(response)) for response in answer.responses),
        as_good_as_done=_NOT_THERE,
        final=_NOT_THERE,
        per_request=_TOPICS_PER_REQUEST,
        deadline=deadline,
    )


def alter_configs(
    client: KafkaClient, changes: Mapping[str, Mapping[str, str | None]], *, deadline: Deadline | None = None
) -> dict[str, Outcome]:
    """Set these values of each topic and leave all others. None removes a value, and the cluster's default applies.

    The changes of a topic are made together or not at all.
    """

    def request(names: Sequence[str]) -> Message:
        resources = [_altered(name, changes[name]) for name in names]
        return IncrementalAlterConfigsRequest(resources=resources, validate_only=False)

    return change_each(
        client,
        changes,
        request,
        lambda answer, _: ((response.resource_name, _outcome(response)) for response in answer.responses),
        final=_NOT_THERE,
        per_request=_TOPICS_PER_REQUEST,
        deadline=deadline,
    )


def _altered(name: str, values: Mapping[str, str | None]) -> Message:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
        for key, value in values.items()
    ]
    return resource(resource_type=_TOPIC, resource_name=name, configs=configs)


def create_partitions(
    client: KafkaClient, counts: Mapping[str, int], *, deadline: Deadline | None = None
) -> dict[str, Outcome]:
    """Give topics more partitions, as many in total as `counts` says."""

    def request(names: Sequence[str]) -> Message:
        topic = CreatePartitionsRequest.CreatePartitionsTopic
        topics = [topic(name=name, count=counts[name], assignments=None) for name in names]
        return CreatePartitionsRequest(topics=topics, timeout_ms=REQUEST_TIMEOUT_MS, validate_only=False)

    return change_each(
        client,
        counts,
        request,
        lambda answer, _: ((result.name, _outcome(result)) for result in answer.results),
        # Asked for a second time, a broker answers that the topic already has as many.
        as_good_as_done={Code.INVALID_PARTITIONS},
        final=_NOT_THERE,
        per_request=_TOPICS_PER_REQUEST,
        deadline=deadline,
    )


def delete_records(
    client: KafkaClient, before: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, MaxbrodError]]:
    """Move the start of each log up to this offset. Returns the new log start offsets, and the errors of the others."""

    def request(asked: Mapping[TopicPartition, tuple[int, Leader]]) -> Message:
        topic = DeleteRecordsRequest.DeleteRecordsTopic
        partition = topic.DeleteRecordsPartition
        topics = [
            topic(
                name=name,
                partitions=[partition(partition_index=index, offset=offset) for index, (offset, _) in each.items()],
            )
            for name, each in by_topic(asked).items()
        ]
        return DeleteRecordsRequest(topics=topics, timeout_ms=REQUEST_TIMEOUT_MS)

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int, int]]:
        for where, each in each_partition(answer.topics):
            yield where, each.error_code, each.low_watermark

    failed: dict[TopicPartition, MaxbrodError] = {}
    done = ask_leaders(client, before, request, read, operation="delete records", deadline=deadline, failed=failed)
    return done, failed


def _outcome(answer: Message) -> Outcome:
    return Outcome(code=answer.error_code, details=answer.error_message or None)
