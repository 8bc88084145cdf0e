"""The groups of a restore: commits their offsets after their topics were restored, and rolls them back.

The offsets of a group with members stay, because Kafka accepts none from outside then. With `force` its members are
removed for a moment first.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from pydantic import TypeAdapter, ValidationError

from maxbrod.archive.archive import open_archive
from maxbrod.errors import CorruptDataError, RefusedError, UnavailableError, UnsupportedFormatError, UsageError
from maxbrod.groups.moves import WITHOUT_MEMBERS, GroupPosition, MissingGroup, plan_moves
from maxbrod.kafka.admin.groups import (
    ACTIVE,
    commit_offsets,
    delete_offsets,
    delete_share_offsets,
    remove_members,
    set_share_offsets,
)
from maxbrod.kafka.admin.outcomes import Outcome
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.groups import CLASSIC, SHARE, ListedGroup, list_groups, read_offsets
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import TopicPartition
from maxbrod.restore.report import PartitionReport
from maxbrod.restore.state import finished_restores, read_positions, read_restore, store_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.groups.plan import GroupMove
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.storage.interface import Storage


Outcomes: TypeAlias = "dict[TopicPartition, Outcome]"

_ACTIVE: Final = "it has members: stop them first"
_STAYING: Final = "it has members of a newer protocol, which cannot be removed from outside: stop them first"
_UNREADABLE: Final = "its current offsets cannot be read, so a rollback would be impossible"
# A removed member rejoins with its next heartbeat, some seconds later, so a second removal is rare.
_REMOVALS_MAX: Final = 20

_OPERATION = "move groups"


class Movement:
    """The groups of one restore, at its target."""

    def __init__(
        self, client: KafkaClient, storage: Storage, plan: RestorePlan, *, patience_s: float, force: bool = False
    ) -> None:
        self._client, self._storage = client, storage
        self._restore_id, self._cluster_id = plan.restore_id, plan.cluster_id
        self._patience_s = patience_s
        self._force = force

    def look(self, moves: Iterable[GroupMove]) -> tuple[GroupPosition, ...]:
        """The result that `apply` would have now. Changes nothing."""
        return self._apply(moves, dry=True)

    def apply(self, moves: Iterable[GroupMove]) -> tuple[GroupPosition, ...]:
        """Commit the offsets of every group without members, and of the others with `force`. May be repeated."""
        return self._apply(moves, dry=False)

    def roll_back(self) -> tuple[GroupPosition, ...]:
        """Commit the offsets that groups had before this restore first moved them."""
        before: dict[tuple[str, str], dict[TopicPartition, CommittedOffset | None]] = {}
        for document in read_positions(self._storage, self._restore_id):
            for group, where, committed in decode_positions(document):
                before.setdefault(group, {}).setdefault(where, committed)
        return tuple(each for group, previous in sorted(before.items()) for each in self._put_back(*group, previous))

    def _apply(self, moves: Iterable[GroupMove], *, dry: bool) -> tuple[GroupPosition, ...]:
        groups: dict[str, list[GroupMove]] = {}
        for move in moves:
            groups.setdefault(move.group_id, []).append(move)
        listed = self._listed()
        refused, before = self._before(groups, listed)
        to_commit = {
            group_id: [each for each in group if each.offset is not None]
            for group_id, group in groups.items()
            if group_id not in refused
        }
        if not dry and any(to_commit.values()):
            # Durable before the first change: a crash in between must not lose the way back.
            positions = encode_positions(to_commit, before)
            document = {"restore_id": self._restore_id, "cluster_id": self._cluster_id, "positions": positions}
            store_positions(self._storage, self._restore_id, document)
        results = []
        for group_id, group in groups.items():
            forced = group_id not in refused and _is_active(listed.get(group_id))
            mover = self._mover(group_id, group[0].type, forced=forced)
            outcomes = {} if dry else mover.commit(to_commit.get(group_id, ()))
            results += [
                _position(each, refused.get(group_id), outcomes.get(each.where), forced=forced) for each in group
            ]
        return tuple(results)

    def _listed(self) -> dict[str, ListedGroup]:
        listed, doubt = list_groups(self._client, deadline=self._deadline())
        if doubt is not None:
            raise UnavailableError(f"not every group can be listed: {doubt}", operation="move groups")
        return listed

    def _before(
        self, groups: Mapping[str, Sequence[GroupMove]], listed: Mapping[str, ListedGroup]
    ) -> tuple[dict[str, str], dict[str, Mapping[TopicPartition, CommittedOffset]]]:
        """The groups that are refused, with the reason, and the current offsets of the others."""
        present = [listed[group_id] for group_id in groups if group_id in listed]
        active = [each for each in present if _is_active(each)]
        kept = [each for each in active if not self._force or each.type != CLASSIC]
        refused = {each.group_id: _STAYING if self._force else _ACTIVE for each in kept}
        answers = read_offsets(self._client, present, {}, deadline=self._deadline())
        refused |= {group_id: f"{_UNREADABLE}: {why}" for group_id, why in answers.refused.items()}
        return refused, {
            group_id: {each.where: each for each in answers.found.get(group_id, ())} for group_id in groups
        }

    def _put_back(
        self, group_id: str, kind: str, previous: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Iterator[GroupPosition]:
        outcomes = self._mover(group_id, kind, forced=self._force).put_back(previous)
        for where, committed in previous.items():
            outcome = outcomes[where]
            # A group that no longer exists has no offsets, as before.
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

    def _mover(self, group_id: str, kind: str, *, forced: bool) -> _GroupMover:
        return _GroupMover(self._client, group_id, share=kind == SHARE, forced=forced, patience_s=self._patience_s)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


class _GroupMover:
    """Changes the offsets of one group, by the requests for its type."""

    def __init__(self, client: KafkaClient, group_id: str, *, share: bool, forced: bool, patience_s: float) -> None:
        self._client, self._group_id = client, group_id
        self._share, self._forced, self._patience_s = share, forced, patience_s

    def commit(self, moves: Iterable[GroupMove]) -> Outcomes:
        offsets = [
            _committed_at(move.where, move.offset, metadata=move.metadata) for move in moves if move.offset is not None
        ]
        return self._change([offset.where for offset in offsets], lambda: self._commit(offsets))

    def put_back(self, previous: Mapping[TopicPartition, CommittedOffset | None]) -> Outcomes:
        known = [each for each in previous.values() if each is not None]
        unknown = [where for where, each in previous.items() if each is None]
        # Delete first: a share group deletes the offsets of whole topics, including those to be committed here.
        return self._change(previous, lambda: {**self._delete(unknown), **self._commit(known)})

    def _change(self, partitions: Iterable[TopicPartition], change: Callable[[], Outcomes]) -> Outcomes:
        """With force, remove the members first, and again if they rejoin too early."""
        try:
            outcomes: Outcomes = {}
            for _ in range(_REMOVALS_MAX):
                if self._forced:
                    remove_members(self._client, self._group_id, deadline=self._deadline())
                outcomes = change()
                if not self._forced or not any(outcome.code in ACTIVE for outcome in outcomes.values()):
                    break
        except UnsupportedFormatError as error:
            return dict.fromkeys(partitions, Outcome(code=Code.UNSUPPORTED_VERSION, details=str(error)))
        return outcomes

    def _commit(self, offsets: Sequence[CommittedOffset]) -> Outcomes:
        if self._share:
            by_partition = {offset.where: offset.offset for offset in offsets}
            return set_share_offsets(self._client, self._group_id, by_partition, deadline=self._deadline())
        return commit_offsets(self._client, self._group_id, offsets, deadline=self._deadline())

    def _delete(self, partitions: Sequence[TopicPartition]) -> Outcomes:
        delete = delete_share_offsets if self._share else delete_offsets
        return delete(self._client, self._group_id, partitions, deadline=self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def _is_active(group: ListedGroup | None) -> bool:
    return group is not None and group.state.lower() not in WITHOUT_MEMBERS


def _position(move: GroupMove, refused: str | None, outcome: Outcome | None, *, forced: bool) -> GroupPosition:
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
        # A skipped offset would not be committed in any case.
        refused=None if move.offset is None else refused,
        forced=forced and move.offset is not None,
        run_id=move.run_id,
        seen_twice_max=move.seen_twice_max,
    )


def _reason(outcome: Outcome) -> str:
    return _ACTIVE if outcome.code in ACTIVE else outcome.reason


# The previous offsets, as the archive keeps them


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredPosition:
    """The offset of a group before the restore moved it; without `offset` it had none."""

    group: str
    type: str = CLASSIC
    topic: str
    partition: int
    offset: int | None
    leader_epoch: int
    metadata: str | None


_STORED: Final = TypeAdapter(tuple[_StoredPosition, ...])


def encode_positions(
    moves: Mapping[str, Sequence[GroupMove]], before: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
) -> list[dict[str, Any]]:
    """A row for every offset that is about to be committed, by group."""
    return [
        asdict(_stored(group_id, move, before[group_id].get(move.where)))
        for group_id, group in moves.items()
        for move in group
    ]


def _stored(group_id: str, move: GroupMove, previous: CommittedOffset | None) -> _StoredPosition:
    return _StoredPosition(
        group=group_id,
        type=move.type,
        topic=move.where.topic,
        partition=move.where.partition,
        offset=None if previous is None else previous.offset,
        leader_epoch=-1 if previous is None else previous.leader_epoch,
        metadata=None if previous is None else previous.metadata,
    )


def decode_positions(
    document: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, str], TopicPartition, CommittedOffset | None]]:
    """Each group's id and type, the partition, and the offset that the group had there."""
    try:
        stored = _STORED.validate_python(document.get("positions"))
    except ValidationError as error:
        what = f"the previous offsets of groups cannot be read: {error.errors()[0]['msg']}"
        raise CorruptDataError(what, operation="put groups back") from error
    for each in stored:
        where = TopicPartition(topic=each.topic, partition=each.partition)
        previous = None
        if each.offset is not None:
            previous = _committed_at(where, each.offset, leader_epoch=each.leader_epoch, metadata=each.metadata)
        yield (each.group, each.type), where, previous


