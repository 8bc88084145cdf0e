"""Groups of every type: lists them, reads their offsets, commits and deletes offsets, and removes members.

All brokers list groups, and coordinators return offsets: hundreds of groups need a handful of requests. Failures of
reading are returned beside the results; nothing is raised.

Kafka accepts offsets from outside only for a group without members. For an active group the outcome of each partition
is the error, and nothing changes. Share groups have offsets since Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import LeaveGroupRequest, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest

from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.admin import ChangeOutcome
from maxbrod.kafka.state.cluster_state import CommittedOffset, Subtopology
from maxbrod.kafka.state.topics import see_topics
from maxbrod.kafka.wire.client import KafkaClient, each_partition, retry, topic_messages
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.coordination import (
    GROUP,
    AlterShareGroupOffsetsRequest,
    Answers,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    OlderForm,
    ask_coordinators,
    ask_for_coordinator,
    find_coordinator,
)
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, Reaction, answered_with, reaction
from maxbrod.kafka.wire.messages import message_pair
from maxbrod.model import TopicPartition, topic_id_text

GroupOffsets: TypeAlias = tuple[str, int, tuple[CommittedOffset, ...]]
"""A group, its error code, and its offsets."""
CLASSIC: Final = "classic"
SHARE: Final = "share"
STREAMS: Final = "streams"
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_OFFSETS_OF_ONE: Final = 7  # the last version of OffsetFetch with one group
_TYPES_SINCE: Final = 5  # the first version of ListGroups with the type of a group
_StreamsGroupDescribeRequest, _described = message_pair("StreamsGroupDescribe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    type: str
    state: str
    protocol_type: str


def list_groups(client: KafkaClient, *, deadline: Deadline) -> tuple[dict[str, ListedGroup], str | None]:
    """Every group that this user may see, and the reason if the list may be incomplete."""
    found: dict[str, ListedGroup] = {}

    def once(limit: Deadline) -> None:
        before = _coordinators(client, limit)
        failure: UnavailableError | None = None
        for node_id in sorted(client.metadata([], deadline=limit).brokers):
            try:
                found.update(_listed_by(client, node_id, limit))
            except UnavailableError as error:
                failure = error
        if failure is not None:
            raise failure
        after = _coordinators(client, limit)
        if any(leader is None for leader, _ in after.values()):
            raise UnavailableError(
                "a partition has no leader now, so its groups have no coordinator", object_name=_OFFSETS_TOPIC
            )
        if after != before:  # neither the old nor the new coordinator may have listed a group
            raise UnavailableError("coordinators moved while groups were listed", object_name=_OFFSETS_TOPIC)

    try:
        retry(once, deadline=deadline, what="all brokers to list their groups", stop=client.stop)
    except MaxbrodError as error:
        return found, str(error)
    return found, None


def _coordinators(client: KafkaClient, deadline: Deadline) -> dict[int, tuple[int | None, int]]:
    """Leader and epoch of each partition of the offsets topic; empty if the topic is hidden or does not exist."""
    topic = see_topics(client, [_OFFSETS_TOPIC], deadline=deadline).topics.get(_OFFSETS_TOPIC)
    return (
        {index: (partition.leader, partition.leader_epoch) for index, partition in topic.partitions.items()}
        if topic
        else {}
    )


def _listed_by(client: KafkaClient, node_id: int, deadline: Deadline) -> dict[str, ListedGroup]:
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    answer = client.ask_broker(node_id, request, deadline=deadline)
    if answer.error_code:
        raise answered_with(answer.error_code, operation="list groups", object_name=f"broker {node_id}")
    typed = request.API_VERSION >= _TYPES_SINCE  # older brokers have only one type
    return {
        group.group_id: ListedGroup(
            group_id=group.group_id,
            type=group.group_type.lower() if typed else CLASSIC,
            state=group.group_state,
            protocol_type=group.protocol_type,
        )
        for group in answer.groups
    }


def read_offsets(
    client: KafkaClient, groups: Collection[ListedGroup], topic_ids: Mapping[str, str], *, deadline: Deadline
) -> Answers[tuple[CommittedOffset, ...]]:
    """The offsets of these groups in every partition that they ever committed or, for a share group, read."""
    share = {group.group_id for group in groups if group.type == SHARE}
    others = {group.group_id for group in groups if group.type != SHARE}
    offsets = ask_coordinators(
        client,
        others,
        _offset_fetch_request,
        partial(_committed, topic_ids=topic_ids),
        deadline=deadline,
        older=OlderForm(request=_offsets_of_one_request, read=partial(_committed_by, topic_ids=topic_ids)),
    )
    of_share = ask_coordinators(client, share, _share_offsets_request, _share_offsets, deadline=deadline)
    offsets.found |= of_share.found
    offsets.refused |= of_share.refused
    return offsets


def read_topologies(
    client: KafkaClient, groups: Collection[ListedGroup], *, deadline: Deadline
) -> Answers[tuple[Subtopology, ...] | None]:
    """The topologies of streams groups, which exist since Kafka 4.1; None for a group that has not told one."""
    streams = {group.group_id for group in groups if group.type == STREAMS}
    return ask_coordinators(client, streams, _topologies_request, _topologies, deadline=deadline)


def _topologies_request(group_ids: Iterable[str]) -> Message:
    return _StreamsGroupDescribeRequest(group_ids=list(group_ids), include_authorized_operations=False)


def _topologies(answer: Message) -> Iterator[tuple[str, int, tuple[Subtopology, ...] | None]]:
    for group in answer.groups:
        parts = None if group.topology is None else group.topology.subtopologies
        yield group.group_id, group.error_code, None if parts is None else tuple(map(_subtopology, parts))


def _subtopology(part: Message) -> Subtopology:
    return Subtopology(
        subtopology_id=part.subtopology_id,
        source_topics=tuple(sorted(part.source_topics)),
        sink_topics=tuple(sorted(part.repartition_sink_topics)),
        repartition_topics=tuple(sorted(topic.name for topic in part.repartition_source_topics)),
        changelog_topics=tuple(sorted(topic.name for topic in part.state_changelog_topics)),
    )


def _offset_fetch_request(group_ids: Iterable[str]) -> Message:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    wanted = [group(group_id=group_id, topics=None, member_id=None, member_epoch=-1) for group_id in group_ids]
    # Offsets in an open transaction are not committed: the group has the offset before them.
    return OffsetFetchRequest(groups=wanted, require_stable=False)


def _offsets_of_one_request(group_id: str) -> Message:
    request = OffsetFetchRequest(group_id=group_id, topics=None, require_stable=False)
    request.API_VERSION = _OFFSETS_OF_ONE
    return request


def _committed(answer: Message, topic_ids: Mapping[str, str]) -> Iterator[GroupOffsets]:
    for group in answer.groups:
        yield _committed_by(group.group_id, group, topic_ids)


def _committed_by(group_id: str, answer: Message, topic_ids: Mapping[str, str]) -> GroupOffsets:
    """The offsets of one group: a part of an answer, or all of one in the older form."""
    offsets = tuple(
        CommittedOffset(
            topic=topic.name,
            topic_id=topic_ids.get(topic.name),
            partition=partition.partition_index,
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.metadata,
        )
        for topic in answer.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    )
    return group_id, _error(answer), offsets


def _share_offsets_request(group_ids: Iterable[str]) -> Message:
    group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    return DescribeShareGroupOffsetsRequest(groups=[group(group_id=group_id, topics=None) for group_id in group_ids])


def _share_offsets(answer: Message) -> Iterator[GroupOffsets]:
    for group in answer.groups:
        offsets = tuple(
            CommittedOffset(
                topic=topic.topic_name,
                topic_id=topic_id_text(topic.topic_id),
                partition=partition.partition_index,
                offset=partition.start_offset,
                leader_epoch=partition.leader_epoch,
                metadata=None,
            )
            for topic in group.topics
            for partition in topic.partitions
            if partition.start_offset >= 0
        )
        yield group.group_id, _error(group), offsets


def _error(group: Message) -> int:
    """The error of the group or of its first partition with one. The offsets of a group are all known or none."""
    inside = (partition.error_code for topic in group.topics for partition in topic.partitions)
    return int(group.error_code or next(filter(None, inside), 0))


ACTIVE: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.NON_EMPTY_GROUP, Code.GROUP_SUBSCRIBED_TO_TOPIC})
"""The error codes for a group with members."""
_NO_GENERATION: Final = -1
# The offsets of a missing topic can be neither committed nor deleted, and waiting does not help.
_FINAL: Final = frozenset({Code.UNKNOWN_TOPIC_OR_PARTITION})

_REMOVE: Final = "remove the members of a group"
_REASON: Final = "maxbrod moves the group"


def commit_offsets(
    client: KafkaClient, group_id: str, offsets: Iterable[CommittedOffset], *, deadline: Deadline | None = None
) -> dict[TopicPartition, ChangeOutcome]:
    """Commit these offsets with their leader epochs and metadata. Creates the group if it does not exist."""
    wanted = {offset.where: offset for offset in offsets}

    def request() -> Message:
        return OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=_NO_GENERATION,
            member_id="",
            group_instance_id=None,
            topics=committed_topics(wanted, OffsetCommitRequest),
        )

    return _ask_until_final(client, group_id, wanted, request, deadline=deadline)


def committed_topics(wanted: Mapping[TopicPartition, CommittedOffset], request_class: Message) -> list[Message]:
    """The topics of an OffsetCommit request, or of a TxnOffsetCommit request, which has the same fields."""
    topic = getattr(request_class, f"{request_class.__name__}Topic")
    partition = getattr(topic, f"{request_class.__name__}Partition")
    return topic_messages(
        wanted,
        topic,
        lambda index, offset: partition(
            partition_index=index,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        ),
    )


def delete_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, ChangeOutcome]:
    wanted = dict.fromkeys(partitions)
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic

    def request() -> Message:
        topics = topic_messages(
            wanted, topic, lambda index, _: topic.OffsetDeleteRequestPartition(partition_index=index)
        )
        return OffsetDeleteRequest(group_id=group_id, topics=topics)

    return _ask_until_final(client, group_id, wanted, request, deadline=deadline)


def set_share_offsets(
    client: KafkaClient, group_id: str, offsets: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> dict[TopicPartition, ChangeOutcome]:
    """Set the start offsets of the group. Creates the group if it does not exist."""
    topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = topic.AlterShareGroupOffsetsRequestPartition

    def request() -> Message:
        topics = topic_messages(
            offsets, topic, lambda index, offset: partition(partition_index=index, start_offset=offset), "topic_name"
        )
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        for found in answer.responses:
            for partition in found.partitions:
                yield TopicPartition(topic=found.topic_name, partition=partition.partition_index), partition.error_code

    return _ask_until_final(client, group_id, offsets, request, read, deadline=deadline)


def delete_share_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, ChangeOutcome]:
    """Delete the offsets of the topics of these partitions. Kafka deletes those of all partitions of a topic."""
    wanted = list(partitions)
    topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic

    def request() -> Message:
        names = sorted({where.topic for where in wanted})
        return DeleteShareGroupOffsetsRequest(group_id=group_id, topics=[topic(topic_name=name) for name in names])

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        codes = {response.topic_name: response.error_code for response in answer.responses or ()}
        return ((where, codes.get(where.topic, 0)) for where in wanted)

    return _ask_until_final(client, group_id, wanted, request, read, deadline=deadline)


def _each(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
    return ((where, partition.error_code) for where, partition in each_partition(answer.topics))


def _ask_until_final(
    client: KafkaClient,
    group_id: str,
    wanted: Collection[TopicPartition],
    request: Callable[[], Message],
    read: Callable[[Message], Iterator[tuple[TopicPartition, int]]] = _each,
    *,
    deadline: Deadline | None,
) -> dict[TopicPartition, ChangeOutcome]:
    """Send an idempotent request to the coordinator until no partition has a retriable error."""

    def once(limit: Deadline) -> dict[TopicPartition, ChangeOutcome]:
        refused, node_id = ask_for_coordinator(client, group_id, GROUP, deadline=limit)
        if not refused:
            answer = client.ask_broker(node_id, request(), deadline=limit)
            refused = getattr(answer, "error_code", 0)
        codes = dict.fromkeys(wanted, refused) if refused else dict(read(answer))
        for where, code in codes.items():
            if code not in _FINAL and reaction(code) is not Reaction.FATAL and code:
                raise UnavailableError(
                    f"the coordinator answered {ChangeOutcome(code=code).reason}", object_name=str(where)
                )
        return {where: ChangeOutcome(code=code) for where, code in codes.items()}

    return retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}") if wanted else {}


def remove_members(client: KafkaClient, group_id: str, *, deadline: Deadline | None = None) -> int:
    """Remove all members and return their number: 0 for a group of another protocol or one that does not exist.

    Kafka allows this for groups of the classic protocol. A removed member notices at its next heartbeat, joins again,
    and resumes at the offsets that the group has then. Members of the newer protocols can only leave by themselves.
    """
    identity = LeaveGroupRequest.MemberIdentity

    def once(limit: Deadline) -> int:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        request = DescribeGroupsRequest(groups=[group_id], include_authorized_operations=False)
        (found,) = client.ask_broker(node_id, request, deadline=limit).groups
        if found.error_code:
            raise answered_with(found.error_code, operation=_REMOVE, object_name=group_id)
        if not found.members and found.group_state == "PreparingRebalance":
            raise UnavailableError("members are joining", operation=_REMOVE, object_name=group_id)
        leaving = [
            identity(member_id=member.member_id, group_instance_id=member.group_instance_id, reason=_REASON)
            for member in found.members
        ]
        if leaving:
            leave = LeaveGroupRequest(group_id=group_id, member_id="", members=leaving)
            answer = client.ask_broker(node_id, leave, deadline=limit)
            for code in (answer.error_code, *(member.error_code for member in answer.members)):
                # It has left by itself in the meantime.
                if code and code != Code.UNKNOWN_MEMBER_ID:
                    raise answered_with(code, operation=_REMOVE, object_name=group_id)
        return len(leaving)

    return retry(once, deadline=deadline, what=f"the coordinator of the group {group_id}", stop=client.stop)
