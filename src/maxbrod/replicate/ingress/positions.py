"""The positions of a link that appends: taken before anything is appended, and committed with the records.

Each source topic has a transactional id for each destination partition. Taking it fences whoever had it before, and
ends that one's transaction. A position is a mark: a committed offset of the link's group. If a link appends several
source topics to one topic, they have groups of their own, because a group has one offset for each partition; only one
that was alone at first stays in the link's own group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError, ProducerFencedError, UsageError
from maxbrod.kafka.produce.transactions import Transaction, begin, commit_offsets_in, end, longest_timeout_ms
from maxbrod.kafka.state.groups import read_settled_offsets
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.replicate.link import Link, Mark, PositionKey, is_position_of, read_marks

if TYPE_CHECKING:
    from maxbrod.kafka.wire.client import KafkaClient

TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Brokers allow 15 minutes by default. A transaction is longer than the limits of a task if the source's own are."""
# Other answers to a producer whose transaction has ended by a timeout.
_OVER: Final = (
    "INVALID_TXN_STATE",
    "INVALID_PRODUCER_ID_MAPPING",
    "OUT_OF_ORDER_SEQUENCE_NUMBER",
    "UNKNOWN_PRODUCER_ID",
    "TRANSACTION_ABORTABLE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The right to append to a partition, and how far the link has come."""

    key: PositionKey
    transaction: Transaction
    group_id: str
    """The group that has the mark, or gets it."""
    mark: Mark | None
    """None: the link has not begun, or brokers have forgotten it."""


def is_over(error: MaxbrodError) -> bool:
    """Whether another instance, or a timeout, has ended a transaction. Nothing of it is committed."""
    return isinstance(error, ProducerFencedError) or any(code in error.message for code in _OVER)


def take_position(client: KafkaClient, link: Link, key: PositionKey, *, joined: bool, patience_s: float) -> Position:
    """Fence every other instance, then read how far the link has come."""
    source, where = key
    name = link.transactional_id(key)
    try:
        transaction = begin(client, name, timeout_ms=TRANSACTION_TIMEOUT_MS, patience_s=patience_s)
    except UsageError as error:
        if "INVALID_TRANSACTION_TIMEOUT" not in error.message:
            raise
        transaction = begin(client, name, timeout_ms=longest_timeout_ms(client), patience_s=patience_s)
    taken = False
    groups = (link.group_id, link.group_of(source))
    for group_id in reversed(groups) if joined else groups:
        committed = read_settled_offsets(client, group_id, [where], deadline=Deadline.after(patience_s))
        mark = read_marks(committed).get(where)
        if is_position_of(mark, source):
            return Position(key=key, transaction=transaction, group_id=group_id, mark=mark)
        taken = taken or mark is not None
    # Another source may begin at the same time, unless this one is the only one.
    return Position(key=key, transaction=transaction, group_id=groups[joined or taken], mark=None)


def put_mark(client: KafkaClient, position: Position, mark: Mark, *, patience_s: float) -> None:
    """Commit a mark, with all that was appended in the transaction."""
    _, where = position.key
    offsets = [mark.committed(where)]
    commit_offsets_in(client, position.transaction, position.group_id, offsets, patience_s=patience_s)
    end(client, position.transaction, commit=True, patience_s=patience_s)
