"""A catalog of years: 5 million rows over 100,000 partitions, planned from and committed to, in a fresh process."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.backup.plan.starts import Earliest
from maxbrod.backup.plan.states import plan_partition
from maxbrod.bench.figures import Figure
from maxbrod.bench.planning import state_of, write_catalog
from maxbrod.bench.processes import peak_bytes, run_python
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Gap
from maxbrod.model import MENDABLE, GapReason
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS: Final = 100_000
SEGMENTS: Final = 5_000_000
SECONDS_WANTED: Final = 60.0
BYTES_WANTED: Final = 3e9


def measure_scale(*, partitions: int = PARTITIONS, segments: int = SEGMENTS) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder:
        write_catalog(folder, partitions=partitions, segments=segments)
        program = f"from maxbrod.bench.scale import report_scale; report_scale({folder!r})"
        measured: dict[str, Any] = json.loads(run_python("-c", program))
    cpu = f"{measured['planning_cpu_s']:.1f} s of processor time to plan"
    size = f"{partitions:,} partitions, {segments:,} rows, {cpu}"
    figures = [
        Figure(name=name, value=measured[key], unit="seconds", wanted=SECONDS_WANTED, at_most=True, note=size)
        for name, key in (("planning with nothing new", "planning_s"), ("a commit", "commit_s"))
    ]
    return [
        *figures,
        Figure(name="memory of both", value=measured["peak_bytes"], unit="bytes", wanted=BYTES_WANTED, at_most=True),
    ]


def report_scale(url: str) -> None:
    """Plan a backup that finds nothing new, commit one row, and print what that took."""
    began = time.process_time()
    planning_s = _timed(lambda: _plan(url))
    planning_cpu_s = time.process_time() - began
    commit_s = _timed(lambda: _commit(url))
    measured = {"planning_s": planning_s, "planning_cpu_s": planning_cpu_s, "commit_s": commit_s}
    print(json.dumps({**measured, "peak_bytes": peak_bytes()}))  # noqa: T201 - for the caller


def _timed(act: Callable[[], None]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _plan(url: str) -> None:
    """What a backup asks of the catalog, and its plan for every partition."""
    catalog = Catalog.open(open_storage(url))
    catalog.runs()
    catalog.revisions()
    catalog.gaps(MENDABLE)
    for number, (partition, held) in enumerate(sorted(catalog.positions().items())):
        state = replace(state_of(number, held), topic_id=partition.topic_id, partition=partition.partition)
        idle = replace(state, end=held.end_offset, high_watermark=held.end_offset)
        assert plan_partition(idle, Earliest()).idle  # noqa: S101 - our own mistake


def _commit(url: str) -> None:
    gap = Gap(
        topic="topic-00000",
        topic_id="topic-00000",
        partition=0,
        base_offset=1 << 40,
        end_offset=(1 << 40) + 1,
        reason=GapReason.RETENTION,
        run_id="bench",
        written_at=0,
    )
    Catalog.open(open_storage(url)).commit([gap])
