"""Reads groups of every type and their offsets: all brokers list groups, and coordinators return offsets.

Hundreds of groups need a handful of requests. Failures are returned beside the results; nothing is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest

from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.topics import see_topics
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import Answers, DescribeShareGroupOffsetsRequest, ask_coordinators
from maxbrod.kafka.wire.error_codes import answered_with
from maxbrod.kafka.wire.metadata import by_topic
from maxbrod.model import TopicPartition, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline

    # A group, its error code, and its offsets.
    GroupOffsets = tuple[str, int, tuple[CommittedOffset, ...]]

CLASSIC: Final = "classic"
SHARE: Final = "share"
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_TYPES_SINCE: Final = 5  # the first version of ListGroups with the type of a group


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
    return {index: (each.leader, each.leader_epoch) for index, each in topic.partitions.items()} if topic else {}


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

    def committed(answer: Message) -> Iterator[GroupOffsets]:
        return ((group.group_id, _error(group), tuple(_committed(group, topic_ids))) for group in answer.groups)

    share = {group.group_id for group in groups if group.type == SHARE}
    others = {group.group_id for group in groups if group.type != SHARE}
    offsets = ask_coordinators(client, others, _offset_fetch_request, committed, deadline=deadline)
    of_share = ask_coordinators(client, share, _share_offsets_request, _share_offsets, deadline=deadline)
    offsets.found |= of_share.found
    offsets.refused |= of_share.refused
    return offsets


def _offset_fetch_request(group_ids: Iterable[str]) -> Message:
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    wanted = [group(group_id=group_id, topics=None, member_id=None, member_epoch=-1) for group_id in group_ids]
    # Offsets in an open transaction are not committed: the group has the offset before them.
    return OffsetFetchRequest(groups=wanted, require_stable=False)


def read_settled_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline
) -> tuple[CommittedOffset, ...]:
    """The offsets of some partitions, once no open transaction may still change them. UnavailableError: unknown."""
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = [
        group.OffsetFetchRequestTopics(name=name, partition_indexes=list(each))
        for name, each in by_topic(dict.fromkeys(partitions)).items()
    ]

    def request(group_ids: Iterable[str]) -> Message:
        wanted = [group(group_id=group_id, topics=topics, member_id=None, member_epoch=-1) for group_id in group_ids]
        return OffsetFetchRequest(groups=wanted, require_stable=True)

    def committed(answer: Message) -> Iterator[GroupOffsets]:
        return ((group.group_id, _error(group), tuple(_committed(group, {}))) for group in answer.groups)

    answers = ask_coordinators(client, [group_id], request, committed, deadline=deadline)
    for why in answers.refused.values():
        raise UnavailableError(f"the offsets of the group cannot be read: {why}", object_name=group_id)
    return answers.found[group_id]


def _committed(group: Message, topic_ids: Mapping[str, str]) -> Iterator[CommittedOffset]:
    for topic in group.topics:
        for partition in topic.partitions:
            if partition.committed_offset >= 0:
                yield CommittedOffset(
                    topic=topic.name,
                    topic_id=topic_ids.get(topic.name),
                    partition=partition.partition_index,
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                )


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
