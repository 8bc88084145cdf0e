"""Rebuilding a catalog beside reading the same objects once, with the same session and as many tasks."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.encode import encode
from maxbrod.bench.figures import Figure, speed
from maxbrod.bench.race import race_laps
from maxbrod.config import Config
from maxbrod.errors import MaxbrodError
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.layouts.kafka.reader import REQUEST_BYTES
from maxbrod.layouts.kafka.records import append_records
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import Codec
from maxbrod.repair.run import repair_archive
from maxbrod.storage.stores import open_storage
from maxbrod.work.jobs import SparkExecutor
from maxbrod.work.session import Session, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


WANTED: Final = 0.5
_BYTES: Final = 512 << 20
_SEGMENT_BYTES: Final = 32 << 20
_PARTITIONS: Final = 4
_RECORD_BYTES: Final = 1024
_RECORDS: Final = 4096
"""Appended at once."""
_SMALL_PARTITIONS: Final = 500


def measure(*, scale: float = 1.0, rounds: int = 3) -> list[Figure]:
    """An archive of plain segments and packs that has lost its catalog, rebuilt and not published."""
    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-bench-"))
        session = undo.enter_context(open_session())
        _write(folder, round(_BYTES * scale))
        size = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
        laps = race_laps(
            {
                "rebuild": partial(_rebuild, folder, session),
                "read": partial(_read_all, folder, session),
                "cat": partial(_cat, folder),
            },
            rounds=rounds,
        )
    note = f"{size / 1e6:,.0f} MB in plain segments and packs, {_SMALL_PARTITIONS} small partitions"
    return [
        speed("rebuilding a catalog, speed over reading once", laps["rebuild"], laps["read"], wanted=WANTED, note=note),
        speed("the same over cat", laps["rebuild"], laps["cat"]),
    ]


def _write(folder: str, size: int) -> None:
    noise = np.random.default_rng(1).bytes(_RECORD_BYTES * _RECORDS)
    storage = open_storage(folder)
    writer = ArchiveWriter(
        storage,
        run_id="bench",
        compression=Compression.parse("source"),
        limits=SegmentLimits(bytes_max=_SEGMENT_BYTES),
    )
    with writer as archive:
        for number in range(_PARTITIONS + _SMALL_PARTITIONS):
            small = number >= _PARTITIONS
            part = archive.partition(
                topic="small" if small else "large",
                topic_id="bench-small" if small else "bench-large",
                partition=number - _PARTITIONS if small else number,
                packed=small,
            )
            calls = 1 if small else size // _PARTITIONS // (_RECORD_BYTES * _RECORDS)
            count = 16 if small else _RECORDS
            for call in range(max(calls, 1)):
                append_records(part, _records(call * count, count, noise))
            part.close()


def one_batch(offset: int) -> NDArray[np.uint8]:
    """A batch with one record of 1 KB."""
    batch: NDArray[np.uint8] = encode(_records(offset, 1, bytes(_RECORD_BYTES)), codec=Codec.NONE)
    return batch


def _records(first: int, count: int, noise: bytes) -> pa.RecordBatch:
    values = [noise[at * _RECORD_BYTES : (at + 1) * _RECORD_BYTES] for at in range(count)]
    offsets = np.arange(first, first + count)
    return pa.RecordBatch.from_pydict(
        {
            "offset": pa.array(offsets),
            "timestamp_ms": pa.array(offsets),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
        }
    )


def _rebuild(folder: str, session: Session) -> None:
    report = repair_archive(Config.model_validate({"archive": folder}), session=session)
    if report.notices or not report.rows:
        raise MaxbrodError("the rebuild found damage in sound objects", operation="bench")


def _read_all(folder: str, session: Session) -> None:
    paths = [info.path for info in open_storage(folder).list()]
    executor = SparkExecutor(session)
    tasks = [paths[number :: 4 * executor.parallelism] for number in range(4 * executor.parallelism)]
    executor.run(_read, folder, [task for task in tasks if task], name="bench-read")


def _read(folder: str, paths: Sequence[str]) -> list[int]:
    storage, total = open_storage(folder), 0
    for path in paths:
        size = storage.head(path).size
        for start in range(0, size, REQUEST_BYTES):
            total += len(storage.get_range(path, start, min(REQUEST_BYTES, size - start)))
    return [total]


def _cat(folder: str) -> Any:  # noqa: ANN401 - nothing
    paths = [str(each) for each in sorted(Path(folder).rglob("*")) if each.is_file()]
    subprocess.run(["cat", *paths], stdout=subprocess.DEVNULL, check=True)
