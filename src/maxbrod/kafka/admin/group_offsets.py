"""Commits and deletes the offsets of groups without members. `state.groups` reads them.

Kafka accepts offsets from outside only for a group without members. For an active group the outcome of each partition
is the error, and nothing changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.admin.outcomes import Outcome
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import GROUP, ask_for_coordinator
from maxbrod.kafka.wire.error_codes import Code, Reaction, reaction
from maxbrod.kafka.wire.partitions import by_topic, each_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.model import TopicPartition

ACTIVE: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.NON_EMPTY_GROUP, Code.GROUP_SUBSCRIBED_TO_TOPIC})
"""The error codes for a group with members."""
_NO_GENERATION: Final = -1
# The offsets of a missing topic can be neither committed nor deleted, and waiting does not help.
_FINAL: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION})


def commit_offsets(
    client: KafkaClient, group_id: str, offsets: Iterable[CommittedOffset], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Commit these offsets with their leader epochs and metadata. Creates the group if it does not exist."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    wanted = {
        offset.where: topic.OffsetCommitRequestPartition(
            partition_index=offset.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )
        for offset in offsets
    }

    def request() -> Message:
        return OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=_NO_GENERATION,
            member_id="",
            group_instance_id=None,
            topics=[topic(name=name, partitions=list(each.values())) for name, each in by_topic(wanted).items()],
        )

    return ask_until_final(client, group_id, wanted, request, _each, deadline=deadline) if wanted else {}


def delete_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Delete the committed offsets of these partitions."""
    wanted = dict.fromkeys(partitions)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic

    def request() -> Message:
        return OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                topic(
                    name=name,
                    partitions=[topic.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
                )
                for name, indexes in by_topic(wanted).items()
            ],
        )

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        if answer.error_code:
            yield from ((where, answer.error_code) for where in wanted)
        else:
            yield from _each(answer)

    return ask_until_final(client, group_id, wanted, request, read, deadline=deadline) if wanted else {}


def _each(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
    return ((where, each.error_code) for where, each in each_partition(answer.topics))


def ask_until_final(
    client: KafkaClient,
    group_id: str,
    wanted: Iterable[TopicPartition],
    request: Callable[[], Message],
    read: Callable[[Message], Iterator[tuple[TopicPartition, int]]],
    *,
    deadline: Deadline | None,
) -> dict[TopicPartition, Outcome]:
    """Send an idempotent request to the coordinator until no partition has a retriable error."""

    def once(limit: Deadline) -> dict[TopicPartition, Outcome]:
        refused, node_id = ask_for_coordinator(client, group_id, GROUP, deadline=limit)
        codes = (
            dict.fromkeys(wanted, refused)
            if refused
            else dict(read(client.ask_broker(node_id, request(), deadline=limit)))
        )
        for where, code in codes.items():
            if code not in _FINAL and reaction(code) is not Reaction.FATAL and code:
                raise UnavailableError(f"the coordinator answered {Outcome(code=code).reason}", object_name=str(where))
        return {where: Outcome(code=code) for where, code in codes.items()}

    return retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}")
