"""Puts groups where they stood, after their topics were restored; remembers where they stood before, to put them back.

A group that has members is left alone: Kafka takes no position from outside for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.api.restore_state import read_positions, store_positions
from maxbrod.api.snapshots import find_moment
from maxbrod.errors import CorruptDataError, UnavailableError, UsageError
from maxbrod.kafka.cluster_state import CommittedOffset
from maxbrod.kafka.deadline import Deadline
from maxbrod.kafka.error_codes import Code
from maxbrod.kafka.group_offsets import commit_offsets, delete_offsets
from maxbrod.kafka.groups import SHARE, list_groups, read_offsets
from maxbrod.model import TopicPartition
from maxbrod.planning.restore.choosing import choose_groups
from maxbrod.planning.restore.groups import ExactLog, MovedLog, RestoredTopic, translate_groups
from maxbrod.planning.restore.mapping import decode_map
from maxbrod.planning.restore.obstacles import Obstacle, ObstacleKind
from maxbrod.planning.restore.shares import decode_shares
from maxbrod.planning.restore.wish import OffsetsMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from maxbrod.api.archives import Archive
    from maxbrod.api.restore_report import PartitionReport
    from maxbrod.kafka.client import KafkaClient
    from maxbrod.kafka.cluster_state import ClusterState, Group
    from maxbrod.kafka.outcomes import Outcome
    from maxbrod.planning.restore.groups import GroupOffset
    from maxbrod.planning.restore.plan import RestorePlan
    from maxbrod.storage.interface import Storage

_WITHOUT_MEMBERS: Final = frozenset({"empty", "dead"})
_ACTIVE: Final = "it has members: stop them first"
_SHARE: Final = "positions of share groups are not set yet"
_UNREADABLE: Final = "where it stands cannot be read, so it could not be put back"
_HINT: Final = "see the groups of a run with 'maxbrod show'"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """Of one group in one partition of the target. `refused` says why it was not put there."""

    group: str
    topic: str
    partition: int
    source_offset: int | None
    offset: int | None
    move: str
    why: str | None = None
    refused: str | None = None
    seen_twice_max: int = 0
    """Records from there on that the group had processed before: they have changed their partition."""


def missing_groups(patterns: Sequence[str], snapshot: ClusterState | None) -> Iterator[Obstacle]:
    """Groups that are named in full, and that the archive does not know."""
    known = () if snapshot is None else snapshot.groups or ()
    for name in choose_groups(patterns, known)[1]:
        what = "the archive has no such group"
        yield Obstacle(kind=ObstacleKind.GROUPS, where=name, what=what, hint=_HINT, fatal=True)


def plan_moves(
    archive: Archive, plan: RestorePlan, partitions: Iterable[PartitionReport], patterns: Sequence[str]
) -> tuple[GroupOffset, ...]:
    """Where groups go, as the run knew them that the restore was made from."""
    chosen, missing = choose_groups(patterns, archived_groups(archive, plan))
    if missing:
        raise UsageError(f"the archive has no group {missing[0]}", operation="move groups", hint=_HINT)
    return translate_groups(chosen, restored_topics(plan, partitions)).offsets


def archived_groups(archive: Archive, plan: RestorePlan) -> Sequence[Group]:
    """As the run knew them that the restore was made from."""
    moment = find_moment(archive.storage, archive.catalog.runs(), plan.archive.run_id)
    return (moment.cluster and moment.cluster.groups) or ()


def restored_topics(plan: RestorePlan, partitions: Iterable[PartitionReport]) -> dict[str, RestoredTopic]:
    """By the source's name: what became of each of its partitions."""
    told = {(each.target, each.partition): each for each in partitions}
    found = {}
    for topic in plan.topics:
        target = topic.target
        if target.repartitioned:
            shares = {each: decode_shares(told[target.name, each].map) for each in range(target.partition_count)}
            found[target.source_topic] = RestoredTopic(topic_id=target.topic_id, target=target.name, shares=shares)
            continue
        logs: dict[int, ExactLog | MovedLog] = {}
        for each in topic.partitions:
            report = told[target.name, each.source.partition]
            exact = each.offsets.mode is OffsetsMode.EXACT
            logs[each.source.partition] = (
                ExactLog(start=each.source.first_offset, end=report.end)
                if exact
                else MovedLog(map=decode_map(dict(report.map)))
            )
        found[target.source_topic] = RestoredTopic(topic_id=target.topic_id, target=target.name, logs=logs)
    return found


