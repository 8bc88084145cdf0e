"""`maxbrod bench mount`: Kafka's ConsumerPerformance from a mount beside the same from a broker, and its memory.

The topics are written to a broker, backed up to a local disk, and read in turns from both. Readers and servers share
the machine, so the ratio holds for machines whose cores both need.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka import KafkaConsumer, TopicPartition

from maxbrod.errors import UnavailableError
from maxbrod.sandbox.cluster import Cluster
from maxbrod_bench.large_archive import ROWS, write_archive
from maxbrod_bench.peers import read_with_consumer_performance
from maxbrod_bench.planning import PARTITIONS as MANY_PARTITIONS
from maxbrod_bench.race import Figure, Lap, MountGroup, at_most, peak_bytes, race_laps, rate, run_python, speed
from maxbrod_bench.stage import A_RECORDS, B_RECORDS, BATCH_BYTES, PARTITIONS, Load, open_cluster, write_load

_LINE: Final = "--bootstrap-server "
_CACHE_BYTES: Final = 256 << 20
_PROCESS_BYTES: Final = 300e6
"""What Python, Arrow and the rows of a small catalog take without a cache."""
_FIRST_RECORD_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MountProcess:
    bootstrap: str
    pid: int
    began: float
    """When the command was started, by the clock that does not jump."""


@contextmanager
def mount_process(archive: Path, *arguments: str) -> Iterator[MountProcess]:
    """`maxbrod mount` as a process of its own, until the block ends."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-state-") as state:
        command = [sys.executable, "-m", "maxbrod", "mount", str(archive), "--listen", "127.0.0.1:0", "--state", state]
        process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            lines = iter(process.stdout or ())
            line = next((line for line in lines if line.startswith(_LINE)), None)
            if line is None:
                raise UnavailableError("the mount has ended before it was ready", object_name=str(archive))
            yield MountProcess(bootstrap=line.removeprefix(_LINE).strip(), pid=process.pid, began=began)
        finally:
            process.terminate()
            process.wait(60)
            if process.stdout is not None:
                process.stdout.close()


def measure(
    *,
    scale: float,
    rounds: int,
    only: Collection[MountGroup] = (),
    batch_bytes: int = BATCH_BYTES,
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Figure]:
    chosen = frozenset(only or MountGroup)
    found: list[Figure] = []
    races = [group for group in (MountGroup.A, MountGroup.B) if group in chosen]
    if races:
        on_stage("starting a cluster")
        with open_cluster() as (cluster, folder):
            for group in races:
                on_stage(f"racing over {group}")
                found += _race(cluster, folder, group, scale=scale, rounds=rounds, batch_bytes=batch_bytes)
    if MountGroup.FIRST in chosen:
        on_stage("writing a large archive")
        found += measure_first(rows=int(ROWS * min(scale, 1.0)))
    return found


def _race(
    cluster: Cluster, folder: Path, group: MountGroup, *, scale: float, rounds: int, batch_bytes: int
) -> list[Figure]:
    json = group is MountGroup.B
    records = max(int((B_RECORDS if json else A_RECORDS) * scale), PARTITIONS)
    topic = f"bench-{group}"
    load = write_load(cluster, topic, records, partitions=PARTITIONS, batch_bytes=batch_bytes, json=json)
    archive = folder / f"archive-{group}"
    run_python(
        *("-m", "maxbrod", "backup", "--bootstrap", cluster.bootstrap, "--archive", str(archive)),
        *("--topic", topic, "--engine", "local", "--quiet"),
    )
    with mount_process(archive, "--cache-bytes", str(_CACHE_BYTES)) as mounted:
        laps = race_laps(
            {
                "mount": lambda: _fetch_time(mounted.bootstrap, load),
                "broker": lambda: _fetch_time(cluster.bootstrap, load),
            },
            rounds=rounds,
        )
        peak = peak_bytes(mounted.pid)
    ours, peer = laps["mount"], laps["broker"]
    note = f"{rate(load.bytes, ours, 'MB/s')}, broker {rate(load.bytes, peer, 'MB/s')}"
    name = f"{group.upper()}, ConsumerPerformance from the mount over from a broker"
    return [
        speed(name, ours, peer, wanted=0.7, note=note),
        at_most(f"{group.upper()}, peak memory of the mount", peak, "bytes", _CACHE_BYTES + _PROCESS_BYTES),
    ]


def _fetch_time(bootstrap: str, load: Load) -> Lap:
    """The time that the tool itself states: without the start of its JVM, and without joining its group."""
    return Lap(seconds=read_with_consumer_performance(bootstrap, load), cpu_seconds=0.0)


def measure_first(*, rows: int) -> list[Figure]:
    """From the start of the command to the first record, of an archive whose catalog has this many rows."""
    with tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as name:
        folder = Path(name) / "archive"
        write_archive(str(folder), partitions=min(MANY_PARTITIONS, rows), segments=rows)
        with mount_process(folder) as mounted:
            ready_s = time.monotonic() - mounted.began
            consumer = KafkaConsumer(bootstrap_servers=mounted.bootstrap)
            try:
                place = TopicPartition("topic-00042", 0)
                consumer.assign([place])
                consumer.beginning_offsets([place])
                answered_s = time.monotonic() - mounted.began
            finally:
                consumer.close()
            peak = peak_bytes(mounted.pid)
    return [
        at_most(f"ready, {rows:,} rows", ready_s, "seconds", _FIRST_RECORD_S),
        at_most(f"first offsets, {rows:,} rows", answered_s, "seconds", _FIRST_RECORD_S),
        at_most(f"peak memory, {rows:,} rows", peak, "bytes", None),
    ]
