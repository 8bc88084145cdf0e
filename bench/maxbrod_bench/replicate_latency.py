"""How long a record takes from one cluster to another, beside MirrorMaker 2: a stream of 1,000 records a second.

Both run as programs of their own, in turns, each with a topic of its own. A record contains the time at which it was
given to the producer, and its number. It has arrived when a consumer of the destination gets it. The producer, the
consumer and the brokers are the same for both.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import Final

from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Place

from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod_bench.mirror_maker import BATCH_BYTES, START_TIMEOUT_S, mirror_maker
from maxbrod_bench.race import Figure, at_most, cpu_seconds_of, peak_bytes, require

_MEDIAN_WANTED_S: Final = 0.25
_SLOWEST_WANTED_S: Final = 1.0
_RATE: Final = 1000
_PARTITIONS: Final = 4
_PADDING: Final = b"x" * 240
_WARM_S: Final = 5.0
_STEP_S: Final = 0.002
_ARRIVAL_TIMEOUT_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """The records that a consumer has got."""

    seconds: dict[int, float] = field(default_factory=dict)
    """By number, how long each was on its way."""
    doubled: int = 0
    disordered: int = 0
    last: dict[int, int] = field(default_factory=dict)
    """The highest number of each partition."""

    def add(self, partition: int, value: bytes) -> None:
        now = time.time()
        sent_at, number = float(value.split()[0]), int(value.split()[1])
        self.doubled += number in self.seconds
        self.disordered += number < self.last.get(partition, -1)
        self.last[partition] = max(number, self.last.get(partition, -1))
        self.seconds.setdefault(number, now - sent_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """One lap of one contender."""

    median_s: float
    slowest_s: float
    """The 99th percentile."""
    cpu_s: float
    """For a second of the stream."""
    memory: dict[str, int]
    doubled: int
    disordered: int


def measure_latency(*, rounds: int, seconds: float, on_stage: Callable[[str], None]) -> list[Figure]:
    on_stage("starting two clusters")
    laps: dict[str, list[Journey]] = {"maxbrod": [], "MirrorMaker": []}
    with (
        tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder,
        Cluster.start(f"{folder}/source") as source,
        Cluster.start(f"{folder}/target") as target,
    ):
        number = count()
        for _ in range(rounds):
            for name, contender in (("maxbrod", _ours), ("MirrorMaker", _theirs)):
                on_stage(f"records on their way by {name}")
                topic = f"stream-{next(number)}"
                create_topic(source, topic, partitions=_PARTITIONS)
                with contender(source, target, topic, Path(folder)) as (there, processes):
                    laps[name].append(_travel(source, target, topic, there, processes, seconds))
    return _figures(laps)


def _figures(laps: dict[str, list[Journey]]) -> list[Figure]:
    ours, peer = laps["maxbrod"], laps["MirrorMaker"]

    def of(values: Callable[[Journey], float], unit: Callable[[float], str]) -> str:
        said = (", ".join(unit(values(lap)) for lap in each) for each in (ours, peer))
        return "rounds: {}; MirrorMaker 2: {}".format(*said)

    def ms(value: float) -> str:
        return f"{value * 1000:.0f} ms"

    def mb(value: float) -> str:
        return f"{value / 1e6:.0f} MB"

    for name, each in laps.items():
        wrong = sum(lap.disordered for lap in each)
        require(not wrong, f"{name} has brought {wrong} records out of order")
    parts = ", ".join(f"{name} {mb(size)}" for name, size in ours[-1].memory.items())
    doubled = "records that came twice: {} and {}".format(*(sum(lap.doubled for lap in each) for each in (ours, peer)))
    return [
        at_most(
            f"latency of {_RATE:,} records/s with --every 0, median",
            median(lap.median_s for lap in ours),
            "seconds",
            _MEDIAN_WANTED_S,
            note=of(lambda lap: lap.median_s, ms),
        ),
        at_most(
            "the same, 99th percentile",
            median(lap.slowest_s for lap in ours),
            "seconds",
            _SLOWEST_WANTED_S,
            note=of(lambda lap: lap.slowest_s, ms),
        ),
        at_most(
            f"processor time for {_RATE:,} records of that stream",
            median(lap.cpu_s for lap in ours),
            "seconds",
            None,
            note=of(lambda lap: lap.cpu_s, ms),
        ),
        at_most(
            "peak memory of egress and ingress together",
            max(sum(lap.memory.values()) for lap in ours),
            "bytes",
            None,
            note=f"{parts}; MirrorMaker 2 {mb(max(sum(lap.memory.values()) for lap in peer))}; {doubled}",
        ),
    ]


@contextmanager
def _ours(
    source: Cluster, target: Cluster, topic: str, folder: Path
) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    archive, prefix = folder / f"archive-{topic}", "mirror."
    program = (sys.executable, "-m", "maxbrod", "replicate")
    shared = ("--archive", str(archive), "--every", "0", "--topic", topic, "--quiet")
    with ExitStack() as undo:
        found = {}
        for name, cluster, more in (
            ("egress", source, ("--roll-age", "0")),
            ("ingress", target, ("--prefix", prefix, "--link", topic)),
        ):
            log = undo.enter_context((folder / f"{name}-{topic}.log").open("wb"))
            command = [*program, name, "--bootstrap", cluster.bootstrap, *shared, *more]
            found[name] = subprocess.Popen(command, stdout=log, stderr=log)
            undo.callback(_end, found[name])
        yield prefix + topic, found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _theirs(
    source: Cluster, target: Cluster, topic: str, folder: Path
) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    alias = f"from-{topic}"
    with mirror_maker(source.bootstrap, target, topic, alias, _PARTITIONS, folder) as process:
        yield f"{alias}.{topic}", {"MirrorMaker": process}


def _travel(
    source: Cluster,
    target: Cluster,
    topic: str,
    there: str,
    processes: dict[str, subprocess.Popen[bytes]],
    seconds: float,
) -> Journey:
    arrivals, over = Arrivals(), threading.Event()
    pids = frozenset(process.pid for process in processes.values())
    properties = {"batch_size": BATCH_BYTES, "linger_ms": 5, **source.running_client_properties()}
    with closing(KafkaProducer(**properties)) as producer:
        sending = _RecordStream(producer, topic)
        sending.send(1)
        consuming = threading.Thread(target=_consume, args=(target, there, arrivals, over))
        consuming.start()
        try:
            wait_for("the first record", lambda: bool(arrivals.seconds), timeout_s=START_TIMEOUT_S)
            sending.run(_WARM_S)
            first, used = sending.number, cpu_seconds_of(pids)
            sending.run(seconds)
            cost = (cpu_seconds_of(pids) - used) / seconds
            wait_for("all records", lambda: len(arrivals.seconds) >= sending.number, timeout_s=_ARRIVAL_TIMEOUT_S)
        finally:
            over.set()
            consuming.join()
    memory = {name: peak_bytes(process.pid) for name, process in processes.items()}
    took = sorted(took for number, took in arrivals.seconds.items() if number >= first)
    return Journey(
        median_s=took[len(took) // 2],
        slowest_s=took[int(len(took) * 0.99)],
        cpu_s=cost,
        memory=memory,
        doubled=arrivals.doubled,
        disordered=arrivals.disordered,
    )


class _RecordStream:
    """Sends numbered records at a steady rate, to each partition in turn."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self.number = 0

    def send(self, records: int) -> None:
        for _ in range(records):
            value = b"%.6f %d %b" % (time.time(), self.number, _PADDING)
            self._producer.send(self._topic, value, partition=self.number % _PARTITIONS)
            self.number += 1

    def run(self, seconds: float) -> None:
        began, first = time.monotonic(), self.number
        while (passed := time.monotonic() - began) < seconds:
            self.send(int(passed * _RATE) - (self.number - first))
            time.sleep(_STEP_S)
        self._producer.flush()


def _consume(target: Cluster, topic: str, arrivals: Arrivals, over: threading.Event) -> None:
    properties = {"auto_offset_reset": "earliest", **target.running_client_properties()}
    with closing(KafkaConsumer(**properties)) as consumer:
        while not over.is_set() and len(consumer.partitions_for_topic(topic) or ()) < _PARTITIONS:
            time.sleep(0.2)
        consumer.assign([Place(topic, number) for number in range(_PARTITIONS)])
        while not over.is_set():
            for place, records in consumer.poll(timeout_ms=100).items():
                for record in records:
                    arrivals.add(place.partition, record.value)
