"""Moves the end of a log on without a record that any consumer would see: by fillers, or by empty transactions.

Fillers are for the start of a log, millions of offsets at a time; they are records, and `delete_records` takes them
away. Empty transactions are for holes between records where this user may not write markers itself (for those who
may, a `Hole` in a feed is a hundred times as fast): one offset in each partition for each transaction.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from maxbrod.batch.fillers import FILLER_RECORDS_MAX, filler
from maxbrod.batch.headers import walk
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.kafka.fetch.log_ends import log_ends
from maxbrod.kafka.produce.appends import sequence_after, stamped
from maxbrod.kafka.produce.producer_ids import transactional_producer_id
from maxbrod.kafka.produce.refusals import misplaced
from maxbrod.kafka.produce.transactions import Transaction, add_request, added, end_request
from maxbrod.kafka.wire.client import PATIENCE_S, gave_up, retry
from maxbrod.kafka.wire.coordination import TRANSACTION, find_coordinator
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code, answered_with, code_name
from maxbrod.model import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from maxbrod.kafka.produce.appends import Batch
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.model import TopicPartition

_OPERATION: Final = "fill holes by empty transactions"
# While the markers of the transaction before are being written, which takes a few milliseconds.
_BREATH_S: Final = 0.001
_DENIED: Final[dict[int, str]] = {
    Code.TOPIC_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write to the topic",
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "this user needs an ACL that allows it to Write the transactional id",
}


def fillers(
    count: int, identity: ProducerIdentity, *, first_sequence: int = 0, timestamp_ms: int | None = None
) -> Iterator[Batch]:
    """Stamped batches of empty records, so many in all. Not for compacted topics: they refuse records without key."""
    time_ms = now_ms() if timestamp_ms is None else timestamp_ms
    full = filler(FILLER_RECORDS_MAX, timestamp_ms=time_ms) if count >= FILLER_RECORDS_MAX else None
    sequence = first_sequence
    for first in range(0, count, FILLER_RECORDS_MAX):
        size = min(FILLER_RECORDS_MAX, count - first)
        # A batch under way must not change: each is a copy of its own.
        data = full.copy() if full is not None and size == FILLER_RECORDS_MAX else filler(size, timestamp_ms=time_ms)
        yield from stamped(data, walk(data, check_crc=False), identity, first_sequence=sequence)
        sequence = sequence_after(sequence, size)


def fill_by_transactions(
    client: KafkaClient, ends: Mapping[TopicPartition, int], *, transactional_id: str, patience_s: float = PATIENCE_S
) -> None:
    """Move the end of each log on to this offset, by one transaction that holds nothing after another.

    Run again after a crash, with the same id and the same ends, it goes on where the logs are. Nobody else may write
    to the partitions or use the id meanwhile. Raises RefusedError where a log ends beyond what was asked for.
    """
    filling = _Filling(client, transactional_id, patience_s)
    # First, because what an earlier run left open is ended by it, and that moves the logs on as well.
    filling.take_over()
    remaining = _remaining(ends, log_ends(client, ends, deadline=filling.deadline))
    while remaining:
        filling.one(sorted(remaining))
        remaining = {where: count - 1 for where, count in remaining.items() if count > 1}
    filling.wait_until(ends)


def _remaining(wanted: Mapping[TopicPartition, int], found: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    for where, end in found.items():
        if end > wanted[where]:
            raise misplaced(where, wanted[where], landed=end, expected=wanted[where])
    return {where: wanted[where] - end for where, end in found.items() if end < wanted[where]}


class _Filling:
    """One producer with a transactional id, and the broker that coordinates it."""

    def __init__(self, client: KafkaClient, transactional_id: str, patience_s: float) -> None:
        self._client = client
        self._transactional_id = transactional_id
        self._patience_s = patience_s
        self._coordinator: int | None = None
        self.deadline = Deadline.after(patience_s)

    def take_over(self) -> None:
        identity = transactional_producer_id(self._client, self._transactional_id, deadline=self.deadline)
        self._transaction = Transaction(transactional_id=self._transactional_id, identity=identity)

    def one(self, partitions: Sequence[TopicPartition]) -> None:
        """One transaction; the markers of the one before are written when it begins."""
        self.deadline = Deadline.after(self._patience_s)
        self._ask(lambda: add_request(self._transaction, partitions), added)
        self._ask(lambda: end_request(self._transaction, commit=True), lambda answer: int(answer.error_code))

    def wait_until(self, ends: Mapping[TopicPartition, int]) -> None:
        def once(limit: Deadline) -> None:
            missing = _remaining(ends, log_ends(self._client, ends, deadline=limit))
            if missing:
                raise UnavailableError("markers are not written yet", object_name=str(next(iter(missing))))

        retry(once, deadline=Deadline.after(self._patience_s), what="the markers of empty transactions")

    def _ask(self, build: Callable[[], Message], error_of: Callable[[Message], int]) -> None:
        """Both requests may be made twice: the coordinator knows what it has done already."""
        began = time.monotonic()

        def once(limit: Deadline) -> None:
            while True:
                code = self._ask_once(build, error_of, limit)
                if code != Code.CONCURRENT_TRANSACTIONS:
                    break
                if limit.passed:
                    error = UnavailableError("the transaction before is not complete", operation=_OPERATION)
                    raise gave_up(error, "the coordinator", time.monotonic() - began)
                time.sleep(_BREATH_S)
            if code in _DENIED:
                message = f"the broker answered {code_name(code)}"
                raise UsageError(message, operation=_OPERATION, object_name=self._transactional_id, hint=_DENIED[code])
            if code:
                self._coordinator = None
                raise answered_with(code, operation=_OPERATION, object_name=self._transactional_id)

        retry(once, deadline=self.deadline, what=f"the coordinator of the transactional id {self._transactional_id}")

    def _ask_once(self, build: Callable[[], Message], error_of: Callable[[Message], int], limit: Deadline) -> int:
        if self._coordinator is None:
            self._coordinator = find_coordinator(self._client, self._transactional_id, TRANSACTION, deadline=limit)
        try:
            return error_of(self._client.ask_broker(self._coordinator, build(), deadline=limit))
        except UnavailableError:
            self._coordinator = None
            raise
