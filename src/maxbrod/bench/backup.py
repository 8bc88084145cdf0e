"""`maxbrod bench backup`: a backup beside kcat, Kafka's ConsumerPerformance, `cat` and a bare loop, on one sandbox.

Every group is a race of its own, so that what is compared was measured in the same minute. Spark is warm; what it costs
to start it is in `bench.cold`.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from maxbrod.backup.options import BackupOptions
from maxbrod.backup.run import Backup
from maxbrod.bench.bare import BareLoop, Writing
from maxbrod.bench.cold import measure_cold
from maxbrod.bench.figures import Figure, seconds, share, speed
from maxbrod.bench.groups import Group
from maxbrod.bench.hot import race_hot
from maxbrod.bench.loads import BATCH_BYTES, Load, write_load
from maxbrod.bench.peers import read_with_consumer_performance, read_with_kcat, write_with_cat
from maxbrod.bench.planning import measure_planning
from maxbrod.bench.processes import peak_bytes_below
from maxbrod.bench.race import Lap, race_laps, time_lap
from maxbrod.config import Config, KafkaConfig
from maxbrod.engine.session import open_session
from maxbrod.errors import MaxbrodError
from maxbrod.sandbox.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from maxbrod.bench.race import Laps
    from maxbrod.engine.session import Session

A_RECORDS: Final = 1_000_000
B_RECORDS: Final = 4_000_000
SMALL_RECORDS: Final = 1000
WORKER_BYTES_WANTED: Final = 400e6
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a memory file system is what is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What the races share: a cluster, warm workers of both kinds, and room on disk and in memory."""

    cluster: Cluster
    session: Session
    bare: BareLoop
    disk: Path
    memory: Path
    scale: float
    batch_bytes: int
    rounds: int

    def write(self, topic: str, records: int, *, partitions: int, json: bool) -> Load:
        count = max(int(records * self.scale), partitions)
        return write_load(self.cluster, topic, count, partitions=partitions, batch_bytes=self.batch_bytes, json=json)

    def lap(self, contender: Callable[[], object]) -> Lap:
        """Without the processor time of the brokers, which work for everyone."""
        return time_lap(contender, uncounted=frozenset(self.cluster.pids))

    def back_up(self, load: Load, archive: Path, *, compression: str = "auto") -> Lap:
        """The whole run of a backup into a new archive: planning, reading, snapshot and commit."""
        shutil.rmtree(archive, ignore_errors=True)
        config = Config(
            kafka=KafkaConfig(bootstrap=self.cluster.bootstrap),
            archive=str(archive),
            backup=BackupOptions(topics=(load.topic,), compression=compression),
        )
        return self.lap(lambda: _run(config, self.session, load))

    def read_bare(self, load: Load, writing: Writing) -> Lap:
        folder = self.disk / "bare"
        shutil.rmtree(folder, ignore_errors=True)
        return self.lap(lambda: self.bare.read(load, folder, writing=writing))


def measure(
    *,
    scale: float,
    rounds: int,
    only: Collection[Group] = (),
    batch_bytes: int = BATCH_BYTES,
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Figure]:
    """Every figure of the chosen groups, or of all."""
    chosen = frozenset(only or Group)
    found: list[Figure] = []
    warm = [group for group in (Group.B, Group.A, Group.HOT) if group in chosen]
    if warm:
        on_stage("starting a cluster and Spark")
        with _stage(scale, batch_bytes, rounds) as stage:
            for group in warm:
                on_stage(f"racing over {group}")
                found += _RACES[group](stage)
            found.append(_worker_memory())
    if Group.COLD in chosen:
        on_stage("starting from nothing")
        found += measure_cold(rounds=rounds)
    if Group.PLANNING in chosen:
        on_stage("planning for 100,000 partitions")
        found += measure_planning()
    return found


@contextmanager
def _stage(scale: float, batch_bytes: int, rounds: int) -> Iterator[Stage]:
    with ExitStack() as undo:
        disk = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-bench-")))
        in_memory = _MEMORY if _MEMORY.is_dir() else None
        memory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="maxbrod-bench-", dir=in_memory)))
        cluster = undo.enter_context(Cluster.start(disk / "cluster"))
        session = undo.enter_context(open_session())
        yield Stage(
            cluster=cluster,
            session=session,
            bare=undo.enter_context(BareLoop(cluster.bootstrap)),
            disk=disk,
            memory=memory,
            scale=scale,
            batch_bytes=batch_bytes,
            rounds=rounds,
        )


def _run(config: Config, session: Session, load: Load) -> None:
    with Backup(config, session=session) as backup:
        report = backup.run()
    if not report.complete or report.records != load.records:
        raise MaxbrodError(f"the backup has {report.records} of {load.records} records", operation="bench")


