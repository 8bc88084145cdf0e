"""The share of one instance: it leads and divides the partitions, or follows the one that does.

The leader holds the lease, of a link at its destination or of an archive. It divides the partitions among the instances
that live, itself included. While it is alone it has all of them, and writes no shares. Those that it leads say again
and again that they live, and which division they follow. A thread keeps the lease, or the membership, alive while a
piece of work takes long.

Stores of leases and members differ in how they fence the holder before: see `link_lease` and `archive_lease`.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.model import TopicPartition
from maxbrod.replicate.sharing import Share, divide, next_step

Held = TypeVar("Held")

RENEWALS: Final = 4
"""Renewals within the time after which others take over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """The lease as it was last read."""

    instance: str | None
    """The holder; None: nobody."""
    count: int
    generation: int = 0
    """The number of the division into shares. It grows with each change."""
    producer: ProducerIdentity | None = None
    """The producer of markers. Its epoch grows whenever an instance is lost."""
    fence: int = 0
    """The fence of an archive's catalog: the claim of those who follow this division."""


NOBODY: Final = Posted(instance=None, count=0)


class Lease(ABC, Generic[Held]):
    """A lease as one instance sees it. Call `hold` before each piece of work.

    It decides who may take it and when it is due. Stores differ in how they fence the holder before.
    """

    def __init__(self, *, takeover_s: float, clock: Callable[[], float]) -> None:
        self._takeover_s, self._clock = takeover_s, clock
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.generation = 0
        """While it is held: the generation that it tells. Set it after it was taken."""
        self.term = 0
        """The number of times that this instance has taken it: whoever works by it looks again when that changes."""
        self.takeovers = 0
        """The number of times that this instance has taken it from one that was lost."""
        self.seen = NOBODY
        """The lease as last read, while another instance holds it."""
        self._seen_at = self._renewed_at = 0.0
        self._held: Held | None = None
        """What the store has given to the holder; None: this instance does not hold the lease."""

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer of the lease, while it is held. What it writes is refused once another instance has written."""
        return None

    @property
    def fence(self) -> int:
        """The fence of an archive's catalog, while it is held."""
        return 0

    def hold(self) -> bool:
        """True if this instance holds the lease now: take it if it is free, renew it if it is due."""
        if self.renew():
            return True
        seen = self._look()
        if seen != self.seen:
            self._seen_at = self._clock()
        self.seen = seen
        free = seen.instance in {None, self.instance}
        if not free and self._clock() - self._seen_at < self._takeover_s:
            return False
        if not self._take():
            return False
        self.term += 1
        self.takeovers += not free
        return True

    def renew(self) -> bool:
        """True if it is still held: renew it if it is due."""
        due = self._clock() - self._renewed_at >= self._takeover_s / RENEWALS
        return self._held is not None and (not due or self._renew(self._held))

    @abstractmethod
    def publish(self, changes: Mapping[TopicPartition, Share], generation: int, *, fence: bool) -> bool:
        """Tell every instance who works on what from now on, all of it at once. False: the lease is lost.

        `fence`: an instance was lost. Whatever it still does must be refused before anybody is told.
        """

    @abstractmethod
    def division(self) -> tuple[Posted, dict[TopicPartition, Share]]:
        """The lease and the shares as they are at one moment."""

    @abstractmethod
    def release(self) -> None:
        """Let another instance take the lease at once."""

    @abstractmethod
    def _look(self) -> Posted: ...

    @abstractmethod
    def _take(self) -> bool:
        """Fence whoever held it, and take it. False: another instance was faster."""

    @abstractmethod
    def _renew(self, held: Held) -> bool:
        """False: it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    instance: str
    slot: int
    """At a destination, the partition of the offsets topic that its offset stands at. It means nothing else."""
    count: int
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


class Shares:
    """The share of one instance. Call `look` before each interval, and close it with `leave`."""

    def __init__(
        self,
        lease: Lease[Any],
        members: Members,
        *,
        takeover_s: float,
        clock: Callable[[], float] = time.monotonic,
        tell_again_s: float = math.inf,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        """`tell_again_s`: entries of the division expire unless they are renewed after this time."""
        self._lease, self._members, self._takeover_s, self._clock = lease, members, takeover_s, clock
        self._tell_again_s, self._close = tell_again_s, close
        self.leads = False
        self.generation = 0
        """The number of the division that this instance follows. It differs after each change of its share."""
        self.settled = False
        """True if the leader has nothing to divide or to hand over."""
        self._shares: dict[TopicPartition, Share] = {}
        self.identity: ProducerIdentity | None = None
        """The producer of markers. Brokers refuse its markers once an instance with a later one has written some."""
        self.claim = 0
        """By which this instance may commit to an archive what it has, until the catalog's fence is above it."""
        self._leader: str | None = None
        """The leader whose division this instance follows; None: it follows none."""
        self.term = 0
        """Differs after the lease was lost: others may have worked meanwhile, without dividing anything."""
        self._divided_among: frozenset[str] = frozenset()
        self._watched_at = -math.inf
        self._told_at = -math.inf
        self._lost = 0
        self._lock, self._over = threading.RLock(), threading.Event()
        self._keeper: threading.Thread | None = None

    @property
    def instance(self) -> str:
        return self._lease.instance

    @property
    def leader(self) -> str | None:
        """The instance that leads, if it is another one."""
        return None if self.leads else self._lease.seen.instance

    @property
    def seen(self) -> Posted:
        """The lease as last read. It changes while the one that leads lives."""
        return self._lease.seen

    @property
    def instances(self) -> int:
        """The number of living instances, as far as this one knows. Only the leader knows all of them."""
        return 1 + len(self._members.living())

    @property
    def takeovers(self) -> int:
        """The number of lost instances whose work this one has taken over or divided."""
        return self._lost + self._lease.takeovers

    @property
    def whole(self) -> bool:
        """True if this instance has everything."""
        return self.leads and all(share.owner == self.instance for share in self._shares.values())

    @property
    def any(self) -> bool:
        """True if there is anything to do for this instance."""
        return self.leads or any(share.owner == self.instance for share in self._shares.values())

    def has(self, where: TopicPartition) -> bool:
        """True if this instance works on the partition. The leader has what was given to nobody yet."""
        share = self._shares.get(where)
        return self.leads if share is None else share.owner == self.instance

    def look(self) -> None:
        """Find out what this instance may work on from now on. Call it when nothing of before is under way."""
        with self._lock:
            self.leads = self._lease.hold()
            if not self.leads:
                self._follow()
            elif self.term != self._lease.term:
                self._lead()
            if self._clock() - self._watched_at >= self._takeover_s / RENEWALS or not self._is_settled():
                # Also one that follows: it may lead one day, and then knows who has not moved for how long.
                self._members.watch()
                self._watched_at = self._clock()
            self.settled = self._is_settled()
        self._keep()

    def _is_settled(self) -> bool:
        return self.settled and (not self.leads or self._divided_among == self._members.living().keys())

    def divide(self, brokers: Mapping[TopicPartition, int], *, alone: bool = False) -> None:
        """The leader only: give each partition to an instance. `brokers` has the leaders of those that are ready.

        `alone`: give all of them to this one.
        """
        with self._lock:
            living = self._members.living()
            self._divided_among = frozenset(living)
            if not living and not self._shares:
                self.settled = True
                return
            # This instance begins nothing before it has read what it divides here.
            heard = {**living, self.instance: math.inf}
            present = {where: share.owner for where, share in self._shares.items() if share.owner is not None}
            generation = max(self.generation, self._lease.generation) + 1
            wanted = divide(brokers, {self.instance} if alone else heard.keys(), present)
            step = next_step(self._shares, wanted, heard, generation)
            changes = dict(step.changes)
            if self._clock() - self._told_at > self._tell_again_s:
                changes = {**self._shares, **changes}
            self.settled = step.settled
            if not changes:
                return
            if not self._lease.publish(changes, generation, fence=bool(step.taken_from)):
                self.leads, self._shares = False, {}
                return
            self._shares |= changes
            self.generation = generation
            self.identity, self.claim = self._lease.identity, self._lease.fence
            self._lost += len(step.taken_from & self._members.lost())
            if len(changes) == len(self._shares):
                self._told_at = self._clock()

    def leave(self) -> None:
        """Give everything back, so that others need not wait."""
        self._over.set()
        if self._keeper is not None:
            self._keeper.join()
        try:
            with suppress(MaxbrodError):  # what is not given back runs out
                self._members.leave()
                self._lease.release()
        finally:
            self._close()

    def _lead(self) -> None:
        """Keep the division of the leader before this one, until it is divided anew."""
        _, self._shares = self._lease.division()
        self.generation, self.claim = self._lease.generation, self._lease.fence
        self._told_at, self.settled = self._clock(), False
        self._members.leave()
        self._leader, self.term, self.identity = None, self._lease.term, self._lease.identity

    def _follow(self) -> None:
        posted = self._lease.seen
        self._members.tell(self.generation if self._leader is not None else -1)
        if (posted.instance, posted.generation, posted.fence) != (self._leader, self.generation, self.claim):
            posted, self._shares = self._lease.division()
            self._leader, self.generation, self.identity = posted.instance, posted.generation, posted.producer
            self.claim = posted.fence
            self._members.tell(self.generation)
        self.settled = True

    def claim_again(self, partitions: Iterable[TopicPartition]) -> int | None:
        """In the middle of a piece of work: the claim of the newest division, if that leaves these to this instance.

        The instance still follows the division that it followed. It says so, and nobody is given what it works on.
        """
        with self._lock:
            posted, shares = self._lease.division()
        if self.leads:
            return posted.fence if posted.instance == self.instance else None
        kept = all(where in shares and shares[where].owner == self.instance for where in partitions)
        return posted.fence if kept else None

    def keeps(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """After a piece of work: those that are still this instance's, by the newest division.

        An instance that was suspended meanwhile may have lost them. Then what it has found out is not true any more.
        """
        with self._lock:
            posted, shares = self._lease.division()
        if self.leads:
            return {where for where in partitions if self.has(where)} if posted.instance == self.instance else set()
        return {where for where in partitions if where in shares and shares[where].owner == self.instance}

    def _keep(self) -> None:
        if self._keeper is None and self._takeover_s > 0:
            self._keeper = threading.Thread(target=self._renew, name="lease", daemon=True)
            self._keeper.start()

    def _renew(self) -> None:
        while not self._over.wait(self._takeover_s / RENEWALS):
            # It never takes the lease. The next interval finds out what is wrong, and what was lost.
            with suppress(MaxbrodError), self._lock:
                if not self._lease.renew() and self._leader is not None:
                    self._members.tell(self.generation)
