"""The groups of a restore: commits their offsets after their topics were restored, and rolls them back.

The offsets of a group with members stay, because Kafka accepts none from outside then. With `force` its members are
removed for a moment first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.archive.knowledge import Place
from maxbrod.archive.selection import matches_nothing
from maxbrod.archive.snapshots import Moment, find_moment
from maxbrod.config import Config
from maxbrod.errors import CorruptDataError, RefusedError, UnavailableError, UnsupportedFormatError, UsageError
from maxbrod.groups.mounted import mounted_groups
from maxbrod.groups.plan import (
    WITHOUT_MEMBERS,
    ExactLog,
    GroupMove,
    GroupPosition,
    MissingGroup,
    RestoredTopic,
    lacking_groups,
    translate_groups,
)
from maxbrod.kafka.admin import ChangeOutcome
from maxbrod.kafka.fetch.offsets import LATEST, list_offsets
from maxbrod.kafka.groups import (
    ACTIVE,
    CLASSIC,
    SHARE,
    ListedGroup,
    commit_offsets,
    delete_offsets,
    delete_share_offsets,
    list_groups,
    read_offsets,
    remove_members,
    set_share_offsets,
)
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import OffsetMap, decode_map, decode_shares
from maxbrod.restore.plan.plan import RestorePlan
from maxbrod.restore.plan.request import OffsetsMode, choose_groups
from maxbrod.restore.report import PartitionReport
from maxbrod.restore.state import finished_restores, read_positions, read_restore, store_positions
from maxbrod.storage.interface import Storage

_ACTIVE: Final = "it has members: stop them first"
_STAYING: Final = "it has members of a newer protocol, which cannot be removed from outside: stop them first"
_UNREADABLE: Final = "its current offsets cannot be read, so a rollback would be impossible"
# A removed member rejoins with its next heartbeat, some seconds later, so a second removal is rare.
_REMOVALS_MAX: Final = 20

_OPERATION = "move groups"


class Movement:
    """The groups of one restore, at its target. With `force`, groups that have members are moved, too."""

    def __init__(
        self, client: KafkaClient, storage: Storage, plan: RestorePlan, *, patience_s: float, force: bool = False
    ) -> None:
        self._client, self._storage = client, storage
        self._restore_id, self._cluster_id = plan.restore_id, plan.cluster_id
        self._patience_s, self._force = patience_s, force

    def apply(
        self, moves: Iterable[GroupMove], *, dry_run: bool = False, active: Mapping[str, str] | None = None
    ) -> tuple[GroupPosition, ...]:
        """Commit the offsets of every group without members, and of the others with `force`. May be repeated.

        `dry_run`: change nothing, and return the result that it would have now. `active` has groups that must not be
        moved because they are at work elsewhere, and the reason.
        """
        groups: dict[str, list[GroupMove]] = {}
        for move in moves:
            groups.setdefault(move.group_id, []).append(move)
        listed, doubt = list_groups(self._client, deadline=self._deadline())
        if doubt is not None:
            raise UnavailableError(f"not every group can be listed: {doubt}", operation=_OPERATION)
        refused, before = self._before(groups, listed)
        refused |= active or {}
        to_commit = {
            group_id: [move for move in group if move.offset is not None]
            for group_id, group in groups.items()
            if group_id not in refused
        }
        if not dry_run and any(to_commit.values()):
            # Durable before the first change: a crash in between must not lose the way back.
            positions = encode_positions(to_commit, before)
            document = {"restore_id": self._restore_id, "cluster_id": self._cluster_id, "positions": positions}
            store_positions(self._storage, self._restore_id, document)
        results = []
        for group_id, group in groups.items():
            forced = group_id not in refused and _is_active(listed.get(group_id))
            offsets = [
                _committed_at(move.where, move.offset, metadata=move.metadata)
                for move in to_commit.get(group_id, ())
                if move.offset is not None
            ]
            outcomes = {} if dry_run else self._change(group_id, group[0].type, offsets, forced=forced)
            results += [
                _position(move, refused.get(group_id), outcomes.get(move.where), forced=forced) for move in group
            ]
        return tuple(results)

    def roll_back(self) -> tuple[GroupPosition, ...]:
        """Commit the offsets that groups had before this restore first moved them."""
        before: dict[tuple[str, str], dict[TopicPartition, CommittedOffset | None]] = {}
        for document in read_positions(self._storage, self._restore_id):
            for group, where, committed in decode_positions(document):
                before.setdefault(group, {}).setdefault(where, committed)
        return tuple(
            position for group, previous in sorted(before.items()) for position in self._put_back(*group, previous)
        )

    def _before(
        self, groups: Mapping[str, Sequence[GroupMove]], listed: Mapping[str, ListedGroup]
    ) -> tuple[dict[str, str], dict[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Return the groups that are refused, with the reason, and the current offsets of the others."""
        present = [listed[group_id] for group_id in groups if group_id in listed]
        kept = [group for group in present if _is_active(group) and not (self._force and group.type == CLASSIC)]
        refused = {group.group_id: _STAYING if self._force else _ACTIVE for group in kept}
        answers = read_offsets(self._client, present, {}, deadline=self._deadline())
        refused |= {group_id: f"{_UNREADABLE}: {why}" for group_id, why in answers.refused.items()}
        return refused, {
            group_id: {offset.where: offset for offset in answers.found.get(group_id, ())} for group_id in groups
        }

    def _put_back(
        self, group_id: str, kind: str, previous: Mapping[TopicPartition, CommittedOffset | None]
    ) -> Iterator[GroupPosition]:
        known = [committed for committed in previous.values() if committed is not None]
        unknown = [where for where, committed in previous.items() if committed is None]
        outcomes = self._change(group_id, kind, known, unknown, forced=self._force)
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

    def _change(
        self,
        group_id: str,
        kind: str,
        offsets: Sequence[CommittedOffset],
        forgotten: Sequence[TopicPartition] = (),
        *,
        forced: bool,
    ) -> dict[TopicPartition, ChangeOutcome]:
        """Commit and delete offsets. If `forced`, remove the members first, and again if they rejoin too early."""
        client, outcomes = self._client, dict[TopicPartition, ChangeOutcome]()
        try:
            for _ in range(_REMOVALS_MAX):
                if forced:
                    remove_members(client, group_id, deadline=self._deadline())
                # Delete first: a share group deletes the offsets of whole topics, including those to be committed here.
                if kind == SHARE:
                    outcomes = delete_share_offsets(client, group_id, forgotten, deadline=self._deadline())
                    by_partition = {offset.where: offset.offset for offset in offsets}
                    outcomes |= set_share_offsets(client, group_id, by_partition, deadline=self._deadline())
                else:
                    outcomes = delete_offsets(client, group_id, forgotten, deadline=self._deadline())
                    outcomes |= commit_offsets(client, group_id, offsets, deadline=self._deadline())
                if not forced or not any(outcome.code in ACTIVE for outcome in outcomes.values()):
                    break
        except UnsupportedFormatError as error:
            partitions = [*(offset.where for offset in offsets), *forgotten]
            return dict.fromkeys(partitions, ChangeOutcome(code=Code.UNSUPPORTED_VERSION, details=str(error)))
        return outcomes

    def _deadline(self) -> Deadline:
        return Deadline.after(self._patience_s)


