"""Compiles every kernel of the layouts into numba's cache, so that the first real command does not wait for it.

Run once at set-up, as `maxbrod.batch.prepare` is: `python -m maxbrod.layouts.prepare`. It writes and reads a few
records in each layout, which calls the kernels with the very types that real calls use.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from maxbrod.batch.conform import conform
from maxbrod.layouts.foreign import Survey, WriteOptions
from maxbrod.layouts.registry import FOREIGN, layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from maxbrod.layouts.foreign import Layout


def prepare() -> None:
    for name in FOREIGN:
        with TemporaryDirectory() as folder:
            prepare_layout(layout_of(name), Path(folder))


def prepare_layout(layout: Layout, folder: Path) -> None:
    storage = LocalStorage(folder)
    where = TopicPartition(topic="prepared", partition=0)
    empty = Survey(layout=layout.name, segments=())
    for segment in layout.write(storage, where, [_records()], WriteOptions(), survey=empty):
        for _ in layout.read(storage, segment):
            pass


def _records() -> pa.RecordBatch:
    header = {"key": b"h", "value": b"v"}
    return conform(
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array([0, 1], pa.int64()),
                "timestamp_ms": pa.array([0, 1], pa.int64()),
                "key": pa.array([b"k", None], pa.binary()),
                "value": pa.array([b"v", None], pa.binary()),
                "headers": pa.array([[header], []], pa.list_(pa.struct({"key": pa.binary(), "value": pa.binary()}))),
            }
        )
    )


if __name__ == "__main__":
    prepare()
