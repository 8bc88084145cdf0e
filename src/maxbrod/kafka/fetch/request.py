"""The Fetch request: built with kafka-python's class, its answer read by hand.

By hand, because the library copies the records, and here they are most of the bytes: `records` is a slice of
the buffer that the socket wrote into. All versions from 13 to 18 have the layout that is read here.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kafka.protocol.consumer import FetchRequest

from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.kafka.wire.connection import Message

_HEADER: Final = struct.Struct(">ixihi")  # correlation id, no tagged field, throttle time, error code, session id
_PARTITION: Final = struct.Struct(">ihqqq")  # index, error code, high watermark, last stable, log start offset
_ABORTED: Final = struct.Struct(">qq")  # producer id, first offset
_DIVERGING: Final = struct.Struct(">iq")  # epoch, end offset
_TAG_DIVERGING: Final = 0
_VARINT_BYTES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFetch:
    """From where, at most how much. -1 for an epoch says that it is not known."""

    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    """The epoch of the batch before `offset`: the broker says if its log has another one there."""
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """What a broker has for one partition. `records` ends wherever the broker cut it."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction that touches the records."""
    diverging: tuple[int, int] | None
    """Epoch and end offset up to which the log is still the one that was read before."""
    records: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """A broker that throttles answers with no partition at all."""

    throttle_ms: int
    error_code: int
    partitions: Mapping[tuple[UUID, int], FetchedPartition]


def fetch_request(
    partitions: Iterable[PartitionFetch], *, bytes_max: int, wait_ms: int = 500, read_committed: bool = True
) -> Message:
    """Several partitions in one request, without a session: each request stands for itself."""
    topics: dict[UUID, list[Any]] = defaultdict(list)
    for each in partitions:
        topics[each.topic_id].append(
            FetchRequest.FetchTopic.FetchPartition(
                partition=each.partition,
                current_leader_epoch=each.leader_epoch,
                fetch_offset=each.offset,
                last_fetched_epoch=each.last_fetched_epoch,
                partition_max_bytes=each.bytes_max,
            )
        )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()],
        forgotten_topics_data=[],
        rack_id="",
    )


def read_answer(frame: NDArray[np.uint8]) -> FetchAnswer:
    """Read an answer from its correlation id on. CorruptDataError where it is not what it should be."""
    reader = _Reader(frame)
    try:
        _, throttle_ms, error_code, _ = reader.fields(_HEADER)
        partitions = {}
        for _ in range(reader.count()):
            topic_id = UUID(bytes=reader.take(16).tobytes())
            for _ in range(reader.count()):
                index, found = _partition(reader)
                partitions[topic_id, index] = found
            reader.tags()
        reader.tags()
    except struct.error as error:
        raise CorruptDataError("a fetch answer ends too early", position=reader.position) from error
    if reader.position != len(frame):
        raise CorruptDataError("a fetch answer goes on after its end", position=reader.position)
    return FetchAnswer(throttle_ms=throttle_ms, error_code=error_code, partitions=partitions)


def _partition(reader: _Reader) -> tuple[int, FetchedPartition]:
    index, error_code, high_watermark, last_stable_offset, log_start_offset = reader.fields(_PARTITION)
    aborted = []
    for _ in range(reader.count()):
        aborted.append(reader.fields(_ABORTED))
        reader.tags()
    reader.take(4)  # a replica to prefer, which only those who name a rack are given
    records = reader.take(reader.count())
    diverging = reader.tags().get(_TAG_DIVERGING)
    return index, FetchedPartition(
        error_code=error_code,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=log_start_offset,
        aborted=tuple(aborted),
        diverging=None if diverging is None else _DIVERGING.unpack_from(diverging),
        records=records,
    )


class _Reader:
    """A position in a frame. Every length is compared with the bytes that are there before it is believed."""

    def __init__(self, frame: NDArray[np.uint8]) -> None:
        self._frame = frame
        self._view = memoryview(frame)
        self.position = 0

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._view, self.position)
        self.position += layout.size
        return values

    def take(self, size: int) -> NDArray[np.uint8]:
        if size > len(self._frame) - self.position:
            raise CorruptDataError("a fetch answer announces more bytes than it has", position=self.position)
        self.position += size
        return self._frame[self.position - size : self.position]

    def count(self) -> int:
        """A compact length: one more than it says, and 0 for null, which is as good as none here."""
        return max(0, self._varint() - 1)

    def tags(self) -> dict[int, NDArray[np.uint8]]:
        return {self._varint(): self.take(self._varint()) for _ in range(self._varint())}

    def _varint(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = int(self.take(1)[0])
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise CorruptDataError("a number in a fetch answer is too long", position=self.position)
