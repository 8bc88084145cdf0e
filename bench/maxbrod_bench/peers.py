"""The peers of backups and restores: common programs that move the same data, and bare loops in two processes.

A bare loop fetches or produces without Spark, catalog and restore. Its processes are started once and stay, as Spark's
workers do. A producer prepares everything before the clock runs, down to the frames of the requests. What remains is
what the broker and the kernel need: the least that any client can take.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from enum import StrEnum
from io import BufferedReader
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from maxbrod.batch.coalesce import AUTO, Batches, Coalescer
from maxbrod.batch.headers import walk
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import EnvironmentMissingError, MaxbrodError
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import sequence_after, stamped
from maxbrod.kafka.produce.lane import RecordsTo, produce_body
from maxbrod.kafka.produce.producer_ids import new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.connection import Piece
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import TopicPartition
from maxbrod.sandbox.jars import CONSUMER_PERFORMANCE, PRODUCER_PERFORMANCE, run_tool
from maxbrod.storage.stores import open_storage
from maxbrod_bench.race import require

if TYPE_CHECKING:
    from maxbrod_bench.stage import Load


PROCESSES: Final = 2
_IN_FLIGHT: Final = 5
_TIMEOUT_S: Final = 60.0
_VERSION: Final = 13
_BATCH_BYTES_MAX: Final = 1_048_588
"""The default of `max.message.bytes`."""
_HEADER: Final = struct.Struct(">ihhihx")  # size, API key, version, correlation id, no client id; no tagged fields
_SIZE: Final = struct.Struct(">i")
_TOPIC: Final = 23  # where the partitions of the only topic begin: after correlation id, tags, counts and topic id
_PARTITION_BYTES: Final = 33
_CODE: Final = slice(4, 6)


# Programs


def read_with_kcat(bootstrap: str, load: Load) -> None:
    """Read all partitions to their end. The empty format is the cheapest: it prints no record."""
    if shutil.which("kcat") is None:
        raise EnvironmentMissingError("kcat, a peer of this benchmark, is not installed", hint="apt-get install kcat")
    _run(["kcat", "-b", bootstrap, "-C", "-t", load.topic, "-e", "-q", "-o", "beginning", "-f", ""])


def read_with_consumer_performance(bootstrap: str, load: Load) -> float:
    """The seconds that Kafka's own tool spent fetching, without the start of its JVM and joining its group."""
    printed = run_tool(
        CONSUMER_PERFORMANCE,
        *("--bootstrap-server", bootstrap, "--topic", load.topic, "--num-records", str(load.records)),
        jvm_options=(),
        timeout_s=600,
    )
    names, values = (
        [cell.strip() for cell in line.split(",")] for line in printed.splitlines() if line.count(",") >= 9
    )
    found = dict(zip(names, values, strict=True))
    everything = int(found["data.consumed.in.nMsg"]) >= load.records
    require(everything, "ConsumerPerformance has not read everything", object_name=load.topic)
    return int(found["fetch.time.ms"]) / 1000


def produce_with_producer_performance(
    bootstrap: str, topic: str, records: int, *, payloads: Sequence[str], properties: Sequence[str], processes: int
) -> float:
    """The seconds of the slowest of several processes of Kafka's own tool, each with its share of the records.

    By their own clocks: without the start of the JVM, but with its warm-up.
    """
    share = -(-records // processes)
    arguments = (
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(share), "--throughput", "-1"),
        *(*payloads, "--command-property", *properties),
    )
    with ThreadPoolExecutor(processes) as pool:
        running = [
            pool.submit(run_tool, PRODUCER_PERFORMANCE, *arguments, jvm_options=(), timeout_s=1800)
            for _ in range(processes)
        ]
        return max(_produced_s(future.result(), share) for future in running)


def _produced_s(printed: str, records: int) -> float:
    last = printed.strip().splitlines()[-1]
    found = re.match(r"(\d+) records sent, ([\d.]+) records/sec", last)
    if found is None or int(found[1]) != records:
        raise MaxbrodError(f"ProducerPerformance has not sent everything: {last}", operation="bench")
    return records / float(found[2])


def write_with_cat(sources: Sequence[Path], target: Path, *, synced: bool) -> None:
    """Write the sources into one new file, with `synced` down to the disk."""
    target.unlink(missing_ok=True)
    with target.open("wb") as file:
        subprocess.run(["cat", *map(str, sources)], stdout=file, check=True)
    if synced:
        _run(["sync", str(target)])


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    require(ran.returncode == 0, f"{command[0]} failed: {ran.stderr.strip()[-300:]}")


# Bare loops


class Writing(StrEnum):
    PLAIN = "plain"
    """Each partition into one file, with an fsync at the end."""
    LAYOUT = "layout"
    """As segments of an archive."""
    EXACT = "exact"
    """As segments, with the lowest timestamp searched in every record."""


