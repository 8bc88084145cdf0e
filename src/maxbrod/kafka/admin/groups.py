"""Commits and deletes the offsets of groups without members, and removes members. `state.groups` reads offsets.

Kafka accepts offsets from outside only for a group without members. For an active group the outcome of each partition
is the error, and nothing changes. Share groups have offsets since Kafka 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import LeaveGroupRequest, OffsetCommitRequest, OffsetDeleteRequest

from maxbrod.errors import UnavailableError
from maxbrod.kafka.admin.outcomes import Outcome
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import (
    GROUP,
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    ask_for_coordinator,
    find_coordinator,
)
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, reaction
from maxbrod.kafka.wire.metadata import by_topic, each_partition
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline


ACTIVE: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.NON_EMPTY_GROUP, Code.GROUP_SUBSCRIBED_TO_TOPIC})
"""The error codes for a group with members."""
_NO_GENERATION: Final = -1
# The offsets of a missing topic can be neither committed nor deleted, and waiting does not help.
_FINAL: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION})

_REMOVE: Final = "remove the members of a group"
_REASON: Final = "maxbrod moves the group"


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


def set_share_offsets(
    client: KafkaClient, group_id: str, offsets: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Set the start offsets of the group. Creates the group if it does not exist."""
    topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = topic.AlterShareGroupOffsetsRequestPartition

    def request() -> Message:
        topics = [
            topic(
                topic_name=name,
                partitions=[partition(partition_index=index, start_offset=offset) for index, offset in each.items()],
            )
            for name, each in by_topic(offsets).items()
        ]
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        if answer.error_code:
            yield from ((where, answer.error_code) for where in offsets)
        for topic in () if answer.error_code else answer.responses:
            for partition in topic.partitions:
                yield TopicPartition(topic=topic.topic_name, partition=partition.partition_index), partition.error_code

    return ask_until_final(client, group_id, offsets, request, read, deadline=deadline) if offsets else {}


def delete_share_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Delete the offsets of the topics of these partitions. Kafka deletes those of all partitions of a topic."""
    wanted = list(partitions)
    topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic

    def request() -> Message:
        names = sorted({where.topic for where in wanted})
        return DeleteShareGroupOffsetsRequest(group_id=group_id, topics=[topic(topic_name=name) for name in names])

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        codes = {response.topic_name: response.error_code for response in answer.responses or ()}
        yield from ((where, answer.error_code or codes.get(where.topic, 0)) for where in wanted)

    return ask_until_final(client, group_id, wanted, request, read, deadline=deadline) if wanted else {}


def remove_members(client: KafkaClient, group_id: str, *, deadline: Deadline | None = None) -> int:
    """Remove all members and return their number: 0 for a group of another protocol or one that does not exist.

    Kafka allows this for groups of the classic protocol. A removed member notices at its next heartbeat, joins again,
    and resumes at the offsets that the group has then. Members of the newer protocols can only leave by themselves.
    """

    def once(limit: Deadline) -> int:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        members = _members(client, node_id, group_id, limit)
        if members:
            answer = client.ask_broker(node_id, _leave(group_id, members), deadline=limit)
            for code in (answer.error_code, *(member.error_code for member in answer.members)):
                # It has left by itself in the meantime.
                if code and code != Code.UNKNOWN_MEMBER_ID:
                    raise answered_with(code, operation=_REMOVE, object_name=group_id)
        return len(members)

    return retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}", stop=client.stop)


def _members(client: KafkaClient, node_id: int, group_id: str, deadline: Deadline) -> list[tuple[str, str | None]]:
    request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
    (found,) = client.ask_broker(node_id, request, deadline=deadline).groups
    if found.error_code:
        raise answered_with(found.error_code, operation=_REMOVE, object_name=group_id)
    if not found.members and found.group_state == "PreparingRebalance":
        raise UnavailableError("members are joining", operation=_REMOVE, object_name=group_id)
    return [(member.member_id, member.group_instance_id) for member in found.members]


def _leave(group_id: str, members: list[tuple[str, str | None]]) -> Message:
    identity = LeaveGroupRequest.MemberIdentity
    leaving = [
        identity(member_id=member_id, group_instance_id=instance_id, reason=_REASON)
        for member_id, instance_id in members
    ]
    return LeaveGroupRequest(group_id=group_id, member_id="", members=leaving)
