"""Advances the end of a log without records that consumers see: by fillers, or by empty transactions.

Fillers are for the start of a log, millions of offsets at a time. They are records, which `delete_records` removes.
Empty transactions are for holes between records if this user may not write markers; a `Hole` in a feed, for users that
may, is a hundred times as fast. Each transaction advances each partition by one offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from maxbrod.batch.fillers import FILLER_RECORDS_MAX, filler
from maxbrod.batch.headers import walk
from maxbrod.errors import UnavailableError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.produce.appends import Batch, misplaced, sequence_after, stamped
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, transactional_producer_id
from maxbrod.kafka.produce.transactions import Transaction, add_request, added, end_request
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient, gave_up, retry
from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.coordination import TRANSACTION, find_coordinator, refused_with
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.model import TopicPartition, now_ms

_OPERATION: Final = "fill holes by empty transactions"
# The pause while the markers of the previous transaction are written, which takes a few milliseconds.
_BREATH_S: Final = 0.001


def fillers(count: int, identity: ProducerIdentity, *, first_sequence: int = 0) -> Iterator[Batch]:
    """Yield stamped batches of `count` empty records in all. Compacted topics refuse them: they have no keys."""
    time_ms = now_ms()
    full = filler(FILLER_RECORDS_MAX, timestamp_ms=time_ms) if count >= FILLER_RECORDS_MAX else None
    sequence = first_sequence
    for first in range(0, count, FILLER_RECORDS_MAX):
        size = min(FILLER_RECORDS_MAX, count - first)
        # A batch in flight must not change, so each is a copy.
        data = full.copy() if full is not None and size == FILLER_RECORDS_MAX else filler(size, timestamp_ms=time_ms)
        yield from stamped(data, walk(data, check_crc=False), identity, first_sequence=sequence)
        sequence = sequence_after(sequence, size)


def fill_by_transactions(
    client: KafkaClient, ends: Mapping[TopicPartition, int], *, transactional_id: str, patience_s: float = PATIENCE_S
) -> None:
    """Advance the end of each log to this offset by successive empty transactions.

    After a crash, a call with the same id and the same ends resumes at the current log ends. Nobody else may write to
    the partitions or use the id in the meantime. Raises RefusedError if a log ends beyond the requested offset.
    """
    filling = _EmptyTransactions(client, transactional_id, patience_s)
    # First, because this fences the previous owner of the id and aborts its open transaction. Its markers advance the
    # logs as well, so the log ends are read afterwards.
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


class _EmptyTransactions:
    """One producer with a transactional id, and its coordinator."""

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
        """Run one transaction. The markers of the previous one are written before it begins."""
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
        """Both requests are idempotent, so a lost response is answered by sending the request again."""
        began = time.monotonic()

        def once(limit: Deadline) -> None:
            while True:
                code = self._ask_once(build, error_of, limit)
                if code != Code.CONCURRENT_TRANSACTIONS:
                    break
                if limit.passed:
                    error = UnavailableError("the previous transaction is not complete", operation=_OPERATION)
                    raise gave_up(error, "the coordinator", time.monotonic() - began)
                time.sleep(_BREATH_S)
            if code:
                self._coordinator = None
                raise refused_with(code, operation=_OPERATION, object_name=self._transactional_id)

        retry(once, deadline=self.deadline, what=f"the coordinator of the transactional id {self._transactional_id}")

    def _ask_once(self, build: Callable[[], Message], error_of: Callable[[Message], int], limit: Deadline) -> int:
        if self._coordinator is None:
            self._coordinator = find_coordinator(self._client, self._transactional_id, TRANSACTION, deadline=limit)
        try:
            return error_of(self._client.ask_broker(self._coordinator, build(), deadline=limit))
        except UnavailableError:
            self._coordinator = None
            raise
