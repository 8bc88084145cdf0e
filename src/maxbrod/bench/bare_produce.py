"""Two processes that produce batches from memory, without Spark, archive or engine: sockets, and what must be sent.

Everything is made ready before the clock runs, down to the frames of the requests. What is left is what a broker and
the kernel need, and so the least that any client can take.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from maxbrod.batch.headers import walk
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.produce.appends import stamped
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.produce.request import RecordsTo, produce_body
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.reading import read_log
from maxbrod.model import TopicPartition
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from maxbrod.kafka.wire.sending import Piece
    from maxbrod.layouts.kafka.slices import Slice

PROCESSES: Final = 2
_IN_FLIGHT: Final = 5
_TIMEOUT_S: Final = 60.0
_VERSION: Final = 13
_HEADER: Final = struct.Struct(">ihhihx")  # size, API key, version, correlation id, no client id; no tagged fields
_SIZE: Final = struct.Struct(">i")
_TOPIC: Final = 23  # where the partitions of the only topic begin: after correlation id, tags, counts and topic id
_PARTITION_BYTES: Final = 33
_CODE: Final = slice(4, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    bootstrap: str
    topic: str
    archive_url: str
    slices: tuple[tuple[int, tuple[Slice, ...]], ...]
    """Of each partition those that hold its batches, one after another."""


class BareProducer:
    """Use it in a `with`. Each process has a pool of its own, so that it produces what it has prepared."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        # Not forked: Spark's session has threads.
        self._pools = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(PROCESSES)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools:
            pool.shutdown()

    def prepare(self, topic: str, archive_url: str, slices: Mapping[int, Sequence[Slice]]) -> None:
        """The batches of these slices, which must stand in them as they are sent, for the partitions of a new topic."""
        each = [(number, tuple(found)) for number, found in sorted(slices.items())]
        shares = [
            _Share(
                bootstrap=self._bootstrap, topic=topic, archive_url=archive_url, slices=tuple(each[place::PROCESSES])
            )
            for place in range(PROCESSES)
        ]
        for ready in [pool.submit(_prepare, share) for pool, share in zip(self._pools, shares, strict=True)]:
            ready.result()

    def produce(self) -> int:
        """Send it all; returns how many batches that were."""
        return sum(each.result() for each in [pool.submit(_produce) for pool in self._pools])


_prepared: list[tuple[socket.socket, list[list[Piece]], int]] = []


def _prepare(share: _Share) -> None:
    _prepared.clear()
    with KafkaClient(KafkaConfig(bootstrap=share.bootstrap)) as client:
        deadline = Deadline.after(_TIMEOUT_S)
        topic_id = client.topic(share.topic, deadline=deadline).topic_id
        lanes = []
        storage = open_storage(share.archive_url, StorageConfig())
        for number, slices in share.slices:
            where = TopicPartition(topic=share.topic, partition=number)
            client.leader(where, deadline=deadline)
            data = np.concatenate([read_log(storage, each) for each in slices])
            batches = stamped(data, walk(data, check_crc=False), new_producer_id(client), first_sequence=0)
            lanes.append([RecordsTo(where, topic_id, batch.data) for batch in batches])
    frames = [
        _frame(ticket, [each for each in entries if each is not None])
        for ticket, entries in enumerate(zip_longest(*lanes))
    ]
    host, _, port = share.bootstrap.partition(":")
    stream = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _prepared.append((stream, frames, sum(map(len, lanes))))


def _frame(ticket: int, entries: list[RecordsTo]) -> list[Piece]:
    body = produce_body(entries, version=_VERSION, timeout_ms=int(_TIMEOUT_S * 1000))
    size = _HEADER.size - _SIZE.size + sum(map(len, body))
    return [_HEADER.pack(size, 0, _VERSION, ticket, -1), *body]


def _produce() -> int:
    stream, frames, batches = _prepared.pop()
    waiting: deque[int] = deque()
    with stream, stream.makefile("rb") as answers:
        for pieces in frames:
            if len(waiting) >= _IN_FLIGHT:
                _check(answers.read(*_SIZE.unpack(answers.read(_SIZE.size))), waiting.popleft())
            rest = sum(map(len, pieces)) - stream.sendmsg(pieces)
            if rest:
                stream.sendall(b"".join(pieces)[-rest:])
            waiting.append(len(pieces) // 2 - 1)
        for count in waiting:
            _check(answers.read(*_SIZE.unpack(answers.read(_SIZE.size))), count)
    return batches


def _check(answer: bytes, partitions: int) -> None:
    for place in range(partitions):
        first = _TOPIC + place * _PARTITION_BYTES
        if answer[first : first + _PARTITION_BYTES][_CODE] != b"\0\0":
            raise MaxbrodError(f"the broker refused a batch: {answer.hex()}", operation="bench")
