"""The names of a link at its destination, and the marks that ingress leaves there. Pure.

A link is one source archive that one destination follows. Everything that ingress must remember is at the destination:
the logs themselves say how far it got, and the marks say what it was doing. Marks are the metadata of committed offsets
of the link's own group, one for each destination partition.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from maxbrod import strict_json
from maxbrod.errors import UsageError
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group
from maxbrod.model import TopicPartition, is_topic_name

PositionKey: TypeAlias = tuple[str, TopicPartition]
"""A source topic, and a destination partition: a link that appends has a position for each."""
GROUP_PREFIX: Final = "maxbrod.replicate."
_CONTROL_SUFFIX: Final = ".control"
_LEASE_SUFFIX: Final = ".lease"
_MEMBERS_SUFFIX: Final = ".members"
_SOURCE_SIGN: Final = "/"
"""Names of links and topics cannot contain it."""
_OWN_IDS: Final = 1 << 62
"""Brokers assign producer ids from 0 upwards, so they never reach these."""
_WHY_LETTERS_MAX: Final = 500
"""Brokers accept 4096 bytes of metadata by default."""


T = TypeVar("T")


def plain_offset(where: TopicPartition, offset: int, metadata: str | None) -> CommittedOffset:
    """An offset to commit, of which no more is known."""
    topic, partition = where.topic, where.partition
    return CommittedOffset(
        topic=topic, topic_id=None, partition=partition, offset=offset, leader_epoch=-1, metadata=metadata
    )


def note_at(where: TopicPartition, offset: int, note: Mapping[str, Any]) -> CommittedOffset:
    """A note of ours, as the metadata of a committed offset."""
    return plain_offset(where, offset, json.dumps({"maxbrod": 1, **note}))


def read_notes(
    offsets: Iterable[CommittedOffset], read: Callable[[CommittedOffset, Any], T | None]
) -> dict[TopicPartition, T]:
    """What `read` makes of each committed offset and its note. What is not a note of ours, or of another kind, is left
    out.
    """
    found = {}
    for offset in offsets:
        try:
            note = strict_json.parse(offset.metadata or "")
            if note.pop("maxbrod") == 1 and (value := read(offset, note)) is not None:
                found[offset.where] = value
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
    return found


class Offsets(StrEnum):
    """The offsets of records at the destination."""

    EXACT = "exact"
    """Those of the source, in a topic of its own."""
    APPEND = "append"
    """The next free ones, in a topic that others may write to."""


def parse_offsets(text: str) -> Offsets:
    try:
        return Offsets(text)
    except ValueError:
        raise UsageError(f"--offsets is exact or append, not {text!r}") from None


class State(StrEnum):
    """The state of a replicated partition."""

    CATCHING_UP = "catching up"
    IN_STEP = "in step"
    LATE_SEGMENT = "late segment"
    LOST_RANGE = "lost range"
    PAUSED = "paused"
    PROMOTED = "promoted"
    FAULTED = "faulted"
    OWN = "own topic"
    """The records come from the destination itself, through other links: mirroring them back would never end."""
    SOURCE_GONE = "source gone"
    """The source topic was deleted. Its mirror stays as it is."""
    UNKNOWN = "unknown"
    """The destination does not tell how far it has come: the partition has no leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """`name` tells links into one cluster apart."""

    name: str

    def __post_init__(self) -> None:
        if not is_topic_name(self.name):
            raise UsageError(
                f"{self.name!r} cannot name a link", hint="give --link letters, digits, '.', '_' or '-', at most 249"
            )

    @property
    def producer_id(self) -> int:
        """The producer id of every instance of this link, today and in a year.

        With it, brokers recognize a batch that another instance, or an earlier attempt, has sent before.
        """
        digest = hashlib.blake2b(self.name.encode(), digest_size=8, person=b"maxbrod.link").digest()
        return _OWN_IDS | (int.from_bytes(digest, "big") >> 2)

    @property
    def group_id(self) -> str:
        return f"{GROUP_PREFIX}{self.name}"

    def group_of(self, source: str) -> str:
        """The group that has the positions of a source topic, if the link's own group has those of another one."""
        return f"{self.group_id}{_SOURCE_SIGN}{source}"

    def transactional_id(self, key: PositionKey) -> str:
        """The id of transactions that append a source topic to one partition.

        A coordinator gives it to one instance at a time.
        """
        source, where = key
        return f"{self.group_id}{_SOURCE_SIGN}{where.topic}-{where.partition}{_SOURCE_SIGN}{source}"

    def restore_id(self, topic_id: str) -> str:
        """The id that appended records of a source topic name in their headers."""
        return f"{self.group_id}.{topic_id}"

    @property
    def control_id(self) -> str:
        """The group by which an operator pauses, resumes and promotes topics."""
        return f"{self.group_id}{_CONTROL_SUFFIX}"

    @property
    def lease_id(self) -> str:
        """The group whose offsets say which instance leads, and which one works on what."""
        return f"{self.group_id}{_LEASE_SUFFIX}"

    @property
    def members_id(self) -> str:
        """The group by which instances say that they live."""
        return f"{self.group_id}{_MEMBERS_SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPlace:
    """The position of a link that appends at the next free offsets."""

    topic_id: str
    """The id of the destination topic."""
    end: int = 0
    """The destination's offset behind the last record that the link has appended."""
    last: int = -1
    """The last source offset that was looked at; -1: none."""
    leader_epoch: int = -1
    """The leader epoch of the batch at `last`: another one there shows that the source's log was truncated."""
    begin: int
    """The source offset that the link has begun with."""
    promoted: int | None = None
    """The destination's offset from which on everything was decided after the promotion; None: not promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMark:
    """The state of one destination partition as ingress last knew it."""

    topic_id: str
    """The id of the source topic."""
    next_offset: int
    """The first source offset that the destination lacks."""
    version: int
    """The version of the catalog that was followed."""
    at_ms: int
    state: State
    why: str | None = None
    origins: tuple[str, ...] = ()
    """The ids of the clusters that the records come from, the nearest first."""
    source: str | None = None
    """The name of the source topic, if the link appends."""
    append: AppendPlace | None = None
    """None: records have the source's offsets, and the log itself says how far the link has come."""

    @property
    def offsets(self) -> Offsets:
        return Offsets.EXACT if self.append is None else Offsets.APPEND

    def committed(self, where: TopicPartition) -> CommittedOffset:
        note = asdict(self) | {"why": None if self.why is None else self.why[:_WHY_LETTERS_MAX]}
        del note["next_offset"]
        if self.append is None:
            del note["append"], note["source"]
        return note_at(where, self.next_offset, note)

    def same_as(self, other: LinkMark | None) -> bool:
        """True if only the time differs."""
        return other is not None and replace(self, at_ms=other.at_ms, version=other.version) == other


