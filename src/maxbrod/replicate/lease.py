"""Leases: the instance that has one leads, and says which instance works on what. And the lease of a link.

The lease of a link is a committed offset of its lease group at the destination. It and the shares of the instances,
which are offsets of the same group, are only ever committed in transactions of the link's transactional id. A
coordinator gives that id to one producer at a time: taking the lease fences the holder before, so that it can neither
renew nor divide anything, however long it slept. A holder that has not renewed the lease for some time, as measured by
the clock of the one that waits, has lost it to whoever takes it first.

The lease keeps instances from working against each other. It is not what makes ingress exactly once: sequence numbers
do that, also in the moments after a takeover.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka.protocol.consumer import OffsetFetchRequest

from maxbrod import strict_json
from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.transactions import Transaction, begin, commit_offsets_in, end
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.client import KafkaClient, retry
from maxbrod.kafka.wire.coordination import GROUP, find_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import answered_with
from maxbrod.kafka.wire.metadata import by_topic
from maxbrod.model import TopicPartition
from maxbrod.replicate.sharing import Share, read_shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from maxbrod.replicate.link import Link

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Offsets can be committed only for a topic that exists, and this one does wherever groups do."""
_PLACE: Final = TopicPartition(topic=OFFSETS_TOPIC, partition=0)
RENEWALS: Final = 4
"""Renewals within the time after which others take over."""
_TIMEOUT_MS: Final = 60_000
_OFFSETS_PER_REQUEST: Final = 2_000
"""A coordinator writes the offsets of a request as one batch, which must not exceed the limit of its topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """The lease as it was last read."""

    instance: str | None
    """The holder; None: nobody."""
    count: int
    """The number of renewals."""
    generation: int = 0
    """The number of the division into shares. It grows with each change."""
    producer: ProducerIdentity | None = None
    """The producer of markers. Its epoch grows whenever an instance is lost."""
    fence: int = 0
    """The fence of an archive's catalog: the claim of those who follow this division."""


NOBODY: Final = Posted(instance=None, count=0)


class Lease(ABC):
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
        return self._is_held() and (not due or self._renew())

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
    def _is_held(self) -> bool: ...

    @abstractmethod
    def _renew(self) -> bool:
        """False: it is lost."""


