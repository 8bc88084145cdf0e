"""The lease of a link, and its members: committed offsets of the link's groups at the destination.

The lease and the shares of the instances are offsets of one group. They are only ever committed in transactions of the
link's transactional id. A coordinator gives that id to one producer at a time: taking the lease fences the holder
before, so that it can neither renew nor divide anything, however long it slept. A holder that has not renewed the lease
for some time, as measured by the clock of the one that waits, has lost it to whoever takes it first.

The lease keeps instances from working against each other. It is not what makes ingress exactly once: sequence numbers
do that, also in the moments after a takeover.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kafka.protocol.consumer import OffsetFetchRequest

from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.groups import commit_offsets
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.transactions import Transaction, begin, commit_offsets_in, end
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.wire.client import KafkaClient, by_topic, retry
from maxbrod.kafka.wire.coordination import GROUP, find_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import answered_with
from maxbrod.model import TopicPartition
from maxbrod.replicate.link import Link, note_at, read_notes
from maxbrod.replicate.shares import NOBODY, Lease, Member, Members, Posted, Shares
from maxbrod.replicate.sharing import Share, read_shares

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Offsets can be committed only for a topic that exists, and this one does wherever groups do."""
_PLACE: Final = TopicPartition(topic=OFFSETS_TOPIC, partition=0)
_TIMEOUT_MS: Final = 60_000
_OFFSETS_PER_REQUEST: Final = 2_000
"""A coordinator writes the offsets of a request as one batch, which must not exceed the limit of its topic."""
_TELL_AGAIN_S: Final = 86_400.0
"""Brokers forget an offset that was committed a week ago."""


def shares_of_link(kafka: KafkaConfig, link: Link, *, takeover_s: float, patience_s: float) -> Shares:
    """The shares of an instance of a link. Its connections close when it leaves."""
    client = KafkaClient(kafka)
    lease = LinkLease(client, link, takeover_s=takeover_s, patience_s=patience_s)
    members = LinkMembers(client, link, lease.instance, takeover_s=takeover_s, patience_s=patience_s)
    return Shares(lease, members, takeover_s=takeover_s, tell_again_s=_TELL_AGAIN_S, close=client.close)


class LinkLease(Lease[Transaction]):
    """The lease of a link. Brokers fence by the epochs of producers."""

    def __init__(
        self,
        client: KafkaClient,
        link: Link,
        *,
        takeover_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(takeover_s=takeover_s, clock=clock)
        self._client, self._link = client, link
        self._patience_s = patience_s
        self._count = 0

    @property
    def identity(self) -> ProducerIdentity | None:
        return None if self._held is None else self._held.identity

    def _look(self) -> Posted:
        return read_posted(read_committed(self._client, self._link.lease_id, [_PLACE], patience_s=self._patience_s))

    def _take(self) -> bool:
        self._held = begin(self._client, self._link.group_id, timeout_ms=_TIMEOUT_MS)
        # Whoever held it can commit nothing more: what it has committed until then is read now.
        last = self._look()
        self._count, self.generation = last.count, last.generation
        return self._commit(self.instance)

    def _renew(self, held: Transaction) -> bool:  # noqa: ARG002 - a commit finds out whether it is still held
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

    def _commit(self, instance: str | None, more: Iterable[CommittedOffset] = ()) -> bool:
        transaction, began = self._held, self._clock()
        if transaction is None:
            return False
        self._count += 1
        producer = (transaction.identity.producer_id, transaction.identity.epoch)
        note = {"instance": instance, "generation": self.generation, "producer": producer}
        offsets = [note_at(_PLACE, self._count, note), *more]
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
        slot, self._slot = self._slot, None
        if slot is not None and any(each.slot == slot and each.instance == self._instance for each in self._read()):
            self._put(slot, None)

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
        where = TopicPartition(topic=OFFSETS_TOPIC, partition=slot)
        offset = note_at(where, 0 if member is None else member.count, note)
        deadline = Deadline.after(self._patience_s)
        outcome = commit_offsets(self._client, self._link.members_id, [offset], deadline=deadline)[where]
        if not outcome.done:
            raise RefusedError(
                f"the instance cannot join the link: {outcome.reason}",
                operation="replicate",
                object_name=self._link.members_id,
            )

    def _read(self) -> list[Member]:
        offsets = read_committed(self._client, self._link.members_id, patience_s=self._patience_s)
        return list(read_notes(offsets, _member_of).values())


def _member_of(offset: CommittedOffset, note: Any) -> Member | None:  # noqa: ANN401 - JSON
    if note["instance"] is None:
        return None
    return Member(instance=str(note["instance"]), slot=offset.partition, count=offset.offset, heard=int(note["heard"]))


def read_posted(offsets: Iterable[CommittedOffset]) -> Posted:
    """The lease among the offsets of its group."""

    def posted(offset: CommittedOffset, note: Any) -> Posted:  # noqa: ANN401 - JSON
        instance, count, generation = note["instance"], offset.offset, int(note.get("generation", 0))
        if instance is None or note.get("producer") is None:
            return Posted(instance=instance, count=count, generation=generation)
        producer_id, epoch = note["producer"]
        producer = ProducerIdentity(producer_id=producer_id, epoch=epoch)
        return Posted(instance=str(instance), count=count, generation=generation, producer=producer)

    return next(iter(read_notes(offsets, posted).values()), NOBODY)


def read_committed(
    client: KafkaClient, group_id: str, where: Iterable[TopicPartition] | None = None, *, patience_s: float
) -> tuple[CommittedOffset, ...]:
    """The offsets of a group at one moment: all of them, or those of some partitions.

    It waits for a transaction that is being committed, so that nobody takes what was before it for the present.
    """
    of_group = OffsetFetchRequest.OffsetFetchRequestGroup
    topics = None
    if where is not None:
        named = by_topic(dict.fromkeys(where)).items()
        topics = [of_group.OffsetFetchRequestTopics(name=name, partition_indexes=list(each)) for name, each in named]

    def once(limit: Deadline) -> tuple[CommittedOffset, ...]:
        node_id = find_coordinator(client, group_id, GROUP, deadline=limit)
        wanted = of_group(group_id=group_id, topics=topics, member_id=None, member_epoch=-1)
        request = OffsetFetchRequest(groups=[wanted], require_stable=True)
        answer = client.ask_broker(node_id, request, deadline=limit).groups[0]
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

    what = f"the coordinator of the group {group_id}"
    return retry(once, deadline=Deadline.after(patience_s), what=what, stop=client.stop)
