"""The second phase of a commit: the driver decides durably which transactions are the batch, and then commits them.

Before the decision any transaction may be aborted. After it every one must be committed, by this driver or by the next.
If all transactions of a decision timed out before any was committed, the decision is void and the batch may be written
again. If only some were committed, that is an error that names the missing records, and is never ignored.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import WriterCommitMessage

from maxbrod.errors import MaxbrodError, ObjectExistsError, RefusedError, UnavailableError
from maxbrod.kafka.produce.producer_ids import transactional_producer_id
from maxbrod.kafka.produce.transactions import Standing, end, ongoing, standings
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.table.kafka_sink.state import Decision, Decisions, Filled, Outcome
from maxbrod.text import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from maxbrod.config import KafkaConfig

_LOG: Final = logging.getLogger(__name__)
# The batch is committed by then. Transactions that cannot be aborted in this time are aborted with the next batch.
_SWEEP_PATIENCE_S: Final = 30.0
OPERATION: Final = "commit a batch"
_NAMED_MAX: Final = 5
# The second round decides; more are for a coordinator that moves meanwhile.
_ROUNDS_MAX: Final = 5


@dataclass(frozen=True, kw_only=True)
class Written(WriterCommitMessage):  # type: ignore[misc]  # pyspark is not typed
    """The message of one attempt to the driver. `filled` is None if there was no row, or all are in Kafka already."""

    filled: Filled | None = None
    query_id: str | None = None
    """Spark's id of the query, which a restart keeps."""
    skipped: bool = False
    """Whether rows were skipped, because their batch is committed already."""


class Committer:
    """Commits the batches of one sink. Without `decisions`, a decision does not outlive this process."""

    def __init__(self, kafka: KafkaConfig, ids_prefix: str, decisions: Decisions | None) -> None:
        self._kafka = kafka
        self._ids_prefix = ids_prefix
        self._decisions = decisions

    def recover(self) -> tuple[Decision, Outcome] | None:
        """Carry out the pending decision of an earlier driver, if any. Returns the newest decision and its outcome."""
        decisions = self._decisions
        newest = None if decisions is None else decisions.newest()
        if decisions is None or newest is None or newest[1] is not Outcome.PENDING:
            return newest
        with KafkaClient(self._kafka) as client:
            return newest[0], finish(client, decisions, newest[0])

    def commit(self, messages: Iterable[Written | None], batch_id: int) -> None:
        written = [message for message in messages if message is not None]
        filled = tuple(each.filled for each in written if each.filled is not None)
        query_id = next((each.query_id for each in written if each.query_id is not None), None)
        attempt = 0
        newest = self.recover()
        if newest is not None:
            decided, outcome = newest
            _refuse_foreign(decided, batch_id, query_id)
            if decided.batch_id == batch_id and outcome is Outcome.DONE:
                _LOG.info("batch %d is already in Kafka", batch_id)
                self.abort(written)
                return
            attempt = decided.attempt + 1 if decided.batch_id == batch_id else 0
        if any(each.skipped for each in written):
            raise RefusedError("tasks skipped rows, but there is no decision on their batch", operation=OPERATION)
        with KafkaClient(self._kafka) as client:
            if filled:
                decision = Decision(batch_id=batch_id, attempt=attempt, query_id=query_id, filled=filled)
                self._commit(client, decision)
            self._sweep(client, keep=())

    def abort(self, messages: Iterable[Written | None]) -> None:
        """Abort all transactions but decided ones: Spark aborts after a failed commit, too. The rest will time out."""
        try:
            newest = None if self._decisions is None else self._decisions.newest()
            pending = newest[0].filled if newest is not None and newest[1] is Outcome.PENDING else ()
            keep = {each.transaction for each in pending}
            with KafkaClient(self._kafka) as client:
                for message in messages:
                    if message is not None and message.filled is not None and message.filled.transaction not in keep:
                        _abort(client, message.filled)
                self._sweep(client, keep={each.transactional_id for each in keep})
        except MaxbrodError as error:
            _LOG.warning("transactions could not be aborted and will time out: %s", error)

    def _commit(self, client: KafkaClient, decision: Decision) -> None:
        _require_open(client, decision.filled)
        if self._decisions is None:
            _commit_at_once(client, decision.filled)
            return
        try:
            self._decisions.decide(decision)
        except ObjectExistsError:
            raise RefusedError(
                f"another driver has decided on batch {decision.batch_id}",
                operation=OPERATION,
                object_name=self._decisions.storage.name_of(decision.path),
                hint="make sure that only one query at a time writes with this state",
            ) from None
        if finish(client, self._decisions, decision) is Outcome.VOID:
            raise MaxbrodError(
                f"the transactions of batch {decision.batch_id} timed out before they were committed",
                operation=OPERATION,
                hint="none of its records is visible: start the query again, with a longer transactionTimeout",
            )
        self._decisions.forget_before(decision)

    def _sweep(self, client: KafkaClient, keep: Collection[str]) -> None:
        """Abort open transactions of attempts that were killed or lost the race: they would hold back every reader."""
        try:
            for name in ongoing(client, self._ids_prefix, patience_s=_SWEEP_PATIENCE_S):
                if name not in keep:
                    transactional_producer_id(client, name)
        except MaxbrodError as error:
            _LOG.warning("transactions of lost attempts could not be aborted and will time out: %s", error)