def read_marks(offsets: Iterable[CommittedOffset]) -> dict[TopicPartition, LinkMark]:
    """The marks among the offsets of a link's group. Others are left out.

    With exact offsets logs decide, and marks only explain. A link that appends commits its marks only in transactions:
    they say how far it has come.
    """
    return read_notes(offsets, _mark_of)


def _mark_of(offset: CommittedOffset, note: dict[str, Any]) -> LinkMark:
    state, origins = State(note.pop("state")), tuple(map(str, note.pop("origins", ())))
    place = note.pop("append", None)
    append = None if place is None else AppendPlace(**place)
    return LinkMark(next_offset=offset.offset, state=state, origins=origins, append=append, **note)


def is_position_of(mark: LinkMark | None, source: str) -> bool:
    """True if a mark says how far the link has come with this source topic; those of mirrors name none."""
    return mark is not None and mark.source in {None, source}


def origin(cluster_id: str, topic: str = "*") -> str:
    """A place where appended records have been, as their headers name it; `*`: a topic whose name is not known.

    A record that comes back to a topic in which it has been is left out, so that it never circles.
    """
    return f"{cluster_id}/{topic}"


def been_there(cluster_id: str, topic: str) -> tuple[str, ...]:
    """The origins of records that are not appended to a topic, because they have been there."""
    return origin(cluster_id, topic), origin(cluster_id)


