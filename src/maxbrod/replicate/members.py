"""The instances of a link that another one leads, as committed offsets of the link's group of members.

Each instance has an offset of its own, which it commits again and again, so that the leader sees that it lives. What it
says with it is which division of the partitions it follows. No clock but the reader's own is believed.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.errors import RefusedError, UnavailableError
from maxbrod.kafka.admin.group_offsets import commit_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.replicate.lease import OFFSETS_TOPIC, RENEWALS, read_committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.replicate.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    instance: str
    slot: int
    """The partition of the offsets topic that its offset stands at. It means nothing else."""
    count: int
    """How often it has said that it lives."""
    heard: int
    """The generation of the division that it follows. It works on nothing of an earlier one."""


class Members:
    """The members as one instance sees them."""

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
        self._client, self._link, self._instance = client, link, instance
        self._takeover_s, self._patience_s, self._clock = takeover_s, patience_s, clock
        self._seen: dict[str, tuple[Member, float]] = {}
        """Each member as it was last read, and when it last changed."""
        self._slot: int | None = None
        self._count = 0
        self._told: int | None = None
        self._told_at = 0.0

    def tell(self, heard: int) -> None:
        """Say that this instance lives, and that it follows this generation and no earlier one, if that is due."""
        now = self._clock()
        if self._told == heard and now - self._told_at < self._takeover_s / RENEWALS:
            return
        slot = self._free_slot()
        self._count += 1
        self._put(slot, Member(instance=self._instance, slot=slot, count=self._count, heard=heard))
        self._slot, self._told, self._told_at = slot, heard, now

    def leave(self) -> None:
        if self._slot is not None and self._owner_of(self._slot, self._read()) == self._instance:
            self._put(self._slot, None)
        self._slot = self._told = None

    def watch(self) -> None:
        """Look who lives."""
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
        return next((each.instance for each in members if each.slot == slot), None)


def read_members(offsets: Iterable[CommittedOffset]) -> list[Member]:
    found = []
    for each in offsets:
        try:
            note = json.loads(each.metadata or "")
            if note["maxbrod"] == 1 and note["instance"] is not None:
                found.append(
                    Member(
                        instance=str(note["instance"]),
                        slot=each.partition,
                        count=each.offset,
                        heard=int(note["heard"]),
                    )
                )
        except (ValueError, KeyError, TypeError):
            continue
    return found
