"""Small archives whose records are staged by a real Spark, without a cluster; and the same without Spark."""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from maxbrod.archive.archive import Archive, open_archive
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.config import StorageConfig
from maxbrod.layouts.reader import read_records
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.sources import Source
from maxbrod.restore.staging import Staging
from maxbrod.transfer.task import TransferItem, TransferSettings
from maxbrod.transform.frame import read_rows
from maxbrod.transform.plan import FLAGS, PREFIX, Transform
from maxbrod.work.progress import silent
from support.native_logs import NAME
from support.table_archives import write

if TYPE_CHECKING:
    from pathlib import Path

WHERE = TopicPartition(topic=NAME.topic, partition=NAME.partition)


def staging_of(source: Path, target: object, *, storage: StorageConfig | None = None, **transform: str) -> Staging:
    return Staging(
        source=open_archive(str(source)),
        url=str(target),
        storage=storage or StorageConfig(),
        transform=Transform(**transform),
        since_ms=None,
        until_ms=None,
    )


def asked(archive: Archive) -> list[Source]:
    """All that an archive has."""
    found = archive.catalog.positions()
    return [
        Source(
            topic=position.topic,
            topic_id=each.topic_id,
            partition=each.partition,
            asked_first=0,
            asked_end=position.end_offset,
            first_offset=0,
        )
        for each, position in found.items()
    ]


def stage(spark: Any, staging: Staging, **options: Any) -> Archive:
    return staging.run(
        spark,
        asked(staging.source),
        **{"parallelism": 2, "on_progress": silent, "stop": threading.Event(), **options},
    )


def records_in(archive: Archive) -> list[dict[str, Any]]:
    """As an application sees them, in the order of offsets."""
    rows = [row for row in decode_rows(archive.catalog.rows()) if isinstance(row, Segment)]
    return [
        record
        for row in rows
        for records in read_records(archive.storage, slice_of(row))
        for record in records.to_pylist()
    ]


def task_of(source: Path, target: Path, chunks: list[bytes]) -> tuple[TransferSettings, list[bytes]]:
    """An archive of these batches, and one task that transforms all of it."""
    rows = write(source, chunks)
    item = TransferItem(
        where=WHERE,
        topic_id=NAME.topic_id,
        start=0,
        end=rows[-1].end_offset,
        slices=tuple(slice_of(row) for row in rows),
    )
    nothing = StorageConfig()
    settings = TransferSettings(
        run_id="run-2", source_url=str(source), source=nothing, target_url=str(target), target=nothing
    )
    return settings, [pickle.dumps((item,))]


def rows_of(settings: TransferSettings, payloads: list[bytes]) -> list[pa.RecordBatch]:
    """What goes from one task to the other where expressions keep everything and change nothing."""
    first = pa.RecordBatch.from_pydict({"id": [0]})
    return [_flagged(batch) for batch in read_rows(settings, payloads, [first])]


def _flagged(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = batch.column(f"{PREFIX}kind").to_pylist()
    for name in FLAGS:
        flags = [name == "keep" and kind == 0 for kind in kept]
        batch = batch.append_column(f"{PREFIX}{name}", pa.array(flags, pa.bool_()))
    return batch