def _require_open(client: KafkaClient, filled: Sequence[Filled]) -> None:
    found = standings(client, (each.transaction for each in filled))
    lost = [each for each in filled if found[each.transaction.transactional_id] is not Standing.OPEN]
    if lost:
        raise MaxbrodError(
            f"{len(lost)} of {len(filled)} transactions were aborted before all tasks were done, by their timeout "
            f"or by another driver: {_counts(lost)}",
            operation=OPERATION,
            hint="none of the records is visible: write again, with a longer transactionTimeout",
        )


def _commit_at_once(client: KafkaClient, filled: Sequence[Filled]) -> None:
    """Commit without a stored decision. An error names the records that are missing."""
    for place, each in enumerate(filled):
        try:
            end(client, each.transaction, commit=True)
        except MaxbrodError as error:
            raise MaxbrodError(
                f"{place} of {len(filled)} transactions are committed, then one failed ({error.message}): "
                f"{_counts(filled[place:])} are missing",
                operation=OPERATION,
                hint="with the options state and writeId such a write can be finished by running it again",
            ) from error


def _abort(client: KafkaClient, filled: Filled) -> None:
    try:
        end(client, filled.transaction, commit=False)
    except RefusedError:
        return  # it has ended already


def _refuse_foreign(decided: Decision, batch_id: int, query_id: str | None) -> None:
    foreign = None not in {decided.query_id, query_id} and decided.query_id != query_id
    if foreign or decided.batch_id > batch_id:
        raise RefusedError(
            f"the state belongs to another query: it has batch {decided.batch_id}, and this is batch {batch_id}",
            operation=OPERATION,
            hint="a query with a new checkpoint needs a new state",
        )


def finish(client: KafkaClient, decisions: Decisions, decision: Decision) -> Outcome:
    """Carry out a decision and record the outcome, DONE or VOID. An earlier driver may have carried out a part."""
    for _ in range(_ROUNDS_MAX):
        found = standings(client, (each.transaction for each in decision.filled))
        kinds = set(found.values())
        if Standing.FORGOTTEN in kinds or kinds >= {Standing.ABORTED, Standing.COMMITTED}:
            raise _in_part(decisions, decision, found)
        void = Standing.ABORTED in kinds
        try:
            for each in decision.filled:
                if found[each.transaction.transactional_id] is Standing.OPEN:
                    end(client, each.transaction, commit=not void)
        except RefusedError:
            continue  # one has ended otherwise since the look: the next round judges by the state of all
        outcome = Outcome.VOID if void else Outcome.DONE
        decisions.settle(decision, outcome)
        if void:
            _LOG.warning("batch %d was decided on, but timed out; none of its records is visible", decision.batch_id)
        return outcome
    raise UnavailableError("the state of transactions keeps changing", operation=OPERATION, object_name=decision.path)


def _in_part(decisions: Decisions, decision: Decision, found: Mapping[str, Standing]) -> RefusedError:
    lost = [each for each in decision.filled if found[each.transaction.transactional_id] is not Standing.COMMITTED]
    name = decisions.storage.name_of(decision.path)
    return RefusedError(
        f"batch {decision.batch_id} was decided on, but {len(lost)} of its {len(decision.filled)} transactions "
        f"timed out before they were committed: {_counts(lost)} are missing",
        operation=OPERATION,
        object_name=f"{name}.json",
        hint=f"to continue without them, create the empty object {name}.done; to write the whole batch again, with "
        f"the records that are there, create {name}.void",
    )


def _counts(filled: Sequence[Filled]) -> str:
    counts: dict[str, int] = {}
    for each in filled:
        for where, count in each.records.items():
            counts[str(where)] = counts.get(str(where), 0) + count
    words = [f"{counted(count, 'record')} of {name}" for name, count in sorted(counts.items())]
    more = len(words) - _NAMED_MAX
    return ", ".join(words[:_NAMED_MAX]) + (f" and of {more} other partitions" if more > 0 else "")
