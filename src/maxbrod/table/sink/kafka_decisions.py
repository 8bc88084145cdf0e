"""The decisions of a sink, stored where a restart finds them: one object for each, one more when it is carried out.

    decisions/<batch, 20 digits>-<attempt, 4 digits>.json   the transactions that are to be committed
    decisions/<the same>.done                               they are committed
    decisions/<the same>.void                               none of them was committed, and none can be any more

An object is created once and never changed. Only the newest decision matters; older ones are deleted.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

from pydantic import TypeAdapter

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, ObjectExistsError, UnsupportedFormatError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.transactions import Transaction
from maxbrod.model import TopicPartition
from maxbrod.storage.interface import Storage

FORMAT: Final = "maxbrod-kafka-sink/1"
_FOLDER: Final = "decisions"
_NAME: Final = re.compile(_FOLDER + r"/(?P<batch>\d{20})-(?P<attempt>\d{4})\.(?P<kind>json|done|void)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """An open transaction that holds all records of an attempt, and their number by partition."""

    transaction: Transaction
    records: dict[TopicPartition, int]


class DecisionOutcome(Enum):
    """The state of a decision."""

    PENDING = "json"
    DONE = "done"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDecision:
    """These transactions, and no others, are the batch. `attempt` counts earlier decisions on it that became void."""

    batch_id: int
    attempt: int
    query_id: str | None
    filled: tuple[Filled, ...]

    @property
    def path(self) -> str:
        """Without the extension."""
        return f"{_FOLDER}/{self.batch_id:020}-{self.attempt:04}"


class BatchDecisions:
    """The decisions of one sink. If two drivers decide on one batch, the object exists already and one is refused."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def newest(self) -> tuple[BatchDecision, DecisionOutcome] | None:
        found: dict[tuple[int, int], set[str]] = {}
        for info in self.storage.list(_FOLDER):
            name = _NAME.fullmatch(info.path)
            if name is not None:
                found.setdefault((int(name["batch"]), int(name["attempt"])), set()).add(name["kind"])
        decided = [key for key, kinds in found.items() if DecisionOutcome.PENDING.value in kinds]
        if not decided:
            return None
        newest = max(decided)
        kinds = found[newest]
        outcome = next(
            (outcome for outcome in (DecisionOutcome.DONE, DecisionOutcome.VOID) if outcome.value in kinds),
            DecisionOutcome.PENDING,
        )
        return self._read(*newest), outcome

    def decide(self, decision: BatchDecision) -> None:
        """The decision is durable when this returns. ObjectExistsError: another driver has decided."""
        self.storage.put(f"{decision.path}.json", _encode(decision))

    def settle(self, decision: BatchDecision, outcome: DecisionOutcome) -> None:
        try:
            self.storage.put(f"{decision.path}.{outcome.value}", b"")
        except ObjectExistsError:
            return  # recorded before, and an outcome never changes

    def forget_before(self, decision: BatchDecision) -> None:
        old = [info.path for info in self.storage.list(_FOLDER) if info.path.rsplit(".", 1)[0] < decision.path]
        # If this is interrupted, the rest of a decision must not look pending. So the .json object is deleted first.
        self.storage.delete([path for path in old if path.endswith(".json")])
        self.storage.delete([path for path in old if not path.endswith(".json")])

    def _read(self, batch_id: int, attempt: int) -> BatchDecision:
        empty = BatchDecision(batch_id=batch_id, attempt=attempt, query_id=None, filled=())
        path = f"{empty.path}.json"
        name = self.storage.name_of(path)
        try:
            data = bytes(self.storage.get(path))
            # Looked at first: in another format the rest may be anything.
            if (found := strict_json.parse(data)["format"]) != FORMAT:
                hint = "it was written by another release of maxbrod: use that one"
                raise UnsupportedFormatError(f"the decision is in the format {found!r}", object_name=name, hint=hint)
            document = _DOCUMENT.validate_json(data, strict=True)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError("the decision cannot be read", object_name=name) from error
        filled = tuple(transaction.filled() for transaction in document.transactions)
        return BatchDecision(batch_id=batch_id, attempt=attempt, query_id=document.query_id, filled=filled)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTransaction:
    """A transaction as it is stored: these fields, in this order."""

    transactional_id: str
    producer_id: int
    epoch: int
    records: list[tuple[str, int, int]]
    """Topic, partition and count."""

    def filled(self) -> Filled:
        identity = ProducerIdentity(producer_id=self.producer_id, epoch=self.epoch)
        return Filled(
            transaction=Transaction(transactional_id=self.transactional_id, identity=identity),
            records={TopicPartition(topic=topic, partition=number): count for topic, number, count in self.records},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredDecision:
    format: str = FORMAT
    batch_id: int
    query_id: str | None
    transactions: list[_StoredTransaction]


_DOCUMENT: Final = TypeAdapter(_StoredDecision)


def _encode(decision: BatchDecision) -> bytes:
    transactions = [
        _StoredTransaction(
            transactional_id=attempt.transaction.transactional_id,
            producer_id=attempt.transaction.identity.producer_id,
            epoch=attempt.transaction.identity.epoch,
            records=[(where.topic, where.partition, count) for where, count in sorted(attempt.records.items())],
        )
        for attempt in decision.filled
    ]
    document = _StoredDecision(batch_id=decision.batch_id, query_id=decision.query_id, transactions=transactions)
    return json.dumps(asdict(document), indent=1).encode()
