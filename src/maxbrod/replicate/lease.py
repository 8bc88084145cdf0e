"""The lease of a link at its destination: one instance of ingress works, the others stand by.

The lease is a committed offset of the link's lease group, which is only ever committed in transactions of the link's
transactional id. A coordinator gives that id to one producer at a time: taking the lease fences the holder before, so
that it cannot renew, however long it slept. A holder that has not renewed the lease for some time, as measured by the
clock of the one that waits, has lost it to whoever takes it first.

The lease keeps instances from working against each other. It is not what makes ingress exactly once: sequence numbers
do that, also in the moments after a takeover.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError, RefusedError, UnavailableError, UsageError
from maxbrod.kafka.produce.transactions import begin, commit_offsets_in, end
from maxbrod.kafka.state.cluster_state import CommittedOffset

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.produce.transactions import Transaction
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.replicate.link import Link

_TOPIC: Final = "__consumer_offsets"
"""Offsets can be committed only for a topic that exists, and this one does wherever groups do."""
_TIMEOUT_MS: Final = 60_000
_RENEWALS: Final = 4
"""Renewals within the time after which others take over."""


class Lease:
    """The lease as one instance sees it. Call `hold` before each piece of work."""

    def __init__(
        self,
        client: KafkaClient,
        link: Link,
        read: Callable[[], tuple[CommittedOffset, ...]],
        *,
        takeover_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` returns the committed offsets of the link's lease group."""
        self._client, self._link, self._read = client, link, read
        self._takeover_s, self._patience_s, self._clock = takeover_s, patience_s, clock
        self.instance = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._held: Transaction | None = None
        self._renewed_at = 0.0
        self._count = 0
        self._seen: tuple[str, int] | None = None
        """The holder and the count of its renewals, as last seen."""
        self._seen_at = 0.0

    @property
    def holder(self) -> str | None:
        """The instance that was last seen to hold the lease; None: nobody, or this one."""
        return None if self._held is not None or self._seen is None else self._seen[0]

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer of the lease, while it is held. What it writes is refused once another instance has written."""
        return None if self._held is None else self._held.identity

    def hold(self) -> bool:
        """Whether this instance holds the lease now: take it if it is free, renew it if it is due."""
        if self._held is not None:
            if self._clock() - self._renewed_at < self._takeover_s / _RENEWALS:
                return True
            if self._renew(self._held):
                return True
        seen = self._look()
        if seen != self._seen:
            self._seen, self._seen_at = seen, self._clock()
        if seen is not None and self._clock() - self._seen_at < self._takeover_s:
            return False
        taken = begin(self._client, self._link.group_id, timeout_ms=_TIMEOUT_MS)
        self._count = 0 if seen is None else seen[1]
        return self._renew(taken)

    def release(self) -> None:
        """Let another instance take the lease at once."""
        if self._held is not None:
            self._commit(self._held, None)
            self._held = None

    def _renew(self, transaction: Transaction) -> bool:
        began = self._clock()
        self._held = transaction if self._commit(transaction, self.instance) else None
        self._renewed_at = began
        return self._held is not None

    def _commit(self, transaction: Transaction, instance: str | None) -> bool:
        self._count += 1
        offset = CommittedOffset(
            topic=_TOPIC,
            topic_id=None,
            partition=0,
            offset=self._count,
            leader_epoch=-1,
            metadata=json.dumps({"maxbrod": 1, "instance": instance}),
        )
        try:
            commit_offsets_in(self._client, transaction, self._link.lease_id, [offset], patience_s=self._patience_s)
            end(self._client, transaction, commit=True, patience_s=self._patience_s)
        except RefusedError:
            return False  # another instance has taken it
        except MaxbrodError as error:
            if error.retryable or isinstance(error, UsageError):
                raise
            raise UnavailableError(f"the lease cannot be renewed: {error}", object_name=self._link.lease_id) from error
        return True

    def _look(self) -> tuple[str, int] | None:
        """The holder and its count; None: nobody holds the lease."""
        for each in self._read():
            try:
                note = json.loads(each.metadata or "")
                return (str(note["instance"]), each.offset) if note["instance"] is not None else None
            except (ValueError, KeyError, TypeError):
                continue
        return None
