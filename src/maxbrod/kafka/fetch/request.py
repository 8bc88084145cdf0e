"""The Fetch request: built with kafka-python's class, with a hand-written reader of the response.

The library would copy the records, which are most of the bytes. Here `records` is a slice of the buffer that the socket
wrote into. All versions from 13 to 18 have this layout; version 12, the newest of Kafka 2.7 to 3.0, has the name of a
topic instead of its id. A name does not tell one topic from another that was created in its place, so whoever reads
such a response asks for the id once more: `by_name`.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import numpy as np
from kafka.protocol.consumer import FetchRequest
from numpy.typing import NDArray

from maxbrod.batch.headers import LOG_OVERHEAD_BYTES, NEWEST_MAGIC, BatchHeaders, check_crc, walk
from maxbrod.errors import CorruptDataError

if TYPE_CHECKING:
    from maxbrod.kafka.wire.connection import Message


_HEADER: Final = struct.Struct(">ixihi")  # correlation id, no tagged field, throttle time, error code, session id
_PARTITION: Final = struct.Struct(">ihqqq")  # index, error code, high watermark, last stable, log start offset
_ABORTED: Final = struct.Struct(">qq")  # producer id, first offset
_DIVERGING: Final = struct.Struct(">iq")  # epoch, end offset
_TAG_DIVERGING: Final = 0
_IDS_SINCE: Final = 13
_VARINT_BYTES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFetch:
    """The offset to fetch from and the size limit. An epoch of -1 is unknown."""

    topic: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int = -1
    last_fetched_epoch: int = -1
    """The epoch of the batch before `offset`. The broker reports if its log has another one there."""
    bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """The response for one partition. The broker may cut `records` at any byte."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction with records here."""
    diverging: tuple[int, int] | None
    """Epoch and end offset up to which the log matches what was read before."""
    records: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAnswer:
    """A response. It has no partitions if the broker throttles this client."""

    throttle_ms: int
    error_code: int
    partitions: Mapping[tuple[UUID, int], FetchedPartition]


def fetch_request(
    partitions: Iterable[PartitionFetch], *, bytes_max: int, wait_ms: int = 500, read_committed: bool = True
) -> Message:
    """A request for several partitions, without a fetch session.

    A session saves naming partitions that have not changed, which pays off for consumers that poll many idle ones. Here
    every request asks for other offsets, and a session would add an epoch to keep in step and an error to recover from.
    """
    topics: dict[tuple[str, UUID], list[Any]] = defaultdict(list)
    for partition in partitions:
        topics[partition.topic, partition.topic_id].append(
            FetchRequest.FetchTopic.FetchPartition(
                partition=partition.partition,
                current_leader_epoch=partition.leader_epoch,
                fetch_offset=partition.offset,
                last_fetched_epoch=partition.last_fetched_epoch,
                partition_max_bytes=partition.bytes_max,
            )
        )
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(read_committed),
        session_id=0,
        session_epoch=-1,
        topics=[
            FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
            for (name, topic_id), partitions in topics.items()
        ],
        forgotten_topics_data=[],
        rack_id="",
    )


def by_name(request: Message) -> Mapping[str, UUID] | None:
    """The ids of the topics that a request has named, if it was sent in a version without ids."""
    if request.API_VERSION >= _IDS_SINCE:
        return None
    return {topic.topic: topic.topic_id for topic in request.topics}


def read_answer(frame: NDArray[np.uint8], names: Mapping[str, UUID] | None = None) -> FetchAnswer:
    """Read a response from its correlation id on. `names`: see `by_name`. CorruptDataError if it is malformed."""
    reader = _FrameReader(frame)
    try:
        _, throttle_ms, error_code, _ = reader.fields(_HEADER)
        partitions = {}
        for _ in range(reader.count()):
            topic_id = UUID(bytes=reader.slice(16).tobytes()) if names is None else _id_of(reader, names)
            for _ in range(reader.count()):
                index, found = _partition(reader)
                partitions[topic_id, index] = found
            reader.tags()
        reader.tags()
    except struct.error as error:
        raise CorruptDataError("a fetch response ends too early", position=reader.position) from error
    if reader.position != len(frame):
        raise CorruptDataError("a fetch response has bytes after its end", position=reader.position)
    return FetchAnswer(throttle_ms=throttle_ms, error_code=error_code, partitions=partitions)


def _id_of(reader: _FrameReader, names: Mapping[str, UUID]) -> UUID:
    name = reader.slice(reader.count()).tobytes().decode(errors="replace")
    if name not in names:
        raise CorruptDataError(f"a fetch response has a topic {name!r} that was not requested")
    return names[name]


def _partition(reader: _FrameReader) -> tuple[int, FetchedPartition]:
    index, error_code, high_watermark, last_stable_offset, log_start_offset = reader.fields(_PARTITION)
    aborted = []
    for _ in range(reader.count()):
        aborted.append(reader.fields(_ABORTED))
        reader.tags()
    reader.slice(4)  # the preferred read replica, which is only set for clients with a rack
    records = reader.slice(reader.count())
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


