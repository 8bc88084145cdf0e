"""The cost of following: an interval without news, one with news, and a commit after 100 to 100,000 others.

Intervals are runs of the Python API on a sandbox and a warm session. Commits go to a store in memory whose clock moves
a second per commit, so that everything that depends on the time (retention, sweeps) happens as it would within a day.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Final, Self
from unittest.mock import patch

from kafka import KafkaProducer

from maxbrod.backup.run import Backup
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.log import LOG_FOLDER, TABLE_FOLDER
from maxbrod.catalog.rows import Run, Segment
from maxbrod.errors import ObjectExistsError, ObjectNotFoundError
from maxbrod.model import now_ms
from maxbrod.sandbox.topics import create_topic
from maxbrod.storage.interface import ObjectInfo
from maxbrod_bench.race import Figure, at_most, cpu_seconds, resident_bytes
from maxbrod_bench.stage import Stage, open_stage

IDLE_WANTED: Final = 0.020
BUSY_WANTED: Final = 0.150
_WINDOW: Final = 512
"""Commits that one figure averages: the smallest files grow for so many, until they are folded into the next tier."""
_MARKS: Final = (100, 1_000, 10_000, 100_000)
_SOAK_PARTS: Final = (100, 10, 2, 1)
_ACTIVE: Final = 10
_SECOND_MS: Final = 1000
_CLOCKS: Final = tuple(f"maxbrod.catalog.{name}.now_ms" for name in ("catalog", "codec", "commits", "log"))


def measure(
    *, partitions: Sequence[int], runs: int, commits: int, soak: int, on_stage: Callable[[str], None]
) -> list[Figure]:
    """`partitions`: the sizes of topics to follow. `soak`: so many runs, and what memory they left."""
    figures: list[Figure] = []
    if runs or soak:
        with open_stage(rounds=runs) as stage:
            for count in partitions if runs else ():
                on_stage(f"following {count} partitions")
                figures += _intervals(stage, count)
            if soak:
                on_stage(f"{soak} runs")
                figures += _soak(stage, soak)
    if commits:
        on_stage(f"{commits} commits")
        figures += measure_commits(commits)
    return figures


# Intervals


def _intervals(stage: Stage, partitions: int) -> list[Figure]:
    topic = f"followed-{partitions}"
    create_topic(stage.cluster, topic, partitions=partitions)
    with ExitStack() as undo:
        write = undo.enter_context(_writer(stage, topic, partitions))
        backup = undo.enter_context(Backup(stage.config(topic, stage.disk / topic), session=stage.session))
        for _ in range(stage.rounds):  # the JVM compiles
            write()
            backup.run()
        while backup.run().committed:
            pass
        objects = _count_objects(stage.disk / topic)
        idle = [_processor_s(stage, backup) for _ in range(stage.rounds)]
        new_objects = _count_objects(stage.disk / topic) - objects
        busy = []
        for _ in range(stage.rounds):
            write()
            busy.append(_processor_s(stage, backup))
        busy_objects = (_count_objects(stage.disk / topic) - objects) / stage.rounds
    of = f"{partitions} partitions"
    note = f"driver {1000 * median(driver for driver, _ in idle):.1f} ms; {new_objects} new objects"
    busy_note = (
        f"news in {min(partitions, _ACTIVE)} partitions; driver {1000 * median(driver for driver, _ in busy):.0f} ms, "
        f"JVM and workers the rest; {busy_objects:.1f} new objects"
    )
    return [
        _processor(f"an interval without news, {of}", [seconds for _, seconds in idle], IDLE_WANTED, note),
        _processor(f"an interval with news, {of}", [seconds for _, seconds in busy], BUSY_WANTED, busy_note),
    ]


@contextmanager
def _writer(stage: Stage, topic: str, partitions: int) -> Iterator[Callable[[], None]]:
    """Writes a record to a few partitions each time."""
    with closing(KafkaProducer(**stage.cluster.running_client_properties())) as producer:

        def write() -> None:
            for partition in range(min(partitions, _ACTIVE)):
                producer.send(topic, b"news", partition=partition)
            producer.flush()

        yield write


def _processor_s(stage: Stage, backup: Backup) -> tuple[float, float]:
    """Processor seconds of one run: of the driver, and of everything but the brokers."""
    uncounted = frozenset(stage.cluster.pids)
    mine, everything = _own_cpu_s(), cpu_seconds(uncounted)
    backup.run()
    # The clock of other processes ticks in hundredths: never less than what the driver took.
    own = _own_cpu_s() - mine
    return own, max(own, cpu_seconds(uncounted) - everything)


def _own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _processor(name: str, taken: Sequence[float], wanted: float, note: str) -> Figure:
    mean = at_most(f"{name}, processor time", sum(taken) / len(taken), "seconds", wanted, note=note)
    return replace(mean, median=median(taken))


def _count_objects(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def _soak(stage: Stage, runs: int) -> list[Figure]:
    """Memory of the driver, the JVM and the workers after a hundredth, a tenth, a half and all of the runs."""
    topic = "soaked"
    create_topic(stage.cluster, topic, partitions=4)
    marks = sorted({max(runs // part, 1) for part in _SOAK_PARTS})
    found: list[dict[str, int]] = []
    with ExitStack() as undo:
        write = undo.enter_context(_writer(stage, topic, 4))
        backup = undo.enter_context(Backup(stage.config(topic, stage.disk / topic), session=stage.session))
        for number in range(1, runs + 1):
            if number % 2:
                write()
            backup.run()
            if number in marks:
                gc.collect()
                found.append(resident_bytes(frozenset(stage.cluster.pids)))
    after = f"after {', '.join(f'{mark:,}' for mark in marks)} runs, every second one with news"
    return [
        at_most(
            f"growth of the {whose} after the first {marks[len(marks) // 2 - 1]:,} runs",
            taken[-1] / max(taken[len(marks) // 2 - 1], 1),
            "times",
            1.1,
            note=f"{', '.join(f'{size / 1e6:.0f}' for size in taken)} MB {after}",
        )
        for whose in ("driver", "jvm", "workers")
        if (taken := [resident[whose] for resident in found])
    ]


# Commits


def measure_commits(commits: int) -> Iterator[Figure]:
    """A commit's processor time and the bytes of Delta's log that it adds, once there are 100, 1,000, ... of them.

    delta-rs has its own clock, the machine's: it expires no removed file of the simulated day, so the log is rather
    longer than it would be.
    """
    store = _Store()
    with ExitStack() as undo:
        for clock in _CLOCKS:
            undo.enter_context(patch(clock, lambda: store.clock_ms))
        catalog = Catalog.create(store)  # type: ignore[arg-type] # what a catalog uses of a storage
        number = 0
        for mark in (mark for mark in _MARKS if mark <= commits):
            while number < mark:
                number = _commit(store, catalog, number)
            began_s, log_bytes, data_bytes = _own_cpu_s(), store.written[LOG_FOLDER], store.written[TABLE_FOLDER]
            while number < mark + _WINDOW:
                number = _commit(store, catalog, number)
            taken_s = (_own_cpu_s() - began_s) / _WINDOW
            log = (store.written[LOG_FOLDER] - log_bytes) / _WINDOW
            data = (store.written[TABLE_FOLDER] - data_bytes) / _WINDOW
            note = f"{len(store.names(LOG_FOLDER))} objects in the log; {data / 1e3:.1f} kB of rows a commit"
            yield Figure(name=f"a commit after {mark:,}, processor time", value=taken_s, unit="seconds")
            yield Figure(name=f"bytes of the log a commit after {mark:,}", value=log, unit="bytes", note=note)


def _commit(store: _Store, catalog: Catalog, number: int) -> int:
    store.clock_ms += _SECOND_MS
    run_id = f"20260101T000000Z-{number:06x}"
    row = Segment(
        topic="followed",
        topic_id="simulatedsimulatedsimA",
        partition=number % _ACTIVE,
        base_offset=number // _ACTIVE,
        end_offset=number // _ACTIVE + 1,
        path=f"packs/{run_id}-0123456789abcdef.log",
        position=0,
        bytes=100,
        raw_bytes=100,
        codec="none",
        records=1,
        min_timestamp=store.clock_ms,
        max_timestamp=store.clock_ms,
        first_leader_epoch=0,
        last_leader_epoch=0,
        digest="crc32c:01234567",
        run_id=run_id,
        written_at=store.clock_ms,
    )
    run = Run(
        run_id=run_id,
        started_at=store.clock_ms,
        finished_at=store.clock_ms,
        snapshot=f"snapshots/20260101T000000Z-{number // 60:06x}.json.zst",
        snapshot_changes=([["taken_at_ms"], store.clock_ms], [["recovery_points", None, None], store.clock_ms]),
        statistics={"command": "backup", "records": 1, "bytes": 100, "exit_code": 0},
        written_at=store.clock_ms,
    )
    catalog.commit([row, run])
    return number + 1


@dataclass(slots=True)
class _Store:
    """Objects in memory with a clock of its own: what a catalog uses of a storage."""

    url: str = "memory of this process"
    signing: None = None
    encrypted: bool = False
    creates_only: bool = False
    clock_ms: int = field(default_factory=now_ms)
    objects: dict[str, dict[str, tuple[bytes, int]]] = field(default_factory=lambda: {LOG_FOLDER: {}, TABLE_FOLDER: {}})
    """Those of the log, and all others: a listing of the log must not cost more the more data files there are."""
    written: dict[str, int] = field(default_factory=lambda: {LOG_FOLDER: 0, TABLE_FOLDER: 0})

    def at_hand(self) -> Self:
        return self

    def name_of(self, path: str) -> str:
        return path

    def names(self, folder: str) -> list[str]:
        """`folder` is the table's or the log's, which is inside it."""
        return [path for prefix, paths in self.objects.items() if prefix.startswith(folder) for path in paths]

    def list(self, folder: str = "") -> Iterator[ObjectInfo]:
        return (self.head(path) for path in self.names(folder))

    def head(self, path: str) -> ObjectInfo:
        data, modified_ms = self._find(path)
        return ObjectInfo(path=path, size=len(data), modified_ms=modified_ms, etag=None)

    def get(self, path: str, *, size: int | None = None) -> bytes:
        del size
        return self._find(path)[0]

    def put(self, path: str, data: bytes) -> None:
        if path in self.objects[_folder_of(path)]:
            raise ObjectExistsError("there is such an object", object_name=path)
        self.replace(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self.objects[_folder_of(path)][path] = bytes(data), self.clock_ms
        self.written[_folder_of(path)] += len(data)

    @contextmanager
    def create(self, path: str) -> Iterator[BytesIO]:
        draft = BytesIO()
        yield draft
        self.put(path, draft.getvalue())

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.objects[_folder_of(path)].pop(path, None)

    def _find(self, path: str) -> tuple[bytes, int]:
        found = self.objects[_folder_of(path)].get(path)
        if found is None:
            raise ObjectNotFoundError("there is no such object", object_name=path)
        return found


def _folder_of(path: str) -> str:
    return LOG_FOLDER if path.startswith(LOG_FOLDER) else TABLE_FOLDER
