"""The aborted transactions of a partition: by the markers in its logs, and by `__transaction_state`.

`__transaction_state` holds what coordinators had decided before they wrote the markers. A key is `version int16 ·
transactional id`. A value begins with its version; version 1 is flexible. The last record of a producer names the
partitions of the transaction in progress, and its state.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.fields import Fields
from maxbrod.layouts.foreign import Fault, ForeignSegment
from maxbrod.layouts.last_records import COLUMNS, last_records
from maxbrod.layouts.logdir.reader import read
from maxbrod.layouts.logdir.scan import ABORTED, DATA, ScannedLog
from maxbrod.model import AbortedTransaction, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maxbrod.storage.interface import Storage
TOPIC: Final = "__transaction_state"
_VALUE_VERSION_MAX: Final = 1
_CLIENT_VERSION_TAG: Final = 2
_EPOCH_FOR_EACH: Final = 2
"""From this version of transactions on, each transaction has its own producer epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction without a marker in the log."""

    producer_id: int
    producer_epoch: int
    first_offset: int


def fold(logs: Sequence[ScannedLog]) -> tuple[list[AbortedTransaction], list[OpenTransaction]]:
    """Aborted transactions, and open ones in order of offsets.

    A transaction that began before the log counts from the log's first offset on.
    """
    first = next((log.base_offset for log in logs), 0)
    open_since: dict[int, OpenTransaction] = {}
    ended: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    for producer_id, epoch, offset, kind in (event for log in logs for event in log.events):
        if kind == DATA:
            begun = OpenTransaction(producer_id=producer_id, producer_epoch=epoch, first_offset=offset)
            open_since.setdefault(producer_id, begun)
            continue
        begun_at = open_since.pop(producer_id, None)
        began = ended.get(producer_id, first) if begun_at is None else begun_at.first_offset
        ended[producer_id] = offset + 1
        if kind == ABORTED:
            aborted.append(AbortedTransaction(producer_id=producer_id, first_offset=began, last_offset=offset))
    return aborted, sorted(open_since.values(), key=lambda transaction: transaction.first_offset)


def marker_after(logs: Sequence[ScannedLog], producer_id: int, offset: int) -> int | None:
    """The kind of a producer's first marker from an offset on; None if there is none."""
    events = (event for log in logs if log.end_offset > offset for event in log.events)
    return next((kind for who, _, at, kind in events if who == producer_id and at >= offset and kind != DATA), None)


def touching(
    aborted: Sequence[AbortedTransaction], base_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Return the transactions that reach into a range, as far as they do."""
    return tuple(
        replace(one, last_offset=min(one.last_offset, end_offset - 1))
        for one in aborted
        if one.first_offset < end_offset and one.last_offset >= base_offset
    )


class Status(IntEnum):
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3


class Fate(Enum):
    """The end of a transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The state of the transaction that a producer had in progress."""

    producer_id: int
    producer_epoch: int
    status: int
    partitions: frozenset[TopicPartition]
    client_version: int

    def verdict(self, where: TopicPartition, producer_epoch: int, *, all_copies: bool) -> Fate:
        """The verdict on an open transaction whose batches have this epoch.

        The decision must be about this very transaction: the copy may lack its end, and the decision may be about the
        next one. Its own epoch proves it; otherwise, that no other copy of the partition exists.
        """
        preparing = self.status in {Status.PREPARE_COMMIT, Status.PREPARE_ABORT}
        own_epochs = self.client_version >= _EPOCH_FOR_EACH
        expected_epoch = producer_epoch + 1 if own_epochs and preparing else producer_epoch
        if where not in self.partitions or self.producer_epoch != expected_epoch or not (own_epochs or all_copies):
            return Fate.UNKNOWN
        if self.status == Status.PREPARE_COMMIT:
            return Fate.COMMITTED
        return Fate.ABORTED if preparing or self.status == Status.ONGOING else Fate.UNKNOWN


def read_decisions(
    storage: Storage, partitions: Sequence[Sequence[ForeignSegment]], faults: list[Fault]
) -> dict[int, ProducerState]:
    """Decisions by producer id. `partitions` are the segments of each partition of the topic, in order."""
    found: dict[int, ProducerState] = {}
    for segments in filter(None, partitions):
        batches = (batch for segment in segments for batch in read(storage, segment, COLUMNS))
        records = last_records(batches, committed=True)
        columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
        for offset, key, value in zip(*columns, strict=True):
            try:
                decision = decode_decision(key, value)
            except (CorruptDataError, UnsupportedFormatError) as error:
                message = f"{error.message}; this record of a transaction is skipped"
                faults.append(Fault(path=segments[0].path, message=message, offset=offset, fatal=False))
                continue
            if decision is not None:
                found[decision.producer_id] = decision
    return found


def decode_decision(key: bytes, value: bytes | None) -> ProducerState | None:
    """None for an expired producer, or a record of another kind."""
    if value is None or Fields(key).number("h") != 0:
        return None
    fields = Fields(value)
    version = fields.number("h")
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise UnsupportedFormatError(f"the state of a transaction has the version {version}")
    fields.flexible = version >= 1
    producer_id, producer_epoch = fields.number("q"), fields.number("h")
    fields.number("i")
    status = fields.number("b")
    partitions = frozenset(_partitions(fields))
    fields.number("q"), fields.number("q")
    client_version = fields.tags().get(_CLIENT_VERSION_TAG, b"\0\0")
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        status=status,
        partitions=partitions,
        client_version=int(struct.unpack(">h", client_version)[0]),
    )


def _partitions(fields: Fields) -> Iterator[TopicPartition]:
    for _ in range(fields.count_or_none() or 0):
        topic = fields.text()
        for partition in fields.numbers("i"):
            yield TopicPartition(topic=topic, partition=partition)
        fields.tags()
