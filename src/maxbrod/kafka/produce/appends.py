"""What is appended to partitions, and what comes back: batches, holes, acknowledgements. Values; nothing is sent.

Owns what a batch must say so that a broker takes it from a client: base offset 0, no leader epoch, whether it is part
of its producer's transaction, and who that producer is with the sequence number of its first record.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from maxbrod.batch.headers import ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_TRANSACTIONAL
from maxbrod.batch.patch import patch
from maxbrod.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.kafka.produce.producer_ids import ProducerIdentity
    from maxbrod.model import TopicPartition

_SEQUENCE_MASK: Final = 0x7FFFFFFF
_DROPPED: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_DELETE_HORIZON
_ENCODE: Final = "decode it and encode it again"


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, stamped. `source_offset` is where its first record stands in the archive: errors name it."""

    data: NDArray[np.uint8]
    count: int
    source_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """So many offsets that no record shall have. They are filled with markers, which no consumer sees."""

    count: int
    source_offset: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a hole of {self.count} offsets is none")


class Later(Enum):
    """There is nothing to append yet, but there will be."""

    LATER = "later"


LATER: Final = Later.LATER
Append: TypeAlias = Batch | Hole


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """All that is to be appended to one partition, in order.

    `first_offset` is the log's end now: each batch must land exactly where the one before it ended, or somebody
    else writes to the partition too, and that is refused. None: others may write, and batches land anywhere, in order;
    there are no holes then. Feeds of one source may say LATER: they are asked again when others have been acknowledged.
    """

    where: TopicPartition
    topic_id: UUID
    first_offset: int | None
    appends: Iterable[Append | Later]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """All in-sync replicas have it. `log_append_time_ms` is -1 where the topic keeps the times of its producers.

    `base_offset` is -1 where a batch may land anywhere and the broker no longer knows where this one did.
    """

    where: TopicPartition
    base_offset: int
    count: int
    source_offset: int
    log_append_time_ms: int


def sequence_after(sequence: int, count: int) -> int:
    """The sequence number of the record that comes so many records later: from 2**31 - 1 on to 0."""
    return (sequence + count) & _SEQUENCE_MASK


def stamped(
    data: NDArray[np.uint8],
    headers: BatchHeaders,
    identity: ProducerIdentity,
    *,
    first_sequence: int,
    transactional: bool = False,
) -> list[Batch]:
    """The batches of `data` (changed in place, so it must be writable) as this producer's next ones.

    Batches that a broker takes from no client are refused: with control records, holes in their offsets, log-append
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
                f"a broker does not take this batch from a client: it {what}",
                operation="produce",
                offset=int(headers["base_offset"][row]),
                position=int(headers.position[row]),
                hint=hint,
            )