class _FrameReader:
    """A position in a frame. Every length is compared with the bytes present before it is used."""

    def __init__(self, frame: NDArray[np.uint8]) -> None:
        self._frame = frame
        self._view = memoryview(frame)
        self.position = 0

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._view, self.position)
        self.position += layout.size
        return values

    def slice(self, size: int) -> NDArray[np.uint8]:
        if size > len(self._frame) - self.position:
            raise CorruptDataError("a fetch response announces more bytes than it has", position=self.position)
        self.position += size
        return self._frame[self.position - size : self.position]

    def count(self) -> int:
        """A compact length, which is stored plus one. Null, stored as 0, counts as empty."""
        return max(0, self._varint() - 1)

    def tags(self) -> dict[int, NDArray[np.uint8]]:
        return {self._varint(): self.slice(self._varint()) for _ in range(self._varint())}

    def _varint(self) -> int:
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = int(self.slice(1)[0])
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise CorruptDataError("a number in a fetch response is too long", position=self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """All that the log holds for the offsets from `start` to `end` (exclusive). The chunks of a range tile it.

    `data` is whole batches and nothing else. It is empty where compaction or retention has left nothing. An offset
    below `log_start_offset` that no batch covers was deleted by retention. If the log start offset lies within a batch,
    which brokers keep whole, `ranges` trims that batch. If `start` lies within a batch, that batch begins before it.
    """

    start: int
    end: int
    data: NDArray[np.uint8]
    headers: BatchHeaders
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of aborted transactions, for `batch.transactions.from_fetch`."""
    log_start_offset: int
    last_stable_offset: int = -1
    high_watermark: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The batches of a response that belong to a range. Checksums are not checked yet."""

    start: int
    end: int
    last_epoch: int
    """The leader epoch of the newest batch of the response."""
    data: NDArray[np.uint8]
    headers: BatchHeaders
    """The headers of `data`."""
    found: FetchedPartition

    def checked(self, object_name: str) -> Chunk:
        """Check every CRC. Raises CorruptDataError as `batch.headers.walk` does."""
        if (self.headers["magic"] != NEWEST_MAGIC).any():
            return self._chunk(self.data, self.end, walk(self.data, whole=True, object_name=object_name))
        check_crc(self.data, self.headers, object_name=object_name)
        return self._chunk(self.data, self.end, self.headers)

    def sound_before(self, error: CorruptDataError, object_name: str) -> Chunk | None:
        """The batches before the one that the error is about, if any."""
        if not error.position or error.offset is None or not self.start < error.offset < self.end:
            return None
        data = self.data[: error.position]
        return self._chunk(data, error.offset, walk(data, whole=True, object_name=object_name))

    def _chunk(self, data: NDArray[np.uint8], end: int, headers: BatchHeaders) -> Chunk:
        return Chunk(
            start=self.start,
            end=end,
            data=data,
            headers=headers,
            aborted=tuple(transaction for transaction in self.found.aborted if transaction[1] < end),
            log_start_offset=self.found.log_start_offset,
            last_stable_offset=self.found.last_stable_offset,
            high_watermark=self.found.high_watermark,
        )


def select(
    found: FetchedPartition, headers: BatchHeaders, start: int, end: int, *, floor: int | None = None
) -> Selection:
    """The batches with a base offset in [start, end), from a response to a fetch at `start` that has batches.

    With a `floor` below `start`, the batch that contains `start` is included unless it begins before the floor.
    """
    _check_order(headers)
    base = headers["base_offset"]
    first, last = np.searchsorted(base, [start, end]).tolist()
    if first and floor is not None and floor <= base[first - 1] and start <= headers.last_offset[first - 1]:
        first -= 1
    # A batch beyond the range proves that the rest of the range is empty.
    covered = end if last < len(base) else min(end, int(headers.last_offset[-1]) + 1)
    if covered <= start:
        raise CorruptDataError("all batches of a response lie before the requested offset", offset=start)
    begin = stop = 0
    if last > first:
        begin, stop = int(headers.position[first]), int(headers.position[last - 1] + headers.size[last - 1])
    chosen = headers.take(slice(first, last))
    return Selection(
        start=start,
        end=covered,
        last_epoch=int(headers["leader_epoch"][-1]),
        data=found.records[begin:stop],
        headers=replace(chosen, position=chosen.position - begin, end=stop - begin, tail=0),
        found=found,
    )


def announced_bytes(records: NDArray[np.uint8]) -> int | None:
    """The length in the header of the first batch, if that field is present."""
    if len(records) < LOG_OVERHEAD_BYTES:
        return None
    return LOG_OVERHEAD_BYTES + int.from_bytes(records[LOG_OVERHEAD_BYTES - 4 : LOG_OVERHEAD_BYTES].tobytes(), "big")


def empty_chunk(start: int, end: int, *, log_start_offset: int) -> Chunk:
    data = np.empty(0, np.uint8)
    return Chunk(start=start, end=end, data=data, headers=walk(data), log_start_offset=log_start_offset)


def _check_order(headers: BatchHeaders) -> None:
    """The CRC covers neither offset nor leader epoch. That they only grow is all that can be checked."""
    base, epoch = headers["base_offset"], headers["leader_epoch"]
    wrong = np.flatnonzero((base[1:] <= headers.last_offset[:-1]) | (epoch[1:] < epoch[:-1]))
    if wrong.size:
        row = int(wrong[0]) + 1
        raise CorruptDataError(
            "the offset or leader epoch of a batch is lower than that of the batch before it",
            offset=int(base[row]),
            position=int(headers.position[row]),
        )