class LinkLease(Lease):
    """The lease of a link. Brokers fence by the epochs of producers."""

    def __init__(
        self,
        client: KafkaClient,
        link: Link,
        read: Callable[[], Iterable[CommittedOffset]] | None = None,
        *,
        takeover_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` returns the lease's committed offset, and may return others of its group."""
        super().__init__(takeover_s=takeover_s, clock=clock)
        self._client, self._link, self._read = client, link, read or self._read_lease
        self._patience_s = patience_s
        self._held: Transaction | None = None
        self._count = 0

    @property
    def identity(self) -> ProducerIdentity | None:
        return None if self._held is None else self._held.identity

    def _look(self) -> Posted:
        return read_posted(self._read())

    def _take(self) -> bool:
        self._held = begin(self._client, self._link.group_id, timeout_ms=_TIMEOUT_MS)
        # Whoever held it can commit nothing more: what it has committed until then is read now.
        last = self._look()
        self._count, self.generation = last.count, last.generation
        return self._commit(self.instance)

    def _is_held(self) -> bool:
        return self._held is not None

    def _renew(self) -> bool:
        return self._commit(self.instance)

    def publish(self, changes: Mapping[TopicPartition, Share], generation: int, *, fence: bool) -> bool:
        # Markers get a new epoch, after which brokers refuse those of the old one.
        if fence and self._commit(self.instance):
            self._held = begin(self._client, self._link.group_id, timeout_ms=_TIMEOUT_MS)
            last = self._look()
            if (last.instance, last.count) != (self.instance, self._count):
                self._held = None  # another instance has taken it meanwhile, and may have divided anew
        self.generation = generation
        try:
            return self._commit(self.instance, [share.committed(where) for where, share in changes.items()])
        except MaxbrodError:
            self._held = None  # whether it was told is unknown: who takes the lease next, even this one, reads it
            raise

    def division(self) -> tuple[Posted, dict[TopicPartition, Share]]:
        offsets = read_committed(self._client, self._link.lease_id, patience_s=self._patience_s)
        return read_posted(offsets), read_shares(offsets)

    def release(self) -> None:
        self._commit(None)
        self._held = None

    def _read_lease(self) -> tuple[CommittedOffset, ...]:
        return read_committed(self._client, self._link.lease_id, [_PLACE], patience_s=self._patience_s)

    def _commit(self, instance: str | None, more: Iterable[CommittedOffset] = ()) -> bool:
        transaction, began = self._held, self._clock()
        if transaction is None:
            return False
        self._count += 1
        producer = (transaction.identity.producer_id, transaction.identity.epoch)
        note = {"maxbrod": 1, "instance": instance, "generation": self.generation, "producer": producer}
        lease = CommittedOffset(
            topic=OFFSETS_TOPIC,
            topic_id=None,
            partition=0,
            offset=self._count,
            leader_epoch=-1,
            metadata=json.dumps(note),
        )
        offsets = [lease, *more]
        try:
            for first in range(0, len(offsets), _OFFSETS_PER_REQUEST):
                portion = offsets[first : first + _OFFSETS_PER_REQUEST]
                commit_offsets_in(self._client, transaction, self._link.lease_id, portion, patience_s=self._patience_s)
            end(self._client, transaction, commit=True, patience_s=self._patience_s)
        except RefusedError:
            self._held = None  # another instance has taken it
        except MaxbrodError as error:
            if error.retryable or isinstance(error, UsageError):
                raise
            raise UnavailableError(f"the lease cannot be renewed: {error}", object_name=self._link.lease_id) from error
        self._renewed_at = began
        return self._held is not None


def read_posted(offsets: Iterable[CommittedOffset]) -> Posted:
    """The lease among the offsets of its group."""
    for offset in offsets:
        try:
            note = strict_json.parse(offset.metadata or "")
            if note["instance"] is None:
                return Posted(instance=None, count=offset.offset, generation=int(note.get("generation", 0)))
            producer = note.get("producer")
            return Posted(
                instance=str(note["instance"]),
                count=offset.offset,
                generation=int(note.get("generation", 0)),
                producer=None if producer is None else ProducerIdentity(producer_id=producer[0], epoch=producer[1]),
            )
        except (ValueError, KeyError, TypeError, IndexError):
            continue
    return NOBODY


def read_committed(
    client: KafkaClient, group_id: str, where: Iterable[TopicPartition] | None = None, *, patience_s: float
) -> tuple[CommittedOffset, ...]:
    """The offsets of a group at one moment: all of them, or those of some partitions.

    It waits for a transaction that is being committed, so that nobody takes what was before it for the present.
    """
    of_group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = (
        None
        if where is None
        else [
            of_group.OffsetFetchRequestTopics(name=name, partition_indexes=list(each))
            for name, each in by_topic(dict.fromkeys(where)).items()
        ]
    )

    def once(limit: Deadline) -> tuple[CommittedOffset, ...]:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        wanted = of_group(group_id=group_id, topics=topics, member_id=None, member_epoch=-1)
        answer = client.ask_broker(
            node_id, OffsetFetchRequest(groups=[wanted], require_stable=True), deadline=limit
        ).groups[0]
        found = [(topic.name, partition) for topic in answer.topics for partition in topic.partitions]
        for code in (answer.error_code, *(each.error_code for _, each in found)):
            if code:
                raise answered_with(code, operation="read offsets", object_name=group_id)
        return tuple(
            CommittedOffset(
                topic=name,
                topic_id=None,
                partition=each.partition_index,
                offset=each.committed_offset,
                leader_epoch=each.committed_leader_epoch,
                metadata=each.metadata,
            )
            for name, each in found
            if each.committed_offset >= 0
        )

    return retry(once, deadline=Deadline.after(patience_s), what=f"the coordinator of the group {group_id}")