def _is_active(group: ListedGroup | None) -> bool:
    return group is not None and group.state.lower() not in WITHOUT_MEMBERS


def _position(move: GroupMove, refused: str | None, outcome: ChangeOutcome | None, *, forced: bool) -> GroupPosition:
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


def _reason(outcome: ChangeOutcome) -> str:
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
    rows = []
    for move in (move for group in moves.values() for move in group):
        previous = before[move.group_id].get(move.where)
        row = _StoredPosition(
            group=move.group_id,
            type=move.type,
            topic=move.where.topic,
            partition=move.where.partition,
            offset=None if previous is None else previous.offset,
            leader_epoch=-1 if previous is None else previous.leader_epoch,
            metadata=None if previous is None else previous.metadata,
        )
        rows.append(asdict(row))
    return rows


def decode_positions(
    document: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, str], TopicPartition, CommittedOffset | None]]:
    """Each group's id and type, the partition, and the offset that the group had there."""
    try:
        stored = _STORED.validate_python(document.get("positions"))
    except ValidationError as error:
        what = f"the previous offsets of groups cannot be read: {error.errors()[0]['msg']}"
        raise CorruptDataError(what, operation="put groups back") from error
    for position in stored:
        where = TopicPartition(topic=position.topic, partition=position.partition)
        previous = None
        if position.offset is not None:
            previous = _committed_at(
                where, position.offset, leader_epoch=position.leader_epoch, metadata=position.metadata
            )
        yield (position.group, position.type), where, previous


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
        kafka, patience_s = config.cluster, config.patience
        self._patience_s = patience_s
        self._archive = open_archive(config.archive_url, config.storage, layout=config.layout)
        storage = self._archive.storage
        self.restore_id = find_restore(finished_restores(storage), restore)
        self._plan, self._report = read_restore(storage, self.restore_id)
        self.run_id = self._plan.archive.run_id
        """The run that the restore was planned from."""
        self._client = KafkaClient(kafka)
        self._refuse_other_cluster(patience_s)
        self._movement = Movement(self._client, storage, self._plan, patience_s=patience_s, force=force)
        self.roll_back = self._movement.roll_back
        self.missing: tuple[MissingGroup, ...] = ()
        """Requested groups without an offset to commit, in the last `apply`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def apply(
        self, patterns: Sequence[str], *, mount: Path | None = None, dry_run: bool = False
    ) -> tuple[GroupPosition, ...]:
        """Move groups. `dry_run`: return the offsets and the groups that would be refused, and change nothing.

        `mount`: the state of a mount, whose commits count before the archive's.
        """
        partitions = [PartitionReport(**partition) for partition in self._report["partitions"]]
        if mount is None:
            wanted = patterns or self._plan.groups or ("*",)
            moves, self.missing = plan_moves(self._archive, self._plan, partitions, wanted)
            return self._movement.apply(moves, dry_run=dry_run)
        groups = mounted_groups(mount, self._archive.url, archived_groups(self._archive, self._plan))
        moves, self.missing = _translated(
            groups.groups, restored_topics(self._plan, partitions), patterns or groups.committed
        )
        return self._with_lags(self._movement.apply(moves, dry_run=dry_run, active=groups.active))

    def _with_lags(self, positions: Sequence[GroupPosition]) -> tuple[GroupPosition, ...]:
        """How far each is behind the end of the target's log."""
        wanted = {position.where: LATEST for position in positions if position.offset is not None}
        ends = list_offsets(self._client, wanted, deadline=Deadline.after(self._patience_s)) if wanted else {}
        return tuple(
            position
            if position.offset is None
            else replace(position, behind=ends[position.where].offset - position.offset)
            for position in positions
        )

    def _refuse_other_cluster(self, patience_s: float) -> None:
        found = self._client.metadata([], deadline=Deadline.after(patience_s)).cluster_id
        if found != self._plan.cluster_id:
            raise RefusedError(
                f"the restore went into cluster {self._plan.cluster_id}, and this is cluster {found}",
                operation=_OPERATION,
                object_name=self.restore_id,
                hint="give the cluster that was restored into",
            )