def _race_b(stage: Stage) -> list[Figure]:
    load = stage.write("bench-b", B_RECORDS, partitions=4, json=True)
    small = write_load(stage.cluster, "bench-small", SMALL_RECORDS, partitions=2, json=True)
    bootstrap, archive = stage.cluster.bootstrap, stage.disk / "archive"
    framed = stage.disk / "archive-zstd"
    laps = race_laps(
        {
            "maxbrod": lambda: stage.back_up(load, archive),
            "kcat": lambda: stage.lap(partial(read_with_kcat, bootstrap, load)),
            "ConsumerPerformance": lambda: _own_time(stage, partial(read_with_consumer_performance, bootstrap, load)),
            "bare": lambda: stage.read_bare(load, Writing.PLAIN),
            "zstd": lambda: stage.back_up(load, framed, compression="zstd"),
            "layout": lambda: stage.read_bare(load, Writing.LAYOUT),
            "exact": lambda: stage.read_bare(load, Writing.EXACT),
            "small": lambda: stage.back_up(small, stage.disk / "archive-small"),
        },
        rounds=stage.rounds,
    )
    ours, rate = laps["maxbrod"], partial(_rate, load.records)
    stored = sum(path.stat().st_size for path in framed.rglob("*.log*"))
    return [
        speed("B over kcat", ours, laps["kcat"], wanted=2.5, note=f"{rate(ours)}, kcat {rate(laps['kcat'])}"),
        speed("B over ConsumerPerformance", ours, laps["ConsumerPerformance"], wanted=2.5, note="its fetch time"),
        share("B, time over a bare loop", ours, laps["bare"], wanted=1.3, note="two processes, no Spark"),
        speed("B with zstd, speed over pass-through", laps["zstd"], ours, wanted=0.5, note=rate(laps["zstd"])),
        Figure(
            name="B with zstd, stored over received",
            value=stored / load.bytes,
            wanted=0.55,
            at_most=True,
            note=f"{stored / 1e6:.0f} of {load.bytes / 1e6:.0f} MB",
        ),
        share("B, the layout's writer over plain files", laps["layout"], laps["bare"], note="without Spark"),
        share("B, exact timestamps over header ones", laps["exact"], laps["layout"], note="without Spark"),
        seconds("a run over 1000 records, Spark warm", laps["small"], note="what every run costs"),
    ]


def _race_a(stage: Stage) -> list[Figure]:
    load = stage.write("bench-a", A_RECORDS, partitions=4, json=False)
    in_memory, on_disk, copy = stage.memory / "archive", stage.disk / "archive", stage.disk / "copy"

    def cat(*, synced: bool) -> Lap:
        sources = sorted(in_memory.rglob("*.log"))
        copy.unlink(missing_ok=True)
        return stage.lap(partial(write_with_cat, sources, copy, synced=synced))

    laps = race_laps(
        {
            "memory": lambda: stage.back_up(load, in_memory),
            "kcat": lambda: stage.lap(partial(read_with_kcat, stage.cluster.bootstrap, load)),
            "disk": lambda: stage.back_up(load, on_disk),
            "cat": lambda: cat(synced=False),
            "cat and sync": lambda: cat(synced=True),
        },
        rounds=stage.rounds,
    )
    memory, disk, kcat = laps["memory"], laps["disk"], laps["kcat"]
    notes = f"{_rate(load.records, memory)}, kcat {_rate(load.records, kcat)}"
    return [
        speed("A into memory over kcat", memory, kcat, wanted=0.9, note=notes),
        share("A to disk, time over cat and sync", disk, laps["cat and sync"], wanted=1.2, note="ours is synced"),
        share("A to disk, time over cat alone", disk, laps["cat"], note="which leaves it to the page cache"),
    ]


def _race_hot(stage: Stage) -> list[Figure]:
    load = stage.write("bench-hot", B_RECORDS, partitions=1, json=True)
    laps = race_hot(
        stage.session, stage.cluster.bootstrap, load, stage.disk / "hot", lap=stage.lap, rounds=stage.rounds
    )
    return [speed("one partition, two tasks over one", laps["two"], laps["one"], wanted=1.3)]


_RACES: Final[dict[Group, Callable[[Stage], list[Figure]]]] = {
    Group.B: _race_b,
    Group.A: _race_a,
    Group.HOT: _race_hot,
}


def _own_time(stage: Stage, contender: Callable[[], float]) -> Lap:
    """Of a contender that knows better how long it took."""
    taken: list[float] = []
    lap = stage.lap(lambda: taken.append(contender()))
    return Lap(seconds=taken[0], cpu_seconds=lap.cpu_seconds)


def _worker_memory() -> Figure:
    return Figure(
        name="peak memory of a Python worker",
        value=peak_bytes_below("pyspark.daemon"),
        unit="bytes",
        wanted=WORKER_BYTES_WANTED,
        at_most=True,
    )


def _rate(records: int, laps: Laps) -> str:
    return f"{records / laps.best / 1e6:.2f} M rec/s"
