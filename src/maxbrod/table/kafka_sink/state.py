"""What a sink has decided, where a restart finds it: one object for each decision, one more when it is carried out.

    decisions/<batch, 20 digits>-<attempt, 4 digits>.json   the transactions that are to be committed
    decisions/<the same>.done                               they are committed
    decisions/<the same>.void                               none of them was, and none can be any more

An object is created once and never changed. Only the newest decision matters; older ones are deleted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError, ObjectExistsError, UnsupportedFormatError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.transactions import Transaction
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

FORMAT: Final = "maxbrod-kafka-sink/1"
_FOLDER: Final = "decisions"
_NAME: Final = re.compile(_FOLDER + r"/(?P<batch>\d{20})-(?P<attempt>\d{4})\.(?P<kind>json|done|void)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A transaction that holds all records of an attempt and waits for its end."""

    transaction: Transaction
    records: dict[TopicPartition, int]


class Outcome(Enum):
    """What became of a decision."""

    PENDING = "json"
    DONE = "done"
    VOID = "void"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """These transactions, and no others, are the batch. `attempt` counts earlier ones on it that came to nothing."""

    batch_id: int
    attempt: int
    query_id: str | None
    filled: tuple[Filled, ...]

    @property
    def path(self) -> str:
        """Without the ending that says what it is about."""
        return f"{_FOLDER}/{self.batch_id:020}-{self.attempt:04}"


class Decisions:
    """Those of one sink. Two drivers that decide on one batch meet at the name of an object, and one is refused."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def newest(self) -> tuple[Decision, Outcome] | None:
        found: dict[tuple[int, int], set[str]] = {}
        for each in self.storage.list(_FOLDER):
            name = _NAME.fullmatch(each.path)
            if name is not None:
                found.setdefault((int(name["batch"]), int(name["attempt"])), set()).add(name["kind"])
        decided = [key for key, kinds in found.items() if Outcome.PENDING.value in kinds]
        if not decided:
            return None
        newest = max(decided)
        kinds = found[newest]
        outcome = next((each for each in (Outcome.DONE, Outcome.VOID) if each.value in kinds), Outcome.PENDING)
        return self._read(*newest), outcome

    def decide(self, decision: Decision) -> None:
        """Durable when this returns. ObjectExistsError: somebody else has decided."""
        self.storage.put(f"{decision.path}.json", _encode(decision))

    def settle(self, decision: Decision, outcome: Outcome) -> None:
        try:
            self.storage.put(f"{decision.path}.{outcome.value}", b"")
        except ObjectExistsError:
            return  # said before, and it stays true

    def forget_before(self, decision: Decision) -> None:
        old = [each.path for each in self.storage.list(_FOLDER) if each.path.rsplit(".", 1)[0] < decision.path]
        # What is left of a decision must never look like one that waits: so its first object goes first.
        self.storage.delete([path for path in old if path.endswith(".json")])
        self.storage.delete([path for path in old if not path.endswith(".json")])

    def _read(self, batch_id: int, attempt: int) -> Decision:
        empty = Decision(batch_id=batch_id, attempt=attempt, query_id=None, filled=())
        path = f"{empty.path}.json"
        name = self.storage.name_of(path)
        try:
            document = json.loads(bytes(self.storage.get(path)))
            found = document["format"]
            if found != FORMAT:
                hint = "it was written by another release of maxbrod: use that one"
                raise UnsupportedFormatError(f"the decision is of the format {found!r}", object_name=name, hint=hint)
            filled = tuple(_filled(each) for each in document["transactions"])
            return Decision(batch_id=batch_id, attempt=attempt, query_id=document["query_id"], filled=filled)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError("the decision cannot be read", object_name=name) from error


def _encode(decision: Decision) -> bytes:
    document = {
        "format": FORMAT,
        "batch_id": decision.batch_id,
        "query_id": decision.query_id,
        "transactions": [_document(each) for each in decision.filled],
    }
    return json.dumps(document, indent=1).encode()


def _document(filled: Filled) -> dict[str, Any]:
    transaction = filled.transaction
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.identity.producer_id,
        "epoch": transaction.identity.epoch,
        "records": [[where.topic, where.partition, count] for where, count in sorted(filled.records.items())],
    }


def _filled(document: dict[str, Any]) -> Filled:
    identity = ProducerIdentity(producer_id=document["producer_id"], epoch=document["epoch"])
    return Filled(
        transaction=Transaction(transactional_id=document["transactional_id"], identity=identity),
        records={
            TopicPartition(topic=topic, partition=partition): count for topic, partition, count in document["records"]
        },
    )
