"""Copies of archives, made in this process; and archives whose packs hold several topics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.batch.headers import walk
from maxbrod.catalog.rows import SLICE_FIELDS, Run, Segment
from maxbrod.config import Config, StorageConfig
from maxbrod.copy.verb import copy_archive
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import PartitionId
from maxbrod.work.executor import LocalExecutor
from maxbrod.work.work import Work
from support.archives import put_snapshot
from support.native_archives import START_MS, Making, id_of
from support.native_logs import data_batch

if TYPE_CHECKING:
    from maxbrod.copy.report import CopyReport
    from maxbrod.work.executor import Executor


def copy(
    source: str | Path,
    target: str | Path,
    *,
    storage: StorageConfig | None = None,
    executor: Executor | None = None,
    stop: Any = None,
    **options: Any,
) -> CopyReport:
    with Work(
        config_of(source, target, storage=storage, **options), executor=executor or LocalExecutor(2), stop=stop
    ) as work:
        return copy_archive(work)


def config_of(
    source: str | Path, target: str | Path, *, storage: StorageConfig | None = None, **options: Any
) -> Config:
    config = Config.model_validate({"copies": {"source": str(source), "target": str(target), **options}})
    return config.model_copy(update={"storage": storage or StorageConfig()})


def run_of_topics(making: Making, topics: dict[str, int], *, records: int = 3, compression: str = "auto") -> None:
    """A run that appends one batch to partition 0 of each topic, from its offset on; all in one pack. A snapshot."""
    making.runs += 1
    run_id, now = f"run-{making.runs:06d}", START_MS + 1000 * making.runs
    making.archive.catalog.refresh()
    held = making.archive.catalog.positions()
    with ArchiveWriter(making.archive.storage, run_id=run_id, compression=Compression.parse(compression)) as writer:
        parts = {
            topic: writer.partition(topic=topic, topic_id=id_of(topic), partition=0, packed=True) for topic in topics
        }
        for topic, part in parts.items():
            data = np.frombuffer(data_batch(topics[topic], records), np.uint8)
            part.append(data, walk(data, check_crc=True))
    place: dict[str, Any] = {"partition": 0, "run_id": run_id, "written_at": now}
    rows = [
        Segment(**{name: getattr(found, name) for name in SLICE_FIELDS}, topic=topic, topic_id=id_of(topic), **place)
        for topic, part in parts.items()
        for found in part.slices
    ]
    ends = {where: found.end_offset for where, found in held.items()}
    ends |= {PartitionId(topic_id=id_of(topic), partition=0): base + records for topic, base in topics.items()}
    names = {where.topic_id: found.topic for where, found in held.items()} | {id_of(topic): topic for topic in topics}
    put_snapshot(making.archive.storage, run_id, topics=names, ends=ends)
    run = Run(
        run_id=run_id,
        started_at=now,
        finished_at=now,
        snapshot=f"snapshots/{run_id}.json.zst",
        statistics={"command": "backup"},
        written_at=now,
    )
    making.archive.catalog.commit([*rows, run])


def three_topics(url: str | Path) -> Making:
    """An archive with runs of its own and packs that hold slices of the topics a, b and c; `orders` has segments."""
    making = Making(str(url))
    making.many(3, partitions=2, packed=False)
    run_of_topics(making, {"a": 0, "b": 0, "c": 0})
    run_of_topics(making, {"a": 3, "b": 3}, compression="zstd")
    return making
