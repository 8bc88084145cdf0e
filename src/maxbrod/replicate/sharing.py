"""How the partitions of a link are divided among its instances, and how one instance hands some to another. Pure.

The division is the one of Kafka's first consumer groups: partitions are sorted so that those of a broker are side by
side, and cut into shares of equal size. What an instance has already stays with it, as far as its share allows, so that
as few partitions as possible move.

A partition moves in two steps. First it belongs to nobody, until the instance that had it has said that it works on it
no more, or is lost. Then it is given to the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.model import TopicPartition
from maxbrod.replicate.link import note_at, read_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Who works on a partition, since which generation of the division."""

    owner: str | None
    generation: int
    left: str | None = None
    """While it moves and has no owner: the instance that has to give it up."""

    def committed(self, where: TopicPartition) -> CommittedOffset:
        return note_at(where, self.generation, {"owner": self.owner, "left": self.left})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What changes with the next generation."""

    changes: Mapping[TopicPartition, Share]
    taken_from: frozenset[str]
    """The instances that partitions are taken from although they have not given them up."""
    settled: bool
    """Whether every partition is where it belongs after this step."""


def read_shares(offsets: Iterable[CommittedOffset]) -> dict[TopicPartition, Share]:
    """The shares among the offsets of a link's lease group. Others are left out."""
    return read_notes(offsets, lambda at, note: Share(owner=note["owner"], generation=at.offset, left=note["left"]))


def divide(
    brokers: Mapping[TopicPartition, int], members: Collection[str], present: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """An owner for each partition. `brokers` has the leader of each partition, `present` the owners so far.

    Shares differ by one partition at most. Without owners so far they are contiguous.
    """
    ordered = sorted(brokers, key=lambda where: (brokers[where], where))
    held: dict[str, list[TopicPartition]] = {member: [] for member in sorted(members)}
    for where in ordered:
        if (owner := present.get(where)) in held:
            held[owner].append(where)
    size, larger = divmod(len(ordered), len(held))
    # The larger shares go to those that have the most: so the fewest partitions move.
    ranked = sorted(held, key=lambda member: -len(held[member]))
    room = {member: size + (rank < larger) for rank, member in enumerate(ranked)}
    wanted = {where: member for member, mine in held.items() for where in mine[: room[member]]}
    free = iter([where for where in ordered if where not in wanted])
    for member, mine in held.items():
        for _ in range(room[member] - len(mine)):
            wanted[next(free)] = member
    return wanted


def next_step(
    shares: Mapping[TopicPartition, Share],
    wanted: Mapping[TopicPartition, str],
    heard: Mapping[str, float],
    generation: int,
) -> Step:
    """What can be done now to come from `shares` to `wanted`.

    `heard` has the generation that each living instance is known to follow. An instance that is not in it is lost.
    """
    changes: dict[TopicPartition, Share] = {}
    taken_from, settled = set[str](), True
    for where, owner in wanted.items():
        share = shares.get(where)
        if share is not None and share.owner == owner:
            continue
        holder = None if share is None else share.owner or share.left
        if share is None or holder is None or holder == owner:
            changes[where] = Share(owner=owner, generation=generation)
        elif holder not in heard or heard[holder] >= (share.generation if share.owner is None else generation):
            taken_from |= {holder} - heard.keys()
            changes[where] = Share(owner=owner, generation=generation)
        else:
            settled = False
            if share.owner is not None:
                changes[where] = Share(owner=None, generation=generation, left=holder)
    return Step(changes=changes, taken_from=frozenset(taken_from), settled=settled)
