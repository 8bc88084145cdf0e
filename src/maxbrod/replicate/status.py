"""The status of a link, from the archive and the destination alone: nothing is changed, and the source is not asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from maxbrod.config import Config
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, ObjectNotFoundError, UnavailableError
from maxbrod.kafka.produce.producer_ids import read_tail
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import PartitionId, TopicPartition, now_ms, topic_id_of
from maxbrod.replicate.archive_lease import read_division, read_lives, read_note
from maxbrod.replicate.heartbeat import read_heartbeats
from maxbrod.replicate.ingress.plan import measure_portions, why_longer, why_not_append, why_other_source
from maxbrod.replicate.ingress.topics import NO_LEADER, filler_id
from maxbrod.replicate.link import LinkMark, Offsets, PositionKey, State
from maxbrod.replicate.newest import Newest
from maxbrod.replicate.report import PartitionStatus, count_states, exit_code_of, status_of
from maxbrod.replicate.view import LinkView, MirroredPartition, forgotten_orders, keep_order, open_link
from maxbrod.restore.plan.sources import SOURCE_COLUMNS
from maxbrod.restore.target import log_extents
from maxbrod.storage.interface import Storage
from maxbrod.work.report import Report

_TOLD_BY_INGRESS: Final = frozenset({State.FAULTED, State.LATE_SEGMENT, State.LOST_RANGE})
"""States that only an attempt to append finds out."""


_SILENT_MS: Final = 300_000
"""An ingress that works marks something every minute."""
_LEADER_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressInstance:
    """An instance of egress, and what it archives."""

    instance: str
    leads: bool
    """True if it leads, as far as it lives."""
    partitions: tuple[TopicPartition, ...] | None
    """None: all that are selected there."""
    reported_ms: int | None = None
    """When it last said that it lives, as far as that has arrived here; None: unknown."""
    lives: bool | None = None
    """False: it has been silent for so long that others may take over; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus(Report):
    published: ClassVar = ("states", "silent_ms", "exit_code")
    link: str
    archive: str
    version: int
    at_ms: int
    heartbeat_ms: int | None
    """When egress last reported the source's log ends; None: never."""
    ingress_ms: int | None
    """When ingress last marked its work; None: never, or so long ago that brokers have forgotten it."""
    partitions: tuple[PartitionStatus, ...]
    egress: tuple[EgressInstance, ...] = ()
    """The instances of egress, as far as that has arrived here; none: none works, or it is unknown."""
    unmatched: tuple[str, ...] = ()
    """Names and patterns that no archived topic matches."""

    @property
    def states(self) -> dict[str, int]:
        return count_states(self.partitions)

    @property
    def silent_ms(self) -> int | None:
        """For how long nobody has reported, although something is to be done; None: somebody has, or nobody yet."""
        waits = any(partition.state is State.CATCHING_UP for partition in self.partitions)
        silent_ms = 0 if self.ingress_ms is None else self.at_ms - self.ingress_ms
        return silent_ms if waits and silent_ms > _SILENT_MS else None

    @property
    def exit_code(self) -> int:
        code = exit_code_of(self.partitions, self.unmatched)
        return code or (EXIT_DONE if self.silent_ms is None else EXIT_INCOMPLETE)


def link_status(config: Config) -> LinkStatus:
    with open_link(config) as view:
        newest, link, orders = view.look(), view.link(), view.orders()
        partitions = view.partitions(newest, orders)
        offsets, known = view.marks_of(partitions)
        if offsets is Offsets.APPEND:
            ends = {key: mark.next_offset for key, mark in known.items() if mark.append is not None}
        else:
            logs = destination_ends(view.client, partitions, patience_s=config.patience)
            tell_unknown(partitions, logs)
            _tell_foreign(view, partitions, logs, known)
            ends = {partition.key: end for partition in partitions if (end := logs.get(partition.where)) is not None}
    for order in forgotten_orders(partitions, orders, known):
        if order.key in ends:
            keep_order(order, known[order.key])
    view.grow([partition for partition in partitions if partition.state is State.IN_STEP], ends)
    ends |= {partition.key: partition.promoted_end for partition in partitions if partition.promoted_end is not None}
    _measure(newest, partitions, ends)
    for partition in partitions:
        partition.state, partition.why = _state_of(partition, ends.get(partition.key), known.get(partition.key))
    beats, at_ms = read_heartbeats(newest.archive.storage), now_ms()
    return LinkStatus(
        link=link.name,
        archive=newest.archive.url,
        version=newest.version,
        at_ms=at_ms,
        heartbeat_ms=beats[0].at_ms if beats else None,
        ingress_ms=max((each.at_ms for each in known.values()), default=None),
        partitions=tuple(
            status_of(partition, ends.get(partition.key, None if partition.state is State.UNKNOWN else 0), beats, at_ms)
            for partition in partitions
        ),
        egress=egress_instances(newest.archive.storage, at_ms),
        unmatched=view.unmatched,
    )


