"""Groups of every type, and where they stand: listed by all brokers, offsets told by each group's coordinator.

Hundreds of groups are a handful of requests. What could not be had is told beside what could; nothing is raised.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.client import retry
from maxbrod.kafka.cluster_state import CommittedOffset
from maxbrod.kafka.error_codes import Reaction, answered_with, code_name, reaction
from maxbrod.kafka.messages.share_groups import DescribeShareGroupOffsetsRequest
from maxbrod.kafka.topics import see_topics
from maxbrod.model import topic_id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from maxbrod.kafka.client import KafkaClient
    from maxbrod.kafka.deadline import Deadline

    # A group, the error that it was answered with, and its offsets.
    Answers = Iterator[tuple[str, int, tuple[CommittedOffset, ...]]]

CLASSIC: Final = "classic"
SHARE: Final = "share"
_GROUP: Final = 0  # a type of coordinator
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_TYPES_SINCE: Final = 5  # the first version of ListGroups that tells a group's type
_GROUPS_PER_REQUEST: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    type: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """What was found for each group, and why nothing was for the others."""

    found: Mapping[str, tuple[CommittedOffset, ...]]
    refused: Mapping[str, str]


def list_groups(client: KafkaClient, *, deadline: Deadline) -> tuple[dict[str, ListedGroup], str | None]:
    """Every group that this user may see, and why there may be more than these, if so."""
    found: dict[str, ListedGroup] = {}

    def once(limit: Deadline) -> None:
        before = _coordinators(client, limit)
        for node_id in sorted(client.metadata([], deadline=limit).brokers):
            found.update(_listed_by(client, node_id, limit))
        # A group whose coordinator moved meanwhile may have been listed by neither.
        if _coordinators(client, limit) != before:
            raise UnavailableError("coordinators moved while groups were listed", object_name=_OFFSETS_TOPIC)

    try:
        retry(once, deadline=deadline, what="all brokers to list their groups")
    except UnavailableError as error:
        return found, str(error)
    return found, None


def _coordinators(client: KafkaClient, deadline: Deadline) -> dict[int, tuple[int, int]]:
    """Who leads each partition of the topic of offsets, since which epoch; empty where it is hidden or not there."""
    topic = see_topics(client, [_OFFSETS_TOPIC], deadline=deadline).topics.get(_OFFSETS_TOPIC)
    leaders = {}
    for index, partition in topic.partitions.items() if topic else ():
        if partition.leader is None:
            raise UnavailableError("the partition has no leader now", object_name=f"{_OFFSETS_TOPIC}-{index}")
        leaders[index] = (partition.leader, partition.leader_epoch)
    return leaders


def _listed_by(client: KafkaClient, node_id: int, deadline: Deadline) -> dict[str, ListedGroup]:
    request = ListGroupsRequest(states_filter=[], types_filter=[])
    answer = client.ask_broker(node_id, request, deadline=deadline)
    if answer.error_code:
        raise answered_with(answer.error_code, operation="list groups", object_name=f"broker {node_id}")
    typed = request.API_VERSION >= _TYPES_SINCE  # brokers that do not tell the type know one only
    return {
        each.group_id: ListedGroup(
            group_id=each.group_id,
            type=each.group_type.lower() if typed else CLASSIC,
            state=each.group_state,
            protocol_type=each.protocol_type,
        )
        for each in answer.groups
    }


def read_offsets(
    client: KafkaClient, groups: Collection[ListedGroup], topic_ids: Mapping[str, str], *, deadline: Deadline
) -> GroupOffsets:
    """Where these groups stand in every partition that they ever committed or, for a share group, read."""

    def committed(answer: Any) -> Answers:  # noqa: ANN401 - kafka-python is untyped
        for group in answer.groups:
            yield group.group_id, _error(group), tuple(_committed(group, topic_ids))

    share = {group.group_id for group in groups if group.type == SHARE}
    others = {group.group_id for group in groups if group.type != SHARE}
    plain = _ask_coordinators(client, others, _offset_fetch_request, committed, deadline=deadline)
    shared = _ask_coordinators(client, share, _share_offsets_request, _share_offsets, deadline=deadline)
    return GroupOffsets(found={**plain.found, **shared.found}, refused={**plain.refused, **shared.refused})


def _offset_fetch_request(group_ids: Iterable[str]) -> Any:  # noqa: ANN401 - kafka-python is untyped
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    wanted = [group(group_id=each, topics=None, member_id=None, member_epoch=-1) for each in group_ids]
    # What an open transaction would commit is not committed: the offset before it is the group's.
    return OffsetFetchRequest(groups=wanted, require_stable=False)


def _committed(group: Any, topic_ids: Mapping[str, str]) -> Iterator[CommittedOffset]:  # noqa: ANN401 - untyped
    for topic in group.topics:
        for each in topic.partitions:
            if each.committed_offset >= 0:
                yield CommittedOffset(
                    topic=topic.name,
                    topic_id=topic_ids.get(topic.name),
                    partition=each.partition_index,
                    offset=each.committed_offset,
                    leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                )


def _share_offsets_request(group_ids: Iterable[str]) -> Any:  # noqa: ANN401 - kafka-python is untyped
    group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
    return DescribeShareGroupOffsetsRequest(groups=[group(group_id=each, topics=None) for each in group_ids])


def _share_offsets(answer: Any) -> Answers:  # noqa: ANN401 - kafka-python is untyped
    for group in answer.groups:
        offsets = tuple(
            CommittedOffset(
                topic=topic.topic_name,
                topic_id=topic_id_text(topic.topic_id),
                partition=each.partition_index,
                offset=each.start_offset,
                leader_epoch=each.leader_epoch,
                metadata=None,
            )
            for topic in group.topics
            for each in topic.partitions
            if each.start_offset >= 0
        )
        yield group.group_id, _error(group), offsets


def _error(group: Any) -> int:  # noqa: ANN401 - kafka-python is untyped
    """Of the group, or of the first of its partitions that has one: a group is told whole or not at all."""
    inside = (each.error_code for topic in group.topics for each in topic.partitions)
    return int(group.error_code or next(filter(None, inside), 0))


def _ask_coordinators(
    client: KafkaClient,
    group_ids: Iterable[str],
    request: Callable[[Iterable[str]], Any],
    read: Callable[[Any], Answers],
    *,
    deadline: Deadline,
) -> GroupOffsets:
    """One request for each coordinator and 200 groups; groups whose coordinator moved are asked for again."""
    wanted = sorted(group_ids)
    found: dict[str, tuple[CommittedOffset, ...]] = {}
    refused: dict[str, str] = {}

    def missing() -> list[str]:
        return [each for each in wanted if each not in found and each not in refused]

    def settle(group_id: str, code: int) -> None:
        if reaction(code) is Reaction.FATAL:
            refused[group_id] = code_name(code)

    def once(limit: Deadline) -> None:
        client.metadata([], deadline=limit)  # a coordinator may be a broker that was not there before
        for node_id, portion in _by_coordinator(client, missing(), settle, limit):
            for group_id, code, offsets in read(client.ask_broker(node_id, request(portion), deadline=limit)):
                if code:
                    settle(group_id, code)
                else:
                    found[group_id] = offsets
        if missing():
            raise UnavailableError("a coordinator does not tell the offsets", object_name=f"group {missing()[0]}")

    try:
        retry(once, deadline=deadline, what=f"the coordinators of {len(wanted)} groups") if wanted else None
    except MaxbrodError as error:
        refused |= dict.fromkeys(missing(), str(error))
    return GroupOffsets(found=found, refused=refused)


def _by_coordinator(
    client: KafkaClient, group_ids: list[str], settle: Callable[[str, int], None], deadline: Deadline
) -> Iterator[tuple[int, list[str]]]:
    coordinated: dict[int, list[str]] = defaultdict(list)
    for portion in _portions(group_ids):
        answer = client.ask_any(partial(_coordinator_request, portion), deadline=deadline)
        for each in answer.coordinators:
            if each.error_code:
                settle(each.key, each.error_code)
            else:
                coordinated[each.node_id].append(each.key)
    for node_id, groups in coordinated.items():
        yield from ((node_id, portion) for portion in _portions(groups))


def _coordinator_request(group_ids: list[str]) -> Any:  # noqa: ANN401 - kafka-python is untyped
    return FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=group_ids)


def _portions(group_ids: list[str]) -> Iterator[list[str]]:
    return (group_ids[first : first + _GROUPS_PER_REQUEST] for first in range(0, len(group_ids), _GROUPS_PER_REQUEST))
