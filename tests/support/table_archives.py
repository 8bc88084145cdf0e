"""Small archives for tests of the table, and the table read in this process: Spark is all that is left out."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pyspark import cloudpickle

from maxbrod.archive.archive import open_for_writing
from maxbrod.catalog.rows import SLICE_FIELDS, Segment, decode_rows, slice_of
from maxbrod.model import PartitionId
from maxbrod.storage.local import LocalStorage
from maxbrod.table.read.options import SCOPES
from maxbrod.table.read.scope import Scope, encode_scopes, narrow
from maxbrod.table.source import ArchiveSource
from support.archives import put_snapshot
from support.catalog_rows import run
from support.native_logs import NAME, archive, logs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql.datasource import Filter

    from maxbrod.layouts.kafka.described_batches import TimestampScan
    from maxbrod.layouts.kafka.format import SegmentLimits

HOLDING = "maxbrod.table.views._LOCAL_SLICES_MAX"
"""With -1 here no table is small, so that tasks read it, as they read large ones."""
PLACE = PartitionId(topic_id=NAME.topic_id, partition=NAME.partition)


def write(
    url: Path,
    chunks: list[bytes],
    *,
    run_id: str = "run-1",
    limits: SegmentLimits | None = None,
    aborted: list[list[tuple[int, int]]] | None = None,
    topic: str = NAME.topic,
    topic_id: str = NAME.topic_id,
    written_at: int = 1,
    exact: bool = True,
    look: TimestampScan | None = None,
) -> list[Segment]:
    """One run that archives these batches of one partition."""
    opened = open_for_writing(str(url))
    slices = archive(opened.storage, chunks, limits=limits, aborted=aborted, exact=exact, look=look)
    names = SLICE_FIELDS
    rows = [
        Segment(
            topic=topic,
            topic_id=topic_id,
            partition=NAME.partition,
            run_id=run_id,
            written_at=written_at,
            **{name: getattr(each, name) for name in names},
        )
        for each in slices
    ]
    place = PartitionId(topic_id=topic_id, partition=NAME.partition)
    put_snapshot(opened.storage, run_id, topics={topic_id: topic}, ends={place: rows[-1].end_offset})
    finished = run(run_id, finished_at=written_at)
    opened.catalog.commit([*rows, finished])
    return rows


def compact(url: Path) -> None:
    """All rows of a partition become one of a new object, and `gc` takes the old ones."""
    opened = open_for_writing(str(url))
    held = opened.catalog.rows()
    rows = [row for row in decode_rows(held) if isinstance(row, Segment)]
    (stored,) = archive(opened.storage, [logs(opened.storage, tuple(map(slice_of, rows)))])
    values = {name: getattr(stored, name) for name in SLICE_FIELDS}
    opened.catalog.commit([replace(rows[0], **values, level=1)], replaced=held)
    opened.storage.delete([row.path for row in rows])


class Reads:
    """The objects that a query touched after it was planned, with how often each."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    @property
    def objects(self) -> set[str]:
        return set(self.paths)


def query(url: object, filters: Sequence[Filter] = (), reads: Reads | None = None, **options: str) -> list[Any]:
    """What Spark does with a query, pickling included; but it would look at the filters once more."""
    told = {SCOPES: encode_scopes([narrow(Scope(), filters)])} if filters else {}
    source = ArchiveSource({"path": str(url), **options, **told})
    reader = source.reader(source.schema())
    partitions = pickle.loads(cloudpickle.dumps(reader.partitions()))
    reader = pickle.loads(cloudpickle.dumps(reader))
    get_range = LocalStorage.get_range

    def counted(self: LocalStorage, path: str, *arguments: Any) -> memoryview:
        if reads is not None:
            reads.paths.append(path)
        return get_range(self, path, *arguments)

    with patch.object(LocalStorage, "get_range", counted):
        return [row for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]