class Movement:
    """The groups of one restore, at its target."""

    def __init__(self, client: KafkaClient, storage: Storage, plan: RestorePlan, *, patience_s: float) -> None:
        self._client, self._storage = client, storage
        self._restore_id, self._cluster_id = plan.restore_id, plan.cluster_id
        self._patience_s = patience_s

    def look(self, moves: Iterable[GroupOffset]) -> tuple[GroupPosition, ...]:
        """What `apply` would do now. Changes nothing."""
        return self._apply(moves, dry=True)

    def apply(self, moves: Iterable[GroupOffset]) -> tuple[GroupPosition, ...]:
        """Put every group that has no members where it belongs. May be done again."""
        return self._apply(moves, dry=False)

    def roll_back(self) -> tuple[GroupPosition, ...]:
        """Put groups where they stood before this restore first moved them."""
        before: dict[str, dict[TopicPartition, CommittedOffset | None]] = {}
        for document in read_positions(self._storage, self._restore_id):
            for group_id, where, committed in _decode(document):
                before.setdefault(group_id, {}).setdefault(where, committed)
        return tuple(each for group_id, stood in sorted(before.items()) for each in self._put_back(group_id, stood))

    def _apply(self, moves: Iterable[GroupOffset], *, dry: bool) -> tuple[GroupPosition, ...]:
        groups: dict[str, list[GroupOffset]] = {}
        for move in moves:
            groups.setdefault(move.group_id, []).append(move)
        refused, before = self._before(groups)
        wanted = {
            group_id: [each for each in group if each.offset is not None]
            for group_id, group in groups.items()
            if group_id not in refused
        }
        if not dry and any(wanted.values()):
            store_positions(self._storage, self._restore_id, self._encode(wanted, before))
        told = []
        for group_id, group in groups.items():
            outcomes = {} if dry else self._commit(group_id, wanted.get(group_id, ()))
            told += [_position(each, refused.get(group_id), outcomes.get(each.where)) for each in group]
        return tuple(told)

    def _before(
        self, groups: Mapping[str, Sequence[GroupOffset]]
    ) -> tuple[dict[str, str], dict[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Which groups are left alone, and why; where the others stand now."""
        listed, doubt = list_groups(self._client, deadline=self._deadline())
        if doubt is not None:
            raise UnavailableError(f"not every group can be seen: {doubt}", operation="move groups")
        refused = {group_id: _SHARE for group_id, group in groups.items() if group[0].type == SHARE}
        present = [listed[group_id] for group_id in groups if group_id in listed]
        refused |= {each.group_id: _ACTIVE for each in present if each.state.lower() not in _WITHOUT_MEMBERS}
        answers = read_offsets(self._client, present, {}, deadline=self._deadline())
        refused |= {group_id: f"{_UNREADABLE}: {why}" for group_id, why in answers.refused.items()}
        return refused, {
            group_id: {each.where: each for each in answers.found.get(group_id, ())} for group_id in groups
        }

    def _encode(
        self,
        wanted: Mapping[str, Sequence[GroupOffset]],
        before: Mapping[str, Mapping[TopicPartition, CommittedOffset]],
    ) -> dict[str, Any]:
        rows = []
        for group_id, group in wanted.items():
            for where in (each.where for each in group):
                stood = before[group_id].get(where)
                rows.append(
                    {
                        "group": group_id,
                        "topic": where.topic,
                        "partition": where.partition,
                        "offset": None if stood is None else stood.offset,
                        "leader_epoch": -1 if stood is None else stood.leader_epoch,
                        "metadata": None if stood is None else stood.metadata,
                    }
                )
        return {"restore_id": self._restore_id, "cluster_id": self._cluster_id, "positions": rows}

    def _commit(self, group_id: str, moves: Iterable[GroupOffset]) -> dict[TopicPartition, Outcome]:
        wanted = [
            _committed(each.where, each.offset, metadata=each.metadata) for each in moves if each.offset is not None
        ]
        return commit_offsets(self._client, group_id, wanted, deadline=self._deadline())

    def _put_back(
        self, group_id: str, stood: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Iterator[GroupPosition]:
        known = [each for each in stood.values() if each is not None]
        unknown = [where for where, each in stood.items() if each is None]
        outcomes = commit_offsets(self._client, group_id, known, deadline=self._deadline())
        outcomes |= delete_offsets(self._client, group_id, unknown, deadline=self._deadline())
        for where, committed in stood.items():
            outcome = outcomes[where]
            # A group that is gone stands nowhere, which is where it stood.
            gone = committed is None and outcome.code == Code.GROUP_ID_NOT_FOUND
            yield GroupPosition(
                group=group_id,
                topic=where.topic,
                partition=where.partition,
                source_offset=None,
                offset=None if committed is None else committed.offset,
                move="put back" if committed is not None else "forgotten",
                refused=None if outcome.done or gone else _reason(outcome),
            )

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def _position(move: GroupOffset, refused: str | None, outcome: Outcome | None) -> GroupPosition:
    if refused is None and outcome is not None and not outcome.done:
        refused = _reason(outcome)
    return GroupPosition(
        group=move.group_id,
        topic=move.where.topic,
        partition=move.where.partition,
        source_offset=move.source_offset,
        offset=move.offset,
        move=str(move.move),
        why=move.why,
        # What is skipped would not have been put anywhere, whatever the group is like.
        refused=None if move.offset is None else refused,
        seen_twice_max=move.seen_twice_max,
    )


def _reason(outcome: Outcome) -> str:
    return _ACTIVE if outcome.code in {Code.UNKNOWN_MEMBER_ID, Code.NON_EMPTY_GROUP} else outcome.reason


def _committed(
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


def _decode(document: Mapping[str, Any]) -> Iterator[tuple[str, TopicPartition, CommittedOffset | None]]:
    try:
        for each in document["positions"]:
            where = TopicPartition(topic=str(each["topic"]), partition=int(each["partition"]))
            offset, epoch, metadata = each["offset"], int(each["leader_epoch"]), each["metadata"]
            stood = None if offset is None else _committed(where, int(offset), leader_epoch=epoch, metadata=metadata)
            yield str(each["group"]), where, stood
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(f"positions of groups cannot be read: {error!r}", operation="put groups back") from error