def egress_instances(storage: Storage, at_ms: int) -> tuple[EgressInstance, ...]:
    """Return the instances of egress. A copy of an archive may lack some of their objects: then nothing is known."""
    try:
        note = read_note(storage)
        shares = read_division(storage, note)
        lives = read_lives(storage)
    except (ObjectNotFoundError, UnavailableError, ValueError, KeyError, TypeError):
        return ()
    owned: dict[str, list[TopicPartition]] = {}
    if note.instance is not None:
        owned[note.instance], lives[note.instance] = [], note.life
    for where, share in sorted(shares.items()):
        if share.owner is not None:
            owned.setdefault(share.owner, []).append(where)
    alive = {name: None if life is None else at_ms - life.at_ms <= life.takeover_ms for name, life in lives.items()}
    return tuple(
        EgressInstance(
            instance=name,
            leads=name == note.instance and alive.get(name) is not False,
            partitions=tuple(mine) if shares else None,
            reported_ms=life.at_ms if (life := lives.get(name)) is not None else None,
            lives=alive.get(name),
        )
        for name, mine in sorted(owned.items())
    )


def destination_ends(
    client: KafkaClient, partitions: Sequence[MirroredPartition], *, patience_s: float
) -> dict[TopicPartition, int | None]:
    """Return the log ends of mirrors that exist; None: unknown, because the partition has no leader."""
    deadline = Deadline.after(patience_s)
    while True:
        known = existing(client, partitions)
        led = [where for where, leader in known.items() if leader is not None]
        try:
            # A short patience: whatever loses its leader meanwhile is unknown, and the others are shown.
            found = log_extents(client, led, min(patience_s, _LEADER_PATIENCE_S))
        except UnavailableError:
            if deadline.passed:
                raise
            continue
        return {where: found[where].end if where in found else None for where in known}


def tell_unknown(partitions: Sequence[MirroredPartition], ends: Mapping[TopicPartition, int | None]) -> None:
    for partition in partitions:
        if partition.state is State.IN_STEP and ends.get(partition.where, 0) is None:
            partition.state, partition.why = State.UNKNOWN, NO_LEADER


def _tell_foreign(
    view: LinkView,
    partitions: Sequence[MirroredPartition],
    ends: Mapping[TopicPartition, int | None],
    marks: Collection[PositionKey],
) -> None:
    """Find the topics that others have written, as ingress does: those without a mark whose last batch is not ours."""
    link = view.link()
    unknown = [each for each in partitions if each.state is State.IN_STEP and each.adopted_end is None]
    unknown = [each for each in unknown if each.key not in marks and ends.get(each.where)]
    ids = view.topic_ids(unknown) if unknown else {}
    for each in unknown:
        tail = read_tail(view.client, each.where, ends[each.where] or 0, topic_id=topic_id_of(ids[each.where.topic]))
        if tail is not None and not tail.control and tail.producer_id not in {link.producer_id, filler_id(link)}:
            each.state = State.FAULTED
            each.why = f"the destination topic has records that the link {link.name} has not written"


def existing(client: KafkaClient, partitions: Sequence[MirroredPartition]) -> dict[TopicPartition, int | None]:
    """Return the partitions that the destination has, with the brokers that lead them; None: none does now."""
    present = client.metadata(sorted({partition.where.topic for partition in partitions})).topics
    return {
        partition.where: present[partition.where.topic].partitions[partition.where.partition].leader
        for partition in partitions
        if partition.where.topic in present and partition.where.partition in present[partition.where.topic].partitions
    }


def _measure(newest: Newest, partitions: Sequence[MirroredPartition], ends: Mapping[PositionKey, int]) -> None:
    """Find out how many archived bytes the destination lacks."""
    wanted = {
        partition.id: (max(ends.get(partition.key, 0), partition.extent.start), partition.extent.end)
        for partition in partitions
        if ends.get(partition.key, 0) < partition.extent.end
    }
    if wanted:
        catalog, topics = newest.archive.catalog, {each.topic_id for each in wanted}
        sizes: dict[PartitionId, int] = {}
        for rows in catalog.portions(SOURCE_COLUMNS, topic_ids=topics):
            sizes |= measure_portions(rows, wanted)
        for partition in partitions:
            partition.bytes = sizes.get(partition.id, 0)


def fault_of(each: MirroredPartition, end: int | None, mark: LinkMark | None) -> str | None:
    """Return why the destination's records up to `end` may not be the source's; None: nothing is known against it."""
    if mark is not None and mark.state is State.FAULTED:
        return mark.why
    if mark is not None and mark.append is not None:
        return why_not_append(mark, each.id, each.extent.end, mark.append.end)
    if end is None:
        return None
    other = None if mark is None or each.adopted_end is not None else why_other_source(mark, each.id, end)
    return other or why_longer(end, each.extent.end)


def _state_of(each: MirroredPartition, end: int | None, mark: LinkMark | None) -> tuple[State, str | None]:
    if each.state is State.PROMOTED and mark is not None:
        return each.state, each.why or why_other_source(mark, each.id, end or 0)
    if each.state is not State.IN_STEP:
        return each.state, each.why
    if mark is not None and mark.state in _TOLD_BY_INGRESS:
        return mark.state, mark.why
    if end is None:
        return State.CATCHING_UP, "ingress has not begun with it yet"
    if (why := fault_of(each, end, mark)) is not None:
        return State.FAULTED, why
    return (State.IN_STEP if end == each.extent.end else State.CATCHING_UP), None
