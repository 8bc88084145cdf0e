"""Compiles every kernel of the layouts into numba's cache, so that the first real command does not wait for it.

Run once at set-up, as `maxbrod.batch.prepare` is: `python -m maxbrod.layouts.prepare`. It writes and reads a few
records in each layout, which calls the kernels with the same types as real calls.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import HEADERS_TYPE, conform
from maxbrod.batch.kernels import sealed
from maxbrod.layouts.avro.kernels import unwrap_java
from maxbrod.layouts.binlog.format import INDEX
from maxbrod.layouts.foreign import ClusterFacts, Layout, WriteOptions
from maxbrod.layouts.registry import FOREIGN, layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage

WHERE: Final = TopicPartition(topic="t", partition=0)


def specimen() -> pa.RecordBatch:
    headers = [[{"key": b"h", "value": b"v"}, {"key": b"\xff", "value": None}], []]
    return conform(
        pa.RecordBatch.from_pydict(
            {
                "offset": pa.array([0, 1], pa.int64()),
                "timestamp_ms": pa.array([0, -1], pa.int64()),
                "key": pa.array([b"k", None], pa.binary()),
                "value": pa.array([b"v", None], pa.binary()),
                "headers": pa.array(headers, HEADERS_TYPE),
            }
        )
    )


def prepare() -> None:
    for name in FOREIGN:
        prepare_layout(name)


def prepare_layout(name: str) -> None:
    layout = layout_of(name)
    with TemporaryDirectory() as folder:
        storage = open_storage(folder)
        survey, options = layout.survey(storage), WriteOptions()
        written = layout.write(storage, WHERE, [specimen()], options, survey=survey)
        layout.publish(storage, survey, written, options, ClusterFacts())
        _read(layout, storage)
        if name == "avro":
            # The kernel that only the headers of the tool's own files need.
            nothing = np.empty(0, np.int64)
            unwrap_java(sealed(np.empty(0, np.uint8)), nothing, nothing)
        if layout.repair is not None:
            # The kernels that a sound archive does not need: those that find records without an index.
            storage.delete([info.path for info in storage.list() if info.path.endswith(INDEX)])
            layout.repair(storage)
            _read(layout, storage)


def _read(layout: Layout, storage: Storage) -> None:
    for segment in layout.survey(storage).segments:
        for _ in layout.read(storage, segment):
            pass


if __name__ == "__main__":
    prepare()
