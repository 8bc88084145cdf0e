"""Planning a restore at scale: 10,000 partitions, a real catalog of 100,000 rows, down to every partition's slices."""

from __future__ import annotations

import tempfile
import time
from typing import Final

from maxbrod.bench.figures import Figure
from maxbrod.bench.planning import write_catalog
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.restore.plan.choosing import Chosen
from maxbrod.restore.plan.columns import SOURCE_COLUMNS
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.plan.sources import measure_sources, rows_to_read
from maxbrod.storage.opening import open_storage

PARTITIONS: Final = 10_000
SEGMENTS: Final = 100_000


def measure_restore_planning(*, partitions: int = PARTITIONS, segments: int = SEGMENTS) -> list[Figure]:
    """What the archive is asked for a restore of all of it; the cluster is not."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=partitions, segments=segments)
        began = time.perf_counter()
        found = plan_slices(folder)
        taken = time.perf_counter() - began
    note = f"{partitions:,} partitions, {segments:,} rows, {found:,} slices"
    return [Figure(name="planning a restore at scale", value=taken, unit="seconds", note=note)]


def plan_slices(url: str) -> int:
    """How many slices a restore of everything would read."""
    catalog, request = Catalog.open(open_storage(url)), RestoreRequest()
    rows = catalog.rows(columns=("topic", *SOURCE_COLUMNS))
    topics = dict(zip(rows["topic_id"].to_pylist(), rows["topic"].to_pylist(), strict=True))
    sources = measure_sources(rows, request, Chosen(topics=topics, missing=()), {}, as_of=False)
    chosen = decode_rows(rows_to_read(catalog.rows(), sources, request))
    return len([slice_of(row) for row in chosen if isinstance(row, Segment)])