def find_restore(known: Sequence[str], given: str | None) -> str:
    """The restore with this id or prefix of an id; without one, the only restore."""
    matching = [known_id for known_id in known if known_id == given] or [
        known_id for known_id in known if known_id.startswith(given or "")
    ]
    if len(matching) == 1:
        return matching[0]
    named = "restores were made from this archive" if given is None else f"restores have the id {given!r}"
    hint = f"give --restore with one of {', '.join(sorted(matching)[:10])}" if matching else "run 'maxbrod restore'"
    raise UsageError(f"{len(matching) or 'no'} {named}", operation=_OPERATION, hint=hint)


def plan_moves(
    archive: Archive, plan: RestorePlan, partitions: Iterable[PartitionReport], patterns: Sequence[str]
) -> tuple[tuple[GroupMove, ...], tuple[MissingGroup, ...]]:
    """Return the offsets of groups, as recorded by the run that the restore was made from, and groups without any."""
    moment = _moment_of(archive, plan)
    known = () if moment.cluster is None else moment.cluster.groups
    runs = {} if moment.known is None else moment.known.offset_runs
    found, missing = _translated(known, restored_topics(plan, partitions), patterns, runs)
    return tuple(move if move.run_id else replace(move, run_id=plan.archive.run_id) for move in found), missing


def _translated(
    known: Sequence[Group],
    topics: Mapping[str, RestoredTopic],
    patterns: Sequence[str],
    runs: Mapping[Place, str] | None = None,
) -> tuple[tuple[GroupMove, ...], tuple[MissingGroup, ...]]:
    chosen, missing = choose_groups(patterns, known)
    for name in missing:
        raise matches_nothing(name, [group.group_id for group in known], what="group")
    moves = translate_groups(chosen, topics, runs)
    placed = {move.group_id for move in moves if move.offset is not None}
    return moves, tuple(lacking_groups(patterns, chosen, placed))


def archived_groups(archive: Archive, plan: RestorePlan) -> Sequence[Group]:
    """The groups as recorded by the run that the restore was made from."""
    cluster = _moment_of(archive, plan).cluster
    return () if cluster is None else cluster.groups


def _moment_of(archive: Archive, plan: RestorePlan) -> Moment:
    return find_moment(archive.storage, archive.catalog.runs(), plan.archive.run_id)


def restored_topics(plan: RestorePlan, partitions: Iterable[PartitionReport]) -> dict[str, RestoredTopic]:
    """Each topic as restored, by the source's name."""
    reports = {(partition.target, partition.partition): partition for partition in partitions}
    found = {}
    for topic in plan.topics:
        target = topic.target
        if target.repartitioned:
            shares = {
                number: decode_shares(reports[target.name, number].map) for number in range(target.partition_count)
            }
            found[target.source_topic] = RestoredTopic(topic_id=target.topic_id, target=target.name, shares=shares)
            continue
        logs: dict[int, ExactLog | OffsetMap] = {}
        for partition in topic.partitions:
            report = reports[target.name, partition.source.partition]
            exact = partition.offsets.mode is OffsetsMode.EXACT
            logs[partition.source.partition] = (
                ExactLog(start=partition.source.first_offset, end=report.end) if exact else decode_map(dict(report.map))
            )
        found[target.source_topic] = RestoredTopic(topic_id=target.topic_id, target=target.name, logs=logs)
    return found
