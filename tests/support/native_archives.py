"""Native archives made without Kafka, as runs leave them, and all that a reader can see of one."""

from __future__ import annotations

import shutil
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maxbrod.archive.archive import Archive, open_archive, open_for_writing
from maxbrod.batch.headers import walk
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Row, Run, Segment, decode_rows, slice_of
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.compact.verb import compact_archive
from maxbrod.config import Config, StorageConfig
from maxbrod.layouts.kafka.format import Compression
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.layouts.kafka.slices import verify_slice
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import GapReason
from maxbrod.storage.stores import directory_of
from maxbrod.storage.urls import parse_url
from maxbrod.work.work import Work
from support.native_logs import data_batch
from support.sparkless import stay_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from maxbrod.compact.report import CompactReport

TOPIC, TOPIC_ID = "orders", "0123456789abcdefghijkl"
START_MS = 1_700_000_000_000
LATER_MS = 1 << 42
"""Long after all rows were written."""
ANY = {"min_segment_count": 2, "min_segment_size": 1}


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_without_spark(monkeypatch)


@dataclass
class Making:
    """An archive that grows run by run, in simulated time."""

    url: str
    storage: StorageConfig = field(default_factory=StorageConfig)
    runs: int = 0

    def __post_init__(self) -> None:
        self.archive = open_for_writing(self.url, self.storage)

    def run(
        self,
        batches: dict[int, list[bytes]],
        *,
        packed: bool = True,
        compression: str = "auto",
        gaps: dict[int, tuple[int, int]] | None = None,
        topic: str = TOPIC,
        commit: bool = True,
        **changes: Any,
    ) -> list[Row]:
        """One run: for each partition its batches, which become one row, and the gap before them."""
        self.runs += 1
        run_id, now = f"run-{self.runs:06d}", START_MS + 1000 * self.runs
        how = Compression.parse(compression)
        writer = ArchiveWriter(self.archive.storage, run_id=run_id, compression=how)
        with writer as open_writer:
            parts = {
                number: open_writer.partition(topic=topic, topic_id=id_of(topic), partition=number, packed=packed)
                for number in batches
            }
            for number, part in parts.items():
                data = np.frombuffer(b"".join(batches[number]), np.uint8)
                part.append(data, walk(data, check_crc=True))
        place: dict[str, Any] = {"topic": topic, "topic_id": id_of(topic), "run_id": run_id, "written_at": now}
        rows: list[Row] = [
            Gap(**place, partition=number, base_offset=base, end_offset=end, reason=GapReason.COMPACTED)
            for number, (base, end) in (gaps or {}).items()
        ]
        rows += [
            Segment(**{**{name: getattr(each, name) for name in SLICE_FIELDS}, **place, "partition": number, **changes})
            for number, part in parts.items()
            for each in part.slices
        ]
        rows.append(Run(run_id=run_id, started_at=now, finished_at=now, snapshot=None, statistics={}, written_at=now))
        if commit:
            self.archive.catalog.commit(rows)
        return rows

    def many(self, count: int, *, partitions: int = 1, records: int = 3, **more: Any) -> None:
        """Runs of one batch for each partition, in one commit: a commit takes longer than all else."""
        runs = (
            self.run(
                {each: [data_batch(number * records, records)] for each in range(partitions)}, commit=False, **more
            )
            for number in range(count)
        )
        self.archive.catalog.commit([row for rows in runs for row in rows])


@contextmanager
def in_memory() -> Iterator[Making]:
    """Without a disk, which would sync each object."""
    url = f"memory://test-{uuid.uuid4().hex}"
    try:
        yield Making(url)
    finally:
        shutil.rmtree(directory_of(parse_url(url)), ignore_errors=True)


def file_of(making: Making, path: str) -> Path:
    """The file of an object."""
    return Path(directory_of(parse_url(making.url))) / path


def id_of(topic: str) -> str:
    return TOPIC_ID if topic == TOPIC else f"{topic:x<22}"[:22]


@dataclass(frozen=True)
class Seen:
    """What a reader sees: for each partition its log, byte by byte, and the gaps."""

    logs: dict[tuple[str, int], bytes]
    gaps: list[tuple[str, int, int, int]]
    aborted: dict[tuple[str, int], set[tuple[int, int]]]


def look(url: str | Path, storage: StorageConfig | None = None) -> Seen:
    """Also proves that the archive is sound: rows tile, and every slice passes the deep check."""
    archive = open_archive(str(url), storage)
    assert find_tiling_faults(archive.catalog.rows()).complete
    found = decode_rows(archive.catalog.rows())
    rows = [row for row in found if isinstance(row, Segment)]
    for row in rows:
        assert verify_slice(archive.storage, slice_of(row)) == []
    return Seen(
        logs={
            key: b"".join(read_log(archive.storage, row).tobytes() for row in group)
            for key, group in groupby(rows, key=lambda row: (row.topic, row.partition))
        },
        gaps=[(row.topic, row.partition, row.base_offset, row.end_offset) for row in found if isinstance(row, Gap)],
        aborted={
            key: {(each.producer_id, each.first_offset) for row in group for each in row.aborted}
            for key, group in groupby(rows, key=lambda row: (row.topic, row.partition))
        },
    )


def segments(url: str | Path) -> list[Segment]:
    return [row for row in decode_rows(open_archive(str(url)).catalog.rows()) if isinstance(row, Segment)]


def compact(url: str | Path, *, clock_ms: int = LATER_MS, session: Any = None, **options: Any) -> CompactReport:
    storage = options.pop("storage", None) or StorageConfig()
    more = {name: options.pop(name) for name in ("on_progress", "stop") if name in options}
    config = Config.model_validate({"archive": str(url), "compact": {**ANY, **options}}).model_copy(
        update={"storage": storage}
    )
    return compact_archive(Work(config, session=session, clock_ms=clock_ms, **more))


def opened(url: str | Path) -> Archive:
    return open_archive(str(url))
