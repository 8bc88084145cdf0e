"""Puts groups where they stood, after their topics were restored; remembers where they stood before, to put them back.

A group that has members is left alone, because Kafka takes no position from outside for it; unless it is forced, and
then its members are removed for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maxbrod.errors import UnavailableError, UnsupportedFormatError
from maxbrod.groups.moves import WITHOUT_MEMBERS, GroupPosition
from maxbrod.groups.positions import committed_at, decode_positions, encode_positions
from maxbrod.kafka.admin.group_members import remove_members
from maxbrod.kafka.admin.group_offsets import ACTIVE, commit_offsets, delete_offsets
from maxbrod.kafka.admin.outcomes import Outcome
from maxbrod.kafka.admin.share_group_offsets import delete_share_offsets, set_share_offsets
from maxbrod.kafka.state.groups import CLASSIC, SHARE, list_groups, read_offsets
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.restore.state import read_positions, store_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from maxbrod.groups.plan import GroupOffset
    from maxbrod.kafka.state.cluster_state import CommittedOffset
    from maxbrod.kafka.state.groups import ListedGroup
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition
    from maxbrod.restore.plan.plan import RestorePlan
    from maxbrod.storage.interface import Storage

    Outcomes = dict[TopicPartition, Outcome]

_ACTIVE: Final = "it has members: stop them first"
_STAYING: Final = "it has members of a newer protocol, which nobody can remove from outside: stop them first"
_UNREADABLE: Final = "where it stands cannot be read, so it could not be put back"
# A member that was removed comes back with its next heartbeat, some seconds later: a second try is rare.
_REMOVALS_MAX: Final = 20


class Movement:
    """The groups of one restore, at its target."""

    def __init__(
        self, client: KafkaClient, storage: Storage, plan: RestorePlan, *, patience_s: float, force: bool = False
    ) -> None:
        self._client, self._storage = client, storage
        self._restore_id, self._cluster_id = plan.restore_id, plan.cluster_id
        self._patience_s = patience_s
        self._force = force

    def look(self, moves: Iterable[GroupOffset]) -> tuple[GroupPosition, ...]:
        """What `apply` would do now. Changes nothing."""
        return self._apply(moves, dry=True)

    def apply(self, moves: Iterable[GroupOffset]) -> tuple[GroupPosition, ...]:
        """Put every group that has no members where it belongs, and others by force. May be done again."""
        return self._apply(moves, dry=False)

    def roll_back(self) -> tuple[GroupPosition, ...]:
        """Put groups where they stood before this restore first moved them."""
        before: dict[tuple[str, str], dict[TopicPartition, CommittedOffset | None]] = {}
        for document in read_positions(self._storage, self._restore_id):
            for group, where, committed in decode_positions(document):
                before.setdefault(group, {}).setdefault(where, committed)
        return tuple(each for group, stood in sorted(before.items()) for each in self._put_back(*group, stood))

    def _apply(self, moves: Iterable[GroupOffset], *, dry: bool) -> tuple[GroupPosition, ...]:
        groups: dict[str, list[GroupOffset]] = {}
        for move in moves:
            groups.setdefault(move.group_id, []).append(move)
        listed = self._listed()
        refused, before = self._before(groups, listed)
        wanted = {
            group_id: [each for each in group if each.offset is not None]
            for group_id, group in groups.items()
            if group_id not in refused
        }
        if not dry and any(wanted.values()):
            positions = encode_positions(wanted, before)
            document = {"restore_id": self._restore_id, "cluster_id": self._cluster_id, "positions": positions}
            store_positions(self._storage, self._restore_id, document)
        told = []
        for group_id, group in groups.items():
            forced = group_id not in refused and _is_active(listed.get(group_id))
            hand = self._hand(group_id, group[0].type, forced=forced)
            outcomes = {} if dry else hand.put(wanted.get(group_id, ()))
            told += [_position(each, refused.get(group_id), outcomes.get(each.where), forced=forced) for each in group]
        return tuple(told)

    def _listed(self) -> dict[str, ListedGroup]:
        listed, doubt = list_groups(self._client, deadline=self._deadline())
        if doubt is not None:
            raise UnavailableError(f"not every group can be seen: {doubt}", operation="move groups")
        return listed

    def _before(
        self, groups: Mapping[str, Sequence[GroupOffset]], listed: Mapping[str, ListedGroup]
    ) -> tuple[dict[str, str], dict[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Which groups are left alone, and why; where the others stand now."""
        present = [listed[group_id] for group_id in groups if group_id in listed]
        active = [each for each in present if _is_active(each)]
        refused = {each.group_id: _STAYING if self._force else _ACTIVE for each in active if not self._may_force(each)}
        answers = read_offsets(self._client, present, {}, deadline=self._deadline())
        refused |= {group_id: f"{_UNREADABLE}: {why}" for group_id, why in answers.refused.items()}
        return refused, {
            group_id: {each.where: each for each in answers.found.get(group_id, ())} for group_id in groups
        }

    def _may_force(self, group: ListedGroup) -> bool:
        return self._force and group.type == CLASSIC

    def _put_back(
        self, group_id: str, kind: str, stood: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Iterator[GroupPosition]:
        outcomes = self._hand(group_id, kind, forced=self._force).put_back(stood)
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

    def _hand(self, group_id: str, kind: str, *, forced: bool) -> _Hand:
        return _Hand(self._client, group_id, share=kind == SHARE, forced=forced, patience_s=self._patience_s)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


class _Hand:
    """Moves one group, by the requests that its type takes."""

    def __init__(self, client: KafkaClient, group_id: str, *, share: bool, forced: bool, patience_s: float) -> None:
        self._client, self._group_id = client, group_id
        self._share, self._forced, self._patience_s = share, forced, patience_s

    def put(self, moves: Iterable[GroupOffset]) -> Outcomes:
        wanted = [
            committed_at(each.where, each.offset, metadata=each.metadata) for each in moves if each.offset is not None
        ]
        return self._changed([each.where for each in wanted], lambda: self._commit(wanted))

    def put_back(self, stood: Mapping[TopicPartition, CommittedOffset | None]) -> Outcomes:
        known = [each for each in stood.values() if each is not None]
        unknown = [where for where, each in stood.items() if each is None]
        # Forgetting comes first: a share group forgets whole topics, also what it is then to know again.
        return self._changed(stood, lambda: {**self._delete(unknown), **self._commit(known)})

    def _changed(self, wanted: Iterable[TopicPartition], change: Callable[[], Outcomes]) -> Outcomes:
        """Members of a group that is forced are removed first, and again should they be back too early."""
        try:
            outcomes: Outcomes = {}
            for _ in range(_REMOVALS_MAX):
                if self._forced:
                    remove_members(self._client, self._group_id, deadline=self._deadline())
                outcomes = change()
                if not self._forced or not any(each.code in ACTIVE for each in outcomes.values()):
                    break
        except UnsupportedFormatError as error:
            return dict.fromkeys(wanted, Outcome(code=Code.UNSUPPORTED_VERSION, details=str(error)))
        return outcomes

    def _commit(self, offsets: Sequence[CommittedOffset]) -> Outcomes:
        if self._share:
            wanted = {each.where: each.offset for each in offsets}
            return set_share_offsets(self._client, self._group_id, wanted, deadline=self._deadline())
        return commit_offsets(self._client, self._group_id, offsets, deadline=self._deadline())

    def _delete(self, partitions: Sequence[TopicPartition]) -> Outcomes:
        delete = delete_share_offsets if self._share else delete_offsets
        return delete(self._client, self._group_id, partitions, deadline=self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def _is_active(group: ListedGroup | None) -> bool:
    return group is not None and group.state.lower() not in WITHOUT_MEMBERS


def _position(move: GroupOffset, refused: str | None, outcome: Outcome | None, *, forced: bool) -> GroupPosition:
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
        forced=forced and move.offset is not None,
        run_id=move.run_id,
        seen_twice_max=move.seen_twice_max,
    )


def _reason(outcome: Outcome) -> str:
    return _ACTIVE if outcome.code in ACTIVE else outcome.reason