class Order(StrEnum):
    """An order of an operator for a topic."""

    RUN = "run"
    PAUSE = "pause"
    PROMOTE = "promote"
    BEGIN = "begin"
    """Append from the start of the archive, although the link has no mark: it never was here."""
    ADOPT = "adopt"
    """Continue a topic whose records are known to be those of the source, although others have written them."""


class Ordered(NamedTuple):
    """`end`: for ADOPT, the end of the log that is known to be right; for PROMOTE, where the mirror ended, once it has.

    `why`: for PROMOTE, the fault that the mirror had.
    """

    order: Order
    end: int | None = None
    why: str | None = None


def order_of(where: TopicPartition, order: Order, end: int | None = None, why: str | None = None) -> CommittedOffset:
    """An order, as a committed offset of the control group. Those for a topic stand at its partition 0."""
    told = {} if why is None else {"why": why[:_WHY_LETTERS_MAX]}
    return note_at(where, end or 0, {"order": str(order), "end": end, **told})


def read_orders(offsets: Iterable[CommittedOffset]) -> dict[TopicPartition, Ordered]:
    """The orders. Only operators give orders, so no ingress overwrites them."""
    return read_notes(offsets, lambda _, note: Ordered(Order(note["order"]), _number(note.get("end")), note.get("why")))


def _number(value: Any) -> int | None:  # noqa: ANN401 - JSON
    return None if value is None else int(value)


def promotions_in(groups: Iterable[Group]) -> dict[TopicPartition, int]:
    """Return the ends of the promoted mirrors of a cluster, from the orders in its snapshot."""
    controls = (each for each in groups if each.group_id.startswith(GROUP_PREFIX) and _is_control(each))
    orders = (order for group in controls for order in read_orders(group.offsets or ()).items())
    return {where: given.end for where, given in orders if given.order is Order.PROMOTE and given.end is not None}


def _marks_in(groups: Iterable[Group]) -> Iterator[tuple[TopicPartition, LinkMark]]:
    """The marks of all links of a cluster, from its snapshot."""
    for group in groups:
        if group.group_id.startswith(GROUP_PREFIX) and not _is_control(group):
            yield from read_marks(group.offsets or ()).items()


def promotions_of(groups: Iterable[Group], cluster_id: str) -> dict[tuple[TopicPartition, str], LinkMark]:
    """The last marks of links that have appended records of a cluster and were promoted.

    `groups` are those of the snapshot of the cluster that was promoted. Keys are its partitions, and the ids of the
    topics that the records come from.
    """
    return {
        (where, mark.topic_id): mark
        for where, mark in _marks_in(groups)
        if mark.append is not None and mark.append.promoted is not None and mark.origins[:1] == (cluster_id,)
    }


def origins_of(groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
    """For each topic of a cluster that is a mirror there, the clusters that its records come from.

    `groups` are those of that cluster's snapshot: its links have left their marks there. A topic that links append to
    is not one: its records have several sources, which their headers name.
    """
    promoted = {where.topic for where in promotions_in(groups)}
    return {
        where.topic: mark.origins
        for where, mark in _marks_in(groups)
        if where.topic not in promoted and mark.state is not State.PROMOTED and mark.append is None
    }


def links_in(group_ids: Iterable[str]) -> list[str]:
    """The names of the links whose marks are in these groups of a destination."""
    own = (each.removeprefix(GROUP_PREFIX) for each in group_ids if each.startswith(GROUP_PREFIX))
    others = (_CONTROL_SUFFIX, _LEASE_SUFFIX, _MEMBERS_SUFFIX)
    return sorted({name.partition(_SOURCE_SIGN)[0] for name in own if not name.endswith(others)})


def _is_control(group: Group) -> bool:
    return group.group_id.endswith(_CONTROL_SUFFIX) and _SOURCE_SIGN not in group.group_id