class _Processes:
    """Processes with a pool each, so that a process keeps what it has prepared. Use it in a `with`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        # Not forked: Spark's session has threads.
        self._pools = [ProcessPoolExecutor(1, mp_context=get_context("spawn")) for _ in range(PROCESSES)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()


# Fetching


class BareLoop(_Processes):
    """Fetches all partitions of a topic."""

    def read(self, load: Load, folder: Path, *, writing: Writing = Writing.PLAIN) -> int:
        """Fetch a whole topic; returns the number of bytes."""
        folder.mkdir(parents=True)
        places = [TopicPartition(topic=load.topic, partition=number) for number in range(load.partitions)]
        end = load.records // load.partitions
        reading = [
            pool.submit(_read_share, self._bootstrap, places[number::PROCESSES], end, str(folder), writing)
            for number, pool in enumerate(self._pools)
        ]
        return sum(future.result() for future in reading)


def _read_share(bootstrap: str, places: Sequence[TopicPartition], end: int, folder: str, writing: Writing) -> int:
    with KafkaClient(KafkaConfig(bootstrap=bootstrap)) as client:
        if writing is Writing.PLAIN:
            return sum(_into_file(client, where, end, folder) for where in places)
        storage, exact = open_storage(folder, StorageConfig()), writing is Writing.EXACT
        with ArchiveWriter(storage, run_id="bench", exact_timestamps=exact) as archive:
            return sum(_into_archive(client, where, end, archive) for where in places)


def _into_file(client: KafkaClient, where: TopicPartition, end: int, folder: str) -> int:
    size = 0
    with (Path(folder) / f"{where}.log").open("wb", buffering=0) as file:
        for chunk in read_range(client, where, 0, end):
            file.write(chunk.data)
            size += len(chunk.data)
        os.fsync(file.fileno())
    return size


def _into_archive(client: KafkaClient, where: TopicPartition, end: int, archive: ArchiveWriter) -> int:
    size = 0
    writer = archive.partition(topic=where.topic, topic_id=where.topic, partition=where.partition, packed=False)
    for chunk in read_range(client, where, 0, end):
        writer.append(chunk.data, chunk.headers, chunk.aborted)
        size += len(chunk.data)
    writer.close()
    return size


# Producing


class BareProducer(_Processes):
    """Produces the batches that a restore of slices sends, from memory."""

    def prepare(self, topic: str, archive_url: str, slices: Mapping[int, Sequence[Slice]]) -> int:
        """Join the batches of these slices as a restore does, for the partitions of a new topic.

        Returns the number of batches before.
        """
        ordered = sorted(slices.items())
        ready = [
            pool.submit(_prepare, self._bootstrap, topic, archive_url, ordered[number::PROCESSES])
            for number, pool in enumerate(self._pools)
        ]
        return sum(future.result() for future in ready)

    def produce(self) -> int:
        """Send everything; returns the number of batches."""
        return sum(future.result() for future in [pool.submit(_produce) for pool in self._pools])


_prepared: list[tuple[socket.socket, list[list[Piece]], int]] = []


def _prepare(bootstrap: str, topic: str, archive_url: str, partitions: Sequence[tuple[int, Sequence[Slice]]]) -> int:
    _prepared.clear()
    archived = 0
    with KafkaClient(KafkaConfig(bootstrap=bootstrap)) as client:
        deadline = Deadline.after(_TIMEOUT_S)
        topic_id = client.topic(topic, deadline=deadline).topic_id
        lanes = []
        storage = open_storage(archive_url, StorageConfig())
        for number, slices in partitions:
            where = TopicPartition(topic=topic, partition=number)
            client.leader(where, deadline=deadline)
            lane, identity, sequence = list[RecordsTo](), new_producer_id(client), 0
            for stored in slices:
                data = read_log(storage, stored)
                headers = walk(data, check_crc=False)
                archived += len(headers)
                # As a restore joins the batches of one slice, into a topic with the default limits.
                coalescer = Coalescer(AUTO, batch_bytes_max=_BATCH_BYTES_MAX)
                hole = np.zeros(len(headers), np.int64)
                batches = Batches(data=data, headers=headers, source_offset=headers["base_offset"], hole=hole)
                for joined in (*coalescer.add(batches), *coalescer.finish()):
                    made = stamped(joined.data, joined.headers, identity, first_sequence=sequence)
                    sequence = sequence_after(sequence, sum(batch.count for batch in made))
                    lane += [RecordsTo(where, topic_id, batch.data) for batch in made]
            lanes.append(lane)
    frames = [
        _frame(ticket, [entry for entry in entries if entry is not None])
        for ticket, entries in enumerate(zip_longest(*lanes))
    ]
    host, _, port = bootstrap.partition(":")
    stream = socket.create_connection((host, int(port)), timeout=_TIMEOUT_S)
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _prepared.append((stream, frames, sum(map(len, lanes))))
    return archived


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
                _check(answers, waiting.popleft())
            rest = sum(map(len, pieces)) - stream.sendmsg(pieces)
            if rest:
                stream.sendall(b"".join(pieces)[-rest:])
            waiting.append(len(pieces) // 2 - 1)
        for count in waiting:
            _check(answers, count)
    return batches


def _check(answers: BufferedReader, partitions: int) -> None:
    answer = answers.read(*_SIZE.unpack(answers.read(_SIZE.size)))
    for place in range(partitions):
        first = _TOPIC + place * _PARTITION_BYTES
        taken = answer[first : first + _PARTITION_BYTES][_CODE] == b"\0\0"
        require(taken, f"the broker refused a batch: {answer.hex()}")
