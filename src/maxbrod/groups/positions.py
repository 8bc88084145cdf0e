"""Where groups stood before a restore moved them, as the document that the archive keeps of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maxbrod.errors import CorruptDataError
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.groups import CLASSIC
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.groups.plan import GroupOffset


def committed_at(
    where: TopicPartition, offset: int, *, leader_epoch: int = -1, metadata: str | None = None
) -> CommittedOffset:
    return CommittedOffset(
        topic=where.topic,
        topic_id=None,
        partition=where.partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
    )


def encode_positions(
    wanted: Mapping[str, Sequence[GroupOffset]], before: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
) -> list[dict[str, Any]]:
    """A row for every move that is wanted; without an offset where the group stood nowhere."""
    return [
        _row(group_id, move, before[group_id].get(move.where)) for group_id, group in wanted.items() for move in group
    ]


def _row(group_id: str, move: GroupOffset, stood: CommittedOffset | None) -> dict[str, Any]:
    return {
        "group": group_id,
        "type": move.type,
        "topic": move.where.topic,
        "partition": move.where.partition,
        "offset": None if stood is None else stood.offset,
        "leader_epoch": -1 if stood is None else stood.leader_epoch,
        "metadata": None if stood is None else stood.metadata,
    }


def decode_positions(
    document: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, str], TopicPartition, CommittedOffset | None]]:
    """Each group's id and type, the partition, and where the group stood there."""
    try:
        for each in document["positions"]:
            where = TopicPartition(topic=str(each["topic"]), partition=int(each["partition"]))
            offset, epoch, metadata = each["offset"], int(each["leader_epoch"]), each["metadata"]
            stood = None if offset is None else committed_at(where, int(offset), leader_epoch=epoch, metadata=metadata)
            yield (str(each["group"]), str(each.get("type", CLASSIC))), where, stood
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"positions of groups cannot be read: {error!r}", operation="put groups back") from error
