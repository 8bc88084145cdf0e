"""Compiles the kernels of the layout binlog into numba's cache: `python -m maxbrod.layouts.binlog.prepare`."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from maxbrod.layouts.binlog.layout import LAYOUT
from maxbrod.layouts.binlog.names import INDEX, RECORDS
from maxbrod.layouts.binlog.repairing import repair
from maxbrod.layouts.foreign import ClusterFacts, WriteOptions
from maxbrod.layouts.specimen import WHERE, specimen
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from maxbrod.storage.interface import Storage


def prepare() -> None:
    """Call each kernel once with the very types that real calls use."""
    with TemporaryDirectory() as folder:
        storage = open_storage(folder)
        survey, options = LAYOUT.survey(storage), WriteOptions()
        written = LAYOUT.write(storage, WHERE, [specimen()], options, survey=survey)
        LAYOUT.publish(storage, survey, written, options, ClusterFacts())
        storage.delete([segment.path.removesuffix(RECORDS) + INDEX for segment in written])
        repair(storage)
        _read(storage)


def _read(storage: Storage) -> None:
    for segment in LAYOUT.survey(storage).segments:
        for _ in LAYOUT.read(storage, segment):
            pass


if __name__ == "__main__":
    prepare()
