"""Answers ListOffsets and OffsetForLeaderEpoch. Start and end of a log are in memory; times need the records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Hashable

    from maxbrod.mount.apis import Api, Message
    from maxbrod.mount.chunks import ServedChunk
    from maxbrod.mount.loads import ChunkLoader
    from maxbrod.mount.logs import PartitionLog
    from maxbrod.mount.view import ClusterView

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING: Final = -6
_UNKNOWN: Final = -1


class OffsetFinder:
    def __init__(self, view: ClusterView, loader: ChunkLoader, node_id: int) -> None:
        self._view, self._loader, self._node_id = view, loader, node_id

    async def list_offsets(self, api: Api, request: Message, _version: int, reader: Hashable) -> Message:
        response = api.response
        kind = response.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            found = await asyncio.gather(
                *(self._find(topic.name, each.partition_index, each.timestamp, reader) for each in topic.partitions)
            )
            answers = [
                kind.ListOffsetsPartitionResponse(
                    partition_index=each.partition_index,
                    error_code=code,
                    timestamp=timestamp,
                    offset=offset,
                    leader_epoch=-1,
                )
                for each, (code, timestamp, offset) in zip(topic.partitions, found, strict=True)
            ]
            topics.append(kind(name=topic.name, partitions=answers))
        return response(topics=topics)

    async def epochs(self, api: Api, request: Message, _version: int) -> Message:
        """Epochs are not known here: every batch is served with epoch -1. Clients then check nothing."""
        response = api.response
        kind = response.OffsetForLeaderTopicResult
        return response(
            topics=[
                kind(
                    topic=topic.topic,
                    partitions=[
                        kind.EpochEndOffset(
                            error_code=await self._code(topic.topic, each.partition),
                            partition=each.partition,
                            leader_epoch=_UNKNOWN,
                            end_offset=_UNKNOWN,
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def _code(self, topic: str, partition: int) -> int:
        found = await self._log(topic, partition)
        return found if isinstance(found, int) else int(Code.NONE)

    async def _log(self, name: str, partition: int) -> PartitionLog | int:
        topic = self._view.topics.get(name)
        if topic is None or not 0 <= partition < topic.partition_count:
            return int(Code.UNKNOWN_TOPIC_OR_PARTITION)
        if self._view.leader(name, partition).node_id != self._node_id:
            return int(Code.NOT_LEADER_OR_FOLLOWER)
        logs = topic.logs or await self._loader.load_topic(topic)
        found: PartitionLog = logs[partition]
        return found

    async def _find(self, name: str, partition: int, timestamp: int, reader: Hashable) -> tuple[int, int, int]:
        """Error code, timestamp and offset."""
        try:
            log = await self._log(name, partition)
            if isinstance(log, int):
                return log, _UNKNOWN, _UNKNOWN
            if timestamp == _LATEST:
                return Code.NONE, _UNKNOWN, log.end
            if timestamp in {_EARLIEST, _EARLIEST_LOCAL}:
                return Code.NONE, _UNKNOWN, log.start
            if timestamp in {_LATEST_TIERED, _EARLIEST_PENDING}:
                return Code.NONE, _UNKNOWN, _UNKNOWN
            if timestamp == _MAX_TIMESTAMP:
                return Code.NONE, *await self._newest(log, reader)
            if timestamp < 0:
                return Code.INVALID_TIMESTAMP, _UNKNOWN, _UNKNOWN
            return Code.NONE, *await self._first_since(log, timestamp, reader)
        except MaxbrodError:
            return Code.KAFKA_STORAGE_ERROR, _UNKNOWN, _UNKNOWN

    async def _first_since(self, log: PartitionLog, timestamp: int, reader: Hashable) -> tuple[int, int]:
        """Timestamp and offset of the first record that is not older."""
        for offset, end in log.may_have_since(timestamp):
            position = offset
            while position < end and (found := await self._loader.chunk_at(log, position, reader)) is not None:
                chunk = found.chunk
                rows = np.flatnonzero(_newest_in(chunk) >= timestamp)
                for row in rows[rows >= found.first].tolist():
                    hit = await asyncio.to_thread(_record_since, chunk, row, timestamp, max(position, log.start))
                    if hit is not None:
                        return hit
                position = max(int(chunk.ends[-1]), position + 1)
        return _UNKNOWN, _UNKNOWN

    async def _newest(self, log: PartitionLog, reader: Hashable) -> tuple[int, int]:
        """Timestamp and offset of the first record with the highest timestamp."""
        best = _UNKNOWN, _UNKNOWN
        for offset, end in log.newest_slices():
            position = offset
            while position < end and (found := await self._loader.chunk_at(log, position, reader)) is not None:
                chunk, highest = found.chunk, _newest_in(found.chunk)
                row = int(highest.argmax())
                if int(highest[row]) > best[0]:
                    hit = await asyncio.to_thread(_record_since, chunk, row, int(highest[row]), log.start)
                    best = hit if hit is not None else best
                position = max(int(chunk.ends[-1]), position + 1)
        return best


def _newest_in(chunk: ServedChunk) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The highest timestamp of each batch. Those of markers count, as at a broker."""
    headers = chunk.headers
    newest = headers["max_timestamp"].astype(np.int64)
    # Some clients state a highest timestamp below that of the first record.
    return np.maximum(newest, np.where(headers.misstates_highest, headers["base_timestamp"], newest))


def _record_since(chunk: ServedChunk, row: int, timestamp: int, first_offset: int) -> tuple[int, int] | None:
    """Timestamp and offset of the first record of a batch that is not older. Loads numba the first time."""
    from maxbrod.batch.columns import number_column  # noqa: PLC0415 - only for times
    from maxbrod.batch.decode import decode  # noqa: PLC0415

    records = decode(chunk.data, chunk.headers.take(np.array([row])), columns=["offset", "timestamp_ms"])
    offsets, times = (number_column(records.column(name)) for name in ("offset", "timestamp_ms"))
    hits = np.flatnonzero((times >= timestamp) & (offsets >= first_offset))
    return (int(times[hits[0]]), int(offsets[hits[0]])) if hits.size else None
