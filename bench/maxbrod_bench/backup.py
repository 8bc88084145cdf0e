"""`maxbrod bench backup`: a backup beside kcat, Kafka's ConsumerPerformance, `cat` and a bare loop, on one sandbox.

Every group is a race of its own, so that compared figures were measured in the same minute. Spark is warm, except in
the group `cold`: a whole `maxbrod backup` of a small topic beside Spark's bare start, each in a fresh process.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from maxbrod.backup.plan.ranges import RangeItem, plan_tasks
from maxbrod.backup.task import TaskSettings, run_backup_task
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.java import find_java
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.format import Compression, SegmentLimits
from maxbrod.model import topic_id_text
from maxbrod.work.jobs import SparkExecutor
from maxbrod_bench.peers import BareLoop, Writing, read_with_consumer_performance, read_with_kcat, write_with_cat
from maxbrod_bench.planning import measure_planning
from maxbrod_bench.race import (
    BackupGroup,
    Figure,
    Lap,
    at_most,
    race_laps,
    rate,
    require,
    run_python,
    seconds,
    share,
    speed,
    time_lap,
)
from maxbrod_bench.stage import A_RECORDS, B_RECORDS, BATCH_BYTES, Load, Stage, open_cluster, open_stage, write_load

SMALL_RECORDS: Final = 1000
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a memory file system is what is asked for

# From the start of the program to the first rows that came back from Python workers.
_WORK: Final = "session.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, 'id long').collect(); print(time.time())"
_BARE: Final = (
    "import time; from pyspark.sql import SparkSession\n"
    f"session = SparkSession.builder.master('local[2]').getOrCreate(); {_WORK}; session.stop()"
)
OURS: Final = (
    "import time; from maxbrod.work.session import open_session\n"
    f"with open_session(master='local[2]') as session: {_WORK}"
)


def measure(
    *,
    scale: float,
    rounds: int,
    only: Collection[BackupGroup] = (),
    batch_bytes: int = BATCH_BYTES,
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Figure]:
    """Every figure of the chosen groups, or of all."""
    chosen = frozenset(only or BackupGroup)
    found: list[Figure] = []
    warm = [group for group in _RACES if group in chosen]
    if warm:
        on_stage("starting a cluster and Spark")
        with open_stage(scale=scale, rounds=rounds, batch_bytes=batch_bytes) as stage:
            found += measure_on(stage, warm, on_stage)
    if BackupGroup.COLD in chosen:
        on_stage("starting from nothing")
        found += _measure_cold(rounds=rounds)
    if BackupGroup.PLANNING in chosen:
        on_stage("planning for 100,000 partitions")
        found += measure_planning()
    return found


def measure_on(stage: Stage, groups: Collection[BackupGroup], on_stage: Callable[[str], None]) -> list[Figure]:
    """The groups that need a cluster and a warm session."""
    found: list[Figure] = []
    for group in groups:
        on_stage(f"racing over {group}")
        found += _RACES[group](stage)
    return [*found, stage.worker_memory()]


def _back_up(stage: Stage, load: Load, archive: Path, *, compression: str = "auto") -> Lap:
    """A whole backup into a new archive: planning, reading, snapshot and commit."""
    shutil.rmtree(archive, ignore_errors=True)
    config = stage.config(load.topic, archive, compression=compression)
    return stage.time(lambda: stage.run_backup(config, records=load.records))


def _race_b(stage: Stage) -> list[Figure]:
    load = stage.write("bench-b", B_RECORDS, json=True)
    small = write_load(stage.cluster, "bench-small", SMALL_RECORDS, partitions=2, json=True)
    bootstrap, framed, back_up = stage.cluster.bootstrap, stage.disk / "archive-zstd", partial(_back_up, stage)

    def read_bare(writing: Writing) -> Lap:
        folder = stage.disk / "bare"
        shutil.rmtree(folder, ignore_errors=True)
        return stage.time(lambda: bare.read(load, folder, writing=writing))

    with BareLoop(bootstrap) as bare:
        laps = stage.race(
            {
                "maxbrod": lambda: back_up(load, stage.disk / "archive"),
                "kcat": lambda: read_with_kcat(bootstrap, load),
                "ConsumerPerformance": lambda: read_with_consumer_performance(bootstrap, load),
                "bare": lambda: read_bare(Writing.PLAIN),
                "zstd": lambda: back_up(load, framed, compression="zstd"),
                "layout": lambda: read_bare(Writing.LAYOUT),
                "exact": lambda: read_bare(Writing.EXACT),
                "small": lambda: back_up(small, stage.disk / "archive-small"),
            }
        )
    ours, speed_of = laps["maxbrod"], partial(rate, load.records)
    stored = sum(path.stat().st_size for path in framed.rglob("*.log*"))
    return [
        speed("B over kcat", ours, laps["kcat"], wanted=2.5, note=f"{speed_of(ours)}, kcat {speed_of(laps['kcat'])}"),
        speed("B over ConsumerPerformance", ours, laps["ConsumerPerformance"], wanted=2.5, note="its fetch time"),
        share("B, time over a bare loop", ours, laps["bare"], wanted=1.25, note="two processes, no Spark"),
        speed("B with zstd, speed over pass-through", laps["zstd"], ours, wanted=0.5, note=speed_of(laps["zstd"])),
        at_most(
            "B with zstd, stored over received",
            stored / load.bytes,
            "times",
            0.55,
            note=f"{stored / 1e6:.0f} of {load.bytes / 1e6:.0f} MB",
        ),
        share("B, the layout's writer over plain files", laps["layout"], laps["bare"], note="without Spark"),
        share("B, exact timestamps over header ones", laps["exact"], laps["layout"], note="without Spark"),
        seconds("a run over 1000 records, Spark warm", laps["small"], note="what every run costs"),
    ]


def _race_a(stage: Stage) -> list[Figure]:
    load = stage.write("bench-a", A_RECORDS, json=False)
    on_disk, copy = stage.disk / "archive", stage.disk / "copy"

    def cat(*, synced: bool) -> Lap:
        sources = sorted(in_memory.rglob("*.log"))
        copy.unlink(missing_ok=True)
        return stage.time(partial(write_with_cat, sources, copy, synced=synced))

    place = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-", dir=place) as folder:
        in_memory = Path(folder) / "archive"
        laps = stage.race(
            {
                "memory": lambda: _back_up(stage, load, in_memory),
                "kcat": lambda: read_with_kcat(stage.cluster.bootstrap, load),
                "disk": lambda: _back_up(stage, load, on_disk),
                "cat": lambda: cat(synced=False),
                "cat and sync": lambda: cat(synced=True),
            }
        )
    memory, disk, kcat = laps["memory"], laps["disk"], laps["kcat"]
    notes = f"{rate(load.records, memory)}, kcat {rate(load.records, kcat)}"
    return [
        speed("A into memory over kcat", memory, kcat, wanted=0.9, note=notes),
        share("A to disk, time over cat and sync", disk, laps["cat and sync"], wanted=1.3, note="ours is synced"),
        share("A to disk, time over cat alone", disk, laps["cat"], note="which leaves it to the page cache"),
    ]


def _race_hot(stage: Stage) -> list[Figure]:
    """One partition read by one task and by two: the Spark job alone, without planning and commit."""
    load, archive = stage.write("bench-hot", B_RECORDS, partitions=1, json=True), stage.disk / "hot"
    kafka = KafkaConfig(bootstrap=stage.cluster.bootstrap)
    with KafkaClient(kafka) as client:
        topic = client.topic(load.topic, deadline=Deadline.after(PATIENCE_S))
    settings = TaskSettings(
        run_id="bench",
        archive_url=str(archive),
        kafka=kafka,
        storage=StorageConfig(),
        compression=Compression(),
        limits=SegmentLimits(),
    )
    hot = RangeItem(
        topic=load.topic,
        topic_id=topic_id_text(topic.topic_id),
        partition=0,
        start=0,
        end=load.records,
        bytes_per_offset=load.bytes / load.records,
    )

    executor = SparkExecutor(stage.session)

    def read(count: int) -> Lap:
        shutil.rmtree(archive, ignore_errors=True)
        (tasks,) = plan_tasks([hot], parallelism=count, task_bytes=-(-hot.bytes_estimate // count))

        def run() -> None:
            outcomes = executor.run(run_backup_task, settings, [task.items for task in tasks], name=settings.run_id)
            records = sum(found.records for outcome in outcomes for found in outcome.slices)
            failures = sorted({outcome.failure.message for outcome in outcomes if outcome.failure is not None})
            complete = records == load.records
            require(complete, f"the tasks have read {records} of {load.records} records", hint="; ".join(failures))

        return stage.time(run)

    laps = stage.race({"one": lambda: read(1), "two": lambda: read(2)})
    return [speed("one partition, two tasks over one", laps["two"], laps["one"], wanted=1.3)]


_RACES: Final[dict[BackupGroup, Callable[[Stage], list[Figure]]]] = {
    BackupGroup.B: _race_b,
    BackupGroup.A: _race_a,
    BackupGroup.HOT: _race_hot,
}


def _measure_cold(*, rounds: int) -> list[Figure]:
    """A whole process each. Both open the session with the same flags and run one job in it."""
    with open_cluster() as (cluster, folder):
        topic = write_load(cluster, "bench-small", SMALL_RECORDS, partitions=2, json=True).topic
        archive = folder / "archive"

        def backup() -> Lap:
            shutil.rmtree(archive, ignore_errors=True)
            options = ("--bootstrap", cluster.bootstrap, "--archive", str(archive), "--topic", topic, "--quiet")
            return time_lap(lambda: run_python("-m", "maxbrod", "backup", *options))

        laps = race_laps({"backup": backup, "bare": lambda: run_python("-c", OURS)}, rounds=rounds)
    return [
        share("cold backup over Spark's bare start", laps["backup"], laps["bare"], wanted=1.6),
        seconds("cold backup of a small topic", laps["backup"]),
        seconds("bare session, first mapInArrow, stop", laps["bare"]),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    name: str
    median_seconds: float
    best_seconds: float
    worst_seconds: float


def measure_start(*, rounds: int) -> list[Start]:
    """Each way in a fresh process, in turns."""
    # PySpark uses whatever `java` and `python3` are on PATH, which may be missing or too old.
    java = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as empty:
        ways: dict[str, tuple[str, Mapping[str, str]]] = {
            "PySpark alone": (_BARE, java),
            "maxbrod, no class archive": (OURS, {"MAXBROD_CACHE": empty}),
            "maxbrod": (OURS, {}),
        }
        for _ in range(rounds):
            for name, (program, environment) in ways.items():
                seconds.setdefault(name, []).append(_seconds(program, environment))
    return [
        Start(name=name, median_seconds=median(times), best_seconds=min(times), worst_seconds=max(times))
        for name, times in seconds.items()
    ]


def _seconds(program: str, environment: Mapping[str, str]) -> float:
    started = time.time()
    return float(run_python("-c", program, environment=environment)) - started
