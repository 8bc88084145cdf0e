"""The instances that another one leads. Each says again and again that it lives, and which division it follows.

Members of a link of ingress are committed offsets of the link's group of members, one for each instance. Those of an
egress are objects of the archive. Instances believe no clock but their own; times in the objects are for people, who
look once.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.errors import ObjectNotFoundError, RefusedError, UnavailableError
from maxbrod.kafka.admin.groups import commit_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, now_ms
from maxbrod.replicate.lease import OFFSETS_TOPIC, RENEWALS, read_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.replicate.link import Link
    from maxbrod.storage.interface import Storage

FOLDER: Final = "replication/members"


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A sign of life of an instance of egress: when it lived, and after which silence others take over."""

    at_ms: int
    takeover_ms: int


def read_life(note: Mapping[str, Any]) -> Life | None:
    """None: a version wrote it that does not say when."""
    return Life(at_ms=int(note["at_ms"]), takeover_ms=int(note["takeover_ms"])) if "at_ms" in note else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    instance: str
    slot: int
    """At a destination, the partition of the offsets topic that its offset stands at. It means nothing else."""
    count: int
    """The number of its signs of life."""
    heard: int
    """The generation of the division that it follows. It works on nothing of an earlier one."""


class Members(ABC):
    """The members as one instance sees them."""

    def __init__(self, instance: str, *, takeover_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._instance, self._takeover_s, self._clock = instance, takeover_s, clock
        self._seen: dict[str, tuple[Member, float]] = {}
        """Each member as it was last read, and when it last changed."""
        self._count = 0
        self._told: int | None = None
        self._told_at = 0.0

    def tell(self, heard: int) -> None:
        """Say that this instance lives, and that it follows this generation and no earlier one, if that is due."""
        now = self._clock()
        if self._told == heard and now - self._told_at < self._takeover_s / RENEWALS:
            return
        self._count += 1
        self._say(heard)
        self._told, self._told_at = heard, now

    def leave(self) -> None:
        """End the membership of this instance."""
        self._take_back()
        self._told = None

    @abstractmethod
    def _say(self, heard: int) -> None: ...

    @abstractmethod
    def _take_back(self) -> None: ...

    @abstractmethod
    def _read(self) -> list[Member]: ...

    def watch(self) -> None:
        """Read the member list."""
        now, found = self._clock(), self._read()
        self._seen = {
            each.instance: (each, before[1] if (before := self._seen.get(each.instance)) and before[0] == each else now)
            for each in found
        }

    def living(self) -> dict[str, int]:
        """The other members that have lately said that they live, and the generation that each follows."""
        now = self._clock()
        return {
            name: member.heard
            for name, (member, changed_at) in self._seen.items()
            if name != self._instance and now - changed_at < self._takeover_s
        }

    def lost(self) -> set[str]:
        """The members that have not left, and have not said for long that they live."""
        return self._seen.keys() - self.living().keys() - {self._instance}


class ArchiveMembers(Members):
    """Each member has an object in the archive, which it replaces."""

    def __init__(
        self, storage: Storage, instance: str, *, takeover_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(instance, takeover_s=takeover_s, clock=clock)
        self._storage = storage

    def _say(self, heard: int) -> None:
        life = Life(at_ms=now_ms(), takeover_ms=int(self._takeover_s * 1000))
        note = {"maxbrod": 1, "instance": self._instance, "count": self._count, "heard": heard, **asdict(life)}
        self._storage.replace(f"{FOLDER}/{self._instance}.json", json.dumps(note).encode())

    def _take_back(self) -> None:
        if self._told is not None:
            self._storage.delete([f"{FOLDER}/{self._instance}.json"])

    def forget(self, instances: Iterable[str]) -> None:
        """Delete what lost members have said. One that was only stopped says it again."""
        self._storage.delete([f"{FOLDER}/{instance}.json" for instance in instances])

    def _read(self) -> list[Member]:
        return [member for member, _ in _read_notes(self._storage)]


def read_lives(storage: Storage) -> dict[str, Life | None]:
    """Return the last signs of life of the instances that follow another one, for whoever looks only once."""
    return {member.instance: life for member, life in _read_notes(storage)}


def _read_notes(storage: Storage) -> list[tuple[Member, Life | None]]:
    found = []
    for each in storage.list(FOLDER):
        with suppress(ObjectNotFoundError, ValueError, KeyError, TypeError):
            note = strict_json.parse(storage.get(each.path))
            member = Member(instance=note["instance"], slot=0, count=int(note["count"]), heard=int(note["heard"]))
            found.append((member, read_life(note)))
    return found


class LinkMembers(Members):
    """Each member of a link has an offset of its own in the link's group of members, which it commits."""

    def __init__(
        self,
        client: KafkaClient,
        link: Link,
        instance: str,
        *,
        takeover_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(instance, takeover_s=takeover_s, clock=clock)
        self._client, self._link, self._patience_s = client, link, patience_s
        self._slot: int | None = None

    def _say(self, heard: int) -> None:
        slot = self._free_slot()
        self._put(slot, Member(instance=self._instance, slot=slot, count=self._count, heard=heard))
        self._slot = slot

    def _take_back(self) -> None:
        if self._slot is not None and self._owner_of(self._slot, self._read()) == self._instance:
            self._put(self._slot, None)
        self._slot = None

    def _free_slot(self) -> int:
        """The slot that this instance has, or one that is free, or that of an instance that is gone."""
        self.watch()
        taken = {member.slot for member, _ in self._seen.values() if member.instance != self._instance}
        if self._slot is not None and self._slot not in taken:
            return self._slot
        topics = self._client.metadata([OFFSETS_TOPIC], deadline=Deadline.after(self._patience_s)).topics
        slots = range(len(topics[OFFSETS_TOPIC].partitions)) if OFFSETS_TOPIC in topics else range(1)
        free = [each for each in slots if each not in taken]
        if slot := (*free, *sorted(self._seen[name][0].slot for name in self.lost())):
            return slot[0]
        raise UnavailableError(
            f"the link has {len(taken)} other instances, and its destination has no place for one more",
            operation="replicate",
            object_name=self._link.name,
        )

    def _put(self, slot: int, member: Member | None) -> None:
        note = {"instance": None} if member is None else {"instance": member.instance, "heard": member.heard}
        offset = CommittedOffset(
            topic=OFFSETS_TOPIC,
            topic_id=None,
            partition=slot,
            offset=0 if member is None else member.count,
            leader_epoch=-1,
            metadata=json.dumps({"maxbrod": 1, **note}),
        )
        deadline = Deadline.after(self._patience_s)
        outcome = commit_offsets(self._client, self._link.members_id, [offset], deadline=deadline)[
            TopicPartition(topic=OFFSETS_TOPIC, partition=slot)
        ]
        if not outcome.done:
            raise RefusedError(
                f"the instance cannot join the link: {outcome.reason}",
                operation="replicate",
                object_name=self._link.members_id,
            )

    def _read(self) -> list[Member]:
        return read_members(read_committed(self._client, self._link.members_id, patience_s=self._patience_s))

    @staticmethod
    def _owner_of(slot: int, members: Iterable[Member]) -> str | None:
        return next((member.instance for member in members if member.slot == slot), None)


def read_members(offsets: Iterable[CommittedOffset]) -> list[Member]:
    found = []
    for offset in offsets:
        try:
            note = strict_json.parse(offset.metadata or "")
            if note["maxbrod"] == 1 and note["instance"] is not None:
                found.append(
                    Member(
                        instance=str(note["instance"]),
                        slot=offset.partition,
                        count=offset.offset,
                        heard=int(note["heard"]),
                    )
                )
        except (ValueError, KeyError, TypeError):
            continue
    return found
