"""The status of a link, from the archive and the destination alone: nothing is changed, and the source is not asked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, ObjectNotFoundError, UnavailableError
from maxbrod.kafka.fetch.log_tails import read_tail
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.archive_lease import read_division, read_note
from maxbrod.replicate.heartbeat import read_heartbeats
from maxbrod.replicate.ingress.plan import measure_portions, why_longer, why_not_append
from maxbrod.replicate.ingress.topics import filler_id
from maxbrod.replicate.link import Offsets, State
from maxbrod.replicate.report import PartitionStatus, count_states, exit_code_of, status_of
from maxbrod.replicate.view import LinkView, forgotten_orders, keep_order, places_of
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.target import log_extents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.config import Config
    from maxbrod.model import PartitionId
    from maxbrod.replicate.link import Link, Mark, PositionKey
    from maxbrod.replicate.view import MirroredPartition, Newest
    from maxbrod.storage.interface import Storage

_TOLD_BY_INGRESS: Final = frozenset({State.FAULTED, State.LATE_SEGMENT, State.LOST_RANGE})
"""States that only an attempt to append finds out."""


_SILENT_MS: Final = 300_000
"""An ingress that works marks something every minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressInstance:
    """An instance of egress, and what it archives."""

    instance: str
    leads: bool
    partitions: tuple[TopicPartition, ...] | None
    """None: all that are selected there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStatus:
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
    def silent_ms(self) -> int | None:
        """For how long nobody has reported, although something is to be done; None: somebody has, or nobody yet."""
        waits = any(each.state is State.CATCHING_UP for each in self.partitions)
        silent_ms = 0 if self.ingress_ms is None else self.at_ms - self.ingress_ms
        return silent_ms if waits and silent_ms > _SILENT_MS else None

    @property
    def exit_code(self) -> int:
        code = exit_code_of(self.partitions, self.unmatched)
        return code or (EXIT_DONE if self.silent_ms is None else EXIT_INCOMPLETE)

    def as_dict(self) -> dict[str, Any]:
        more = {"states": count_states(self.partitions), "silent_ms": self.silent_ms, "exit_code": self.exit_code}
        return {**asdict(self), **more}


def link_status(config: Config) -> LinkStatus:
    kafka, _ = places_of(config)
    with KafkaClient(kafka) as client:
        view = LinkView(config, client)
        newest, link, marks = view.look(), view.link(), view.marks()
        orders = view.orders()
        partitions = view.partitions(orders)
        if view.offsets(marks) is Offsets.APPEND:
            known = view.positions(partitions)
            ends = {key: mark.next_offset for key, mark in known.items() if mark.append is not None}
        else:
            logs = destination_ends(client, partitions, patience_s=config.patience)
            tell_foreign(client, link, partitions, logs, marks)
            known = {each.key: marks[each.where] for each in partitions if each.where in marks}
            ends = {each.key: logs[each.where] for each in partitions if each.where in logs}
    for each in forgotten_orders(partitions, orders, known):
        if each.key in ends:
            keep_order(each, known[each.key])
    ends |= {each.key: each.promoted_end for each in partitions if each.promoted_end is not None}
    _measure(newest, partitions, ends)
    for each in partitions:
        each.state, each.why = _state_of(each, ends.get(each.key), known.get(each.key))
    beats, at_ms = read_heartbeats(newest.archive.storage), now_ms()
    return LinkStatus(
        link=link.name,
        archive=newest.archive.url,
        version=newest.version,
        at_ms=at_ms,
        heartbeat_ms=beats[0].at_ms if beats else None,
        ingress_ms=max((each.at_ms for each in known.values()), default=None),
        partitions=tuple(status_of(each, ends.get(each.key, 0), beats, at_ms) for each in partitions),
        egress=egress_instances(newest.archive.storage),
        unmatched=view.unmatched,
    )


def egress_instances(storage: Storage) -> tuple[EgressInstance, ...]:
    """Who archives what. A copy of an archive may lack it, or have one of several objects: then nothing is known."""
    try:
        note = read_note(storage)
        shares = read_division(storage, note)
    except (ObjectNotFoundError, UnavailableError, ValueError, KeyError, TypeError):
        return ()
    owned: dict[str, list[TopicPartition]] = {} if note.instance is None else {note.instance: []}
    for where, share in sorted(shares.items()):
        if share.owner is not None:
            owned.setdefault(share.owner, []).append(where)
    return tuple(
        EgressInstance(instance=name, leads=name == note.instance, partitions=tuple(mine) if shares else None)
        for name, mine in sorted(owned.items())
    )


def destination_ends(
    client: KafkaClient, partitions: Sequence[MirroredPartition], *, patience_s: float
) -> dict[TopicPartition, int]:
    """Where the logs of mirrors that exist end."""
    known = existing(client, partitions)
    return {where: extent.end for where, extent in log_extents(client, known, patience_s).items()}


def tell_foreign(
    client: KafkaClient,
    link: Link,
    partitions: Sequence[MirroredPartition],
    ends: Mapping[TopicPartition, int],
    marks: Mapping[TopicPartition, Mark],
) -> None:
    """Find the topics that others have written, as ingress does: those without a mark whose last batch is not ours."""
    unknown = [each for each in partitions if each.state is State.IN_STEP and each.adopted_end is None]
    unknown = [each for each in unknown if each.where not in marks and ends.get(each.where)]
    present = client.metadata(sorted({each.where.topic for each in unknown})).topics if unknown else {}
    for each in unknown:
        tail = read_tail(client, each.where, ends[each.where], topic_id=present[each.where.topic].topic_id)
        if tail is not None and not tail.control and tail.producer_id not in {link.producer_id, filler_id(link)}:
            each.state = State.FAULTED
            each.why = f"the destination topic has records that the link {link.name} has not written"


def existing(client: KafkaClient, partitions: Sequence[MirroredPartition]) -> list[TopicPartition]:
    """Those that the destination has."""
    present = client.metadata(sorted({each.where.topic for each in partitions})).topics
    return [
        each.where
        for each in partitions
        if each.where.topic in present and each.where.partition in present[each.where.topic].partitions
    ]


def _measure(newest: Newest, partitions: Sequence[MirroredPartition], ends: Mapping[PositionKey, int]) -> None:
    wanted = {
        each.id: (max(ends.get(each.key, 0), each.extent.start), each.extent.end)
        for each in partitions
        if ends.get(each.key, 0) < each.extent.end
    }
    if wanted:
        catalog, topics = newest.archive.catalog, {each.topic_id for each in wanted}
        sizes: dict[PartitionId, int] = {}
        for rows in catalog.portions(SOURCE_COLUMNS, topic_ids=topics):
            sizes |= measure_portions(rows, wanted)
        for each in partitions:
            each.bytes = sizes.get(each.id, 0)


def _state_of(each: MirroredPartition, end: int | None, mark: Mark | None) -> tuple[State, str | None]:
    if each.state is not State.IN_STEP:
        return each.state, each.why
    if mark is not None and mark.state in _TOLD_BY_INGRESS:
        return mark.state, mark.why
    if end is None:
        return State.CATCHING_UP, "ingress has not begun with it yet"
    if mark is not None and mark.append is not None:
        why = why_not_append(mark, each.id, each.extent.end, mark.append.end)
    else:
        why = why_longer(end, each.extent.end)
    if why is not None:
        return State.FAULTED, why
    return (State.IN_STEP if end == each.extent.end else State.CATCHING_UP), None