def _committed_at(
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


class RestoredGroups:
    """One finished restore and its target. Use it in a `with`."""

    def __init__(self, config: Config, restore: str | None = None, *, force: bool = False) -> None:
        """`force`: also move groups that have members, if Kafka allows to remove them."""
        if config.kafka is None:
            raise UsageError("no cluster is named", hint="give --bootstrap, or kafka.bootstrap in the configuration")
        if config.archive is None:
            raise UsageError("no archive is named", hint="give --archive, or archive in the configuration")
        patience_s = config.patience
        self._undo = ExitStack()
        self._archive = open_archive(config.archive, config.storage, layout=config.layout)
        storage = self._archive.storage
        self.restore_id = find_restore(finished_restores(storage), restore)
        self._plan, self._report = read_restore(storage, self.restore_id)
        client = self._undo.enter_context(KafkaClient(config.kafka))
        self._refuse_other_cluster(client, patience_s)
        self._movement = Movement(client, storage, self._plan, patience_s=patience_s, force=force)
        self.missing: tuple[MissingGroup, ...] = ()
        """Requested groups without an offset to commit, in the last `plan` or `apply`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def run_id(self) -> str | None:
        """The run that the restore was planned from."""
        return self._plan.archive.run_id

    def plan(self, patterns: Sequence[str]) -> tuple[GroupPosition, ...]:
        """The offsets that `apply` would commit, and the groups that it would refuse. Changes nothing."""
        return self._movement.look(self._moves(patterns))

    def apply(self, patterns: Sequence[str]) -> tuple[GroupPosition, ...]:
        return self._movement.apply(self._moves(patterns))

    def roll_back(self) -> tuple[GroupPosition, ...]:
        """Restore the offsets from before the restore."""
        return self._movement.roll_back()

    def _moves(self, patterns: Sequence[str]) -> tuple[GroupMove, ...]:
        partitions = [PartitionReport(**each) for each in self._report["partitions"]]
        moves = plan_moves(self._archive, self._plan, partitions, patterns or self._plan.groups or ("*",))
        self.missing = moves.missing
        return moves.offsets

    def _refuse_other_cluster(self, client: KafkaClient, patience_s: float) -> None:
        found = client.metadata([], deadline=Deadline.after(patience_s)).cluster_id
        if found != self._plan.cluster_id:
            raise RefusedError(
                f"the restore went into cluster {self._plan.cluster_id}, and this is cluster {found}",
                operation=_OPERATION,
                object_name=self.restore_id,
                hint="give the cluster that was restored into",
            )


def find_restore(known: Sequence[str], given: str | None) -> str:
    """The restore with this id or prefix of an id; without one, the only restore."""
    matching = [each for each in known if each == given] or [each for each in known if each.startswith(given or "")]
    if len(matching) == 1:
        return matching[0]
    named = "restores were made from this archive" if given is None else f"restores have the id {given!r}"
    hint = f"give --restore with one of {', '.join(sorted(matching)[:10])}" if matching else "run 'maxbrod restore'"
    raise UsageError(f"{len(matching) or 'no'} {named}", operation=_OPERATION, hint=hint)
