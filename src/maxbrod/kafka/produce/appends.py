"""The values of appending to partitions: batches, holes, acknowledgements. Nothing is sent here.

Owns the header fields that a broker requires from a client: base offset 0, no leader epoch, whether the batch is part
of a transaction, and its producer with the sequence number of the first record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from maxbrod.batch.headers import ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL, BatchHeaders
from maxbrod.batch.patch import patch
from maxbrod.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from numpy.typing import NDArray

    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.model import TopicPartition

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_DROPPED: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_DELETE_HORIZON
_ENCODE: Final = "decode it and encode it again"


@dataclass(frozen=True, slots=True)
class Batch:
    """One stamped batch. `source_offset` is the archive offset of its first record, which errors name."""

    data: NDArray[np.uint8]
    count: int
    source_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """A number of offsets without records. They are filled with markers, which no consumer sees."""

    count: int
    source_offset: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a hole needs at least 1 offset, not {self.count}")


class Later(Enum):
    """Nothing to append yet, but later."""

    LATER = "later"


LATER: Final = Later.LATER
Append: TypeAlias = Batch | Hole


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """All that is to be appended to one partition, in order.

    `first_offset` is the current log end offset. Each batch must be appended exactly where the one before it ended;
    otherwise somebody else writes to the partition, and that is refused. None: others may write, batches are appended
    anywhere in order, and there are no holes. Feeds that share a source may yield LATER: they are polled again when
    others have been acknowledged.
    """

    where: TopicPartition
    topic_id: UUID
    first_offset: int | None
    appends: Iterable[Append | Later]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """All in-sync replicas have the append. `log_append_time_ms` is -1 if the topic keeps the producers' times.

    `base_offset` is -1 if a batch may be appended anywhere and the broker no longer knows its offset.
    """

    where: TopicPartition
    base_offset: int
    count: int
    source_offset: int
    log_append_time_ms: int


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number `count` records later. It wraps from 2**31 - 1 to 0."""
    return (sequence + count) & _SEQUENCE_MASK


def stamped(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    identity: ProducerIdentity,
    *,
    first_sequence: int,
    transactional: bool = False,
) -> list[Batch]:
    """Patch the batches of `data` in place as the next ones of this producer.

    Refused are batches that a broker accepts from no client: with control records, holes in their offsets, log-append
    time, or of magic 0 and 1. Committed transactional batches become plain ones, unless all are to be `transactional`.
    """
    _refuse_unfit(headers)
    counts = headers["count"].astype(np.int64)
    sequences = first_sequence + np.cumsum(counts) - counts
    new = patch(
        data,
        headers,
        base_offset=0,
        leader_epoch=-1,
        attributes=headers["attributes"] & ~np.int16(_DROPPED) | (ATTRIBUTE_TRANSACTIONAL if transactional else 0),
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequences & _SEQUENCE_MASK,
    )
    rows = zip(new.position.tolist(), new.size.tolist(), counts.tolist(), headers["base_offset"].tolist(), strict=True)
    return [Batch(data[start : start + size], count, offset) for start, size, count, offset in rows]


def _refuse_unfit(headers: BatchHeaders) -> None:
    span = headers["last_offset_delta"].astype(np.int64) + 1
    for unfit, what, hint in (
        (headers["magic"] != 2, "is of an old format", _ENCODE),
        (headers.control, "holds control records", "leave it out: a marker takes its place"),
        (headers.log_append, "has log-append time", f"{_ENCODE}, with create time"),
        (headers["count"] != span, "has holes in its offsets", _ENCODE),
    ):
        if unfit.any():
            row = int(np.flatnonzero(unfit)[0])
            raise UnsupportedFormatError(
                f"a broker does not accept this batch from a client: it {what}",
                operation="produce",
                offset=int(headers["base_offset"][row]),
                position=int(headers.position[row]),
                hint=hint,
            )
