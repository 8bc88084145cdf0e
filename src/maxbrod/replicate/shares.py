"""The share of one instance: it leads and divides the partitions, or follows the one that does.

The leader holds the lease, of a link at its destination or of an archive. It divides the partitions among the instances
that live, itself included. While it is alone it has all of them, and writes no shares. A thread keeps the lease, or the
membership, alive while a piece of work takes long.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.replicate.lease import RENEWALS, Lease, LinkLease, Posted
from maxbrod.replicate.members import LinkMembers, Members
from maxbrod.replicate.sharing import Share, divide, next_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maxbrod.config import KafkaConfig
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.model import TopicPartition
    from maxbrod.replicate.link import Link

_TELL_AGAIN_S: Final = 86_400.0
"""Brokers forget an offset that was committed a week ago."""


def shares_of_link(kafka: KafkaConfig, link: Link, *, takeover_s: float, patience_s: float) -> Shares:
    """The shares of an instance of a link. Its connections close when it leaves."""
    client = KafkaClient(kafka)
    lease = LinkLease(client, link, takeover_s=takeover_s, patience_s=patience_s)
    members = LinkMembers(client, link, lease.instance, takeover_s=takeover_s, patience_s=patience_s)
    return Shares(lease, members, takeover_s=takeover_s, tell_again_s=_TELL_AGAIN_S, close=client.close)


class Shares:
    """The share of one instance. Call `look` before each interval, and close it with `leave`."""

    def __init__(
        self,
        lease: Lease,
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
        self._producer: ProducerIdentity | None = None
        self._fence = 0
        self._leader: str | None = None
        """The leader whose division this instance follows; None: it follows none."""
        self._term = 0
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
    def term(self) -> int:
        """Differs after the lease was lost: others may have worked meanwhile, without dividing anything."""
        return self._term

    @property
    def instances(self) -> int:
        """The number of living instances, as far as this one knows. Only the leader knows all of them."""
        return 1 + len(self._members.living())

    @property
    def takeovers(self) -> int:
        """The number of lost instances whose work this one has taken over or divided."""
        return self._lost + self._lease.takeovers

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer of markers. Brokers refuse its markers once an instance with a later one has written some."""
        return self._producer

    @property
    def claim(self) -> int:
        """By which this instance may commit to an archive what it has, until the catalog's fence is above it."""
        return self._fence

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
            elif self._term != self._lease.term:
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
            self._producer, self._fence = self._lease.identity, self._lease.fence
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
        self.generation, self._fence = self._lease.generation, self._lease.fence
        self._told_at, self.settled = self._clock(), False
        self._members.leave()
        self._leader, self._term, self._producer = None, self._lease.term, self._lease.identity

    def _follow(self) -> None:
        posted = self._lease.seen
        self._members.tell(self.generation if self._leader is not None else -1)
        if (posted.instance, posted.generation, posted.fence) != (self._leader, self.generation, self._fence):
            posted, self._shares = self._lease.division()
            self._leader, self.generation, self._producer = posted.instance, posted.generation, posted.producer
            self._fence = posted.fence
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
