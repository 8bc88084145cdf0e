"""Two processes that fetch a topic without Spark and without a catalog: what is left when everything else is gone.

Processes are started once and stay, as Spark's workers do.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.kafka.writing import ArchiveWriter
from maxbrod.model import TopicPartition
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from types import TracebackType

    from maxbrod.bench.loads import Load

PROCESSES: Final = 2


class Writing(StrEnum):
    PLAIN = "plain"
    """Each partition into one file, which is synced at its end."""
    LAYOUT = "layout"
    """As segments of an archive."""
    EXACT = "exact"
    """The same, with the lowest timestamp looked for in every record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    bootstrap: str
    topic: str
    partitions: tuple[int, ...]
    end: int
    folder: str
    writing: Writing


class BareLoop:
    """Use it in a `with`."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        # Not forked: Spark's session has threads.
        self._pool = ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def read(self, load: Load, folder: Path, *, writing: Writing = Writing.PLAIN) -> int:
        """Bytes that all partitions of the load had."""
        folder.mkdir(parents=True)
        shares = [
            _Share(
                bootstrap=self._bootstrap,
                topic=load.topic,
                partitions=tuple(range(number, load.partitions, PROCESSES)),
                end=load.records // load.partitions,
                folder=str(folder),
                writing=writing,
            )
            for number in range(PROCESSES)
        ]
        return sum(self._pool.map(_read_share, shares))


def _read_share(share: _Share) -> int:
    with KafkaClient(KafkaConfig(bootstrap=share.bootstrap)) as client:
        if share.writing is Writing.PLAIN:
            return sum(_into_file(client, share, partition) for partition in share.partitions)
        storage = open_storage(share.folder, StorageConfig())
        exact = share.writing is Writing.EXACT
        with ArchiveWriter(storage, run_id="bench", exact_timestamps=exact) as archive:
            return sum(_into_archive(client, archive, share, partition) for partition in share.partitions)


def _into_file(client: KafkaClient, share: _Share, partition: int) -> int:
    size = 0
    where = TopicPartition(topic=share.topic, partition=partition)
    with (Path(share.folder) / f"{where}.log").open("wb", buffering=0) as file:
        for chunk in read_range(client, where, 0, share.end):
            file.write(chunk.data)
            size += len(chunk.data)
        os.fsync(file.fileno())
    return size


def _into_archive(client: KafkaClient, archive: ArchiveWriter, share: _Share, partition: int) -> int:
    size = 0
    where = TopicPartition(topic=share.topic, partition=partition)
    writer = archive.partition(topic=share.topic, topic_id=share.topic, partition=partition, packed=False)
    for chunk in read_range(client, where, 0, share.end):
        writer.append(chunk.data, chunk.headers, chunk.aborted)
        size += len(chunk.data)
    writer.close()
    return size
