"""Replication beside MirrorMaker 2: the same backlog from one sandbox cluster to another one.

MirrorMaker runs as its own program does (org.apache.kafka.connect.mirror.MirrorMaker), with one task for each
partition and lz4, as the source's batches have it. It is timed for the second half of the records, when its JVM is
warm as ours is, as if all had been like them. Ours is timed from the start of a backup to the end of an ingress, one
after the other, on a warm Spark session. Processor time is that of MirrorMaker's process, and that of all of our
processes with the JVM of Spark; brokers are counted for neither.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from maxbrod.backup.run import Backup
from maxbrod.bench.figures import Figure, speed
from maxbrod.bench.loads import Load, write_load
from maxbrod.bench.processes import cpu_seconds_of, peaks_below
from maxbrod.bench.race import Lap, race_laps, time_lap
from maxbrod.bench.stage import Stage, open_sandbox
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import MaxbrodError, UnavailableError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import State
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.jars import java_command, mirror_maker_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_RECORDS: Final = 4_000_000
_BATCH_BYTES: Final = 32_768
_PER_PROCESSOR_SECOND_WANTED: Final = 2.0
_WALL_WANTED: Final = 1.0
_MEMORY_WANTED: Final = 1.25
_MEMORY_TIMES: Final = 4
_POLL_S: Final = 0.05
_START_TIMEOUT_S: Final = 180.0
_RUN_TIMEOUT_S: Final = 900.0
_MAIN: Final = "org.apache.kafka.connect.mirror.MirrorMaker"
# One broker cannot have three replicas, which is the default of each of these.
_INTERNAL: Final = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage")


def measure(*, scale: float, rounds: int, on_stage: Callable[[str], None]) -> list[Figure]:
    with ExitStack() as undo:
        on_stage("starting two clusters and Spark")
        disk, source, session = open_sandbox(undo)
        target = undo.enter_context(Cluster.start(disk / "target"))
        stage = Stage(cluster=source, session=session, disk=disk, scale=scale, rounds=rounds)
        load = write_load(source, "backlog", int(_RECORDS * scale), batch_bytes=_BATCH_BYTES, json=True)
        on_stage("a backlog beside MirrorMaker 2")
        return _beside_mirror_maker(stage, target, load)


def measure_memory(*, scale: float, on_stage: Callable[[str], None]) -> list[Figure]:
    """The peak memory of a fresh ingress that catches up a backlog, and one of four times the size."""
    peaks: list[dict[str, int]] = []
    with ExitStack() as undo:
        on_stage("starting a cluster and Spark")
        disk, cluster, session = open_sandbox(undo)
        stage = Stage(cluster=cluster, session=session, disk=disk, scale=scale, rounds=1)
        for times in (1, _MEMORY_TIMES):
            topic = f"backlog-{times}"
            on_stage(f"the memory of ingress, {times} times the backlog")
            records = int(_RECORDS * scale * times / _MEMORY_TIMES)
            load = write_load(cluster, topic, records, batch_bytes=_BATCH_BYTES, json=True)
            config = stage.config(topic, disk / topic)
            stage.run_backup(config, records=load.records)
            peaks.append(_peaks_of_ingress(config, topic, load))
    small, large = peaks
    note = "; ".join(f"{name} {small[name] / 1e6:.0f} and {large[name] / 1e6:.0f} MB" for name in small)
    return [
        Figure(
            name=f"peak memory of ingress with {_MEMORY_TIMES} times the backlog, beside that with one",
            value=sum(large.values()) / sum(small.values()),
            wanted=_MEMORY_WANTED,
            at_most=True,
            note=f"{load.bytes / 1e6:.0f} MB of backlog; {note}",
        )
    ]


def _beside_mirror_maker(stage: Stage, target: Cluster, load: Load) -> list[Figure]:
    numbers = count()
    uncounted = frozenset((*stage.cluster.pids, *target.pids))

    def delete(topic: str) -> None:
        with target.admin() as admin:
            admin.delete_topics([topic])

    def mirror_maker() -> Lap:
        alias = f"source{next(numbers)}"
        with _mirror_maker(stage, target, load, alias) as process:
            lap = _time_process(process, target, f"{alias}.{load.topic}", load)
        delete(f"{alias}.{load.topic}")
        return lap

    def ours() -> Lap:
        number = next(numbers)
        prefix = f"mirror-{number}-"
        config = stage.config(load.topic, stage.disk / f"archive-{number}")
        options = replace(config.replicate, topics=(load.topic,), prefix=prefix, link=f"{prefix}link")
        there = config.model_copy(update={"kafka": KafkaConfig(bootstrap=target.bootstrap), "replicate": options})
        lap = time_lap(lambda: _replicate(stage, config, there), uncounted=uncounted)
        delete(prefix + load.topic)
        return lap

    laps = race_laps({"maxbrod": ours, "mirror_maker": mirror_maker}, rounds=stage.rounds)
    ours_laps, peer = laps["maxbrod"], laps["mirror_maker"]
    rates = ", ".join(
        f"{name} {load.records / each.best / 1e6:.2f} M records/s, {each.best_cpu:.1f} processor seconds"
        for name, each in laps.items()
    )
    return [
        Figure(
            name="records per processor second, beside MirrorMaker 2",
            value=peer.best_cpu / ours_laps.best_cpu,
            wanted=_PER_PROCESSOR_SECOND_WANTED,
            ours=ours_laps,
            peer=peer,
            note=f"{load.records:,} records, {load.bytes / 1e6:.0f} MB in {load.partitions} partitions",
        ),
        speed("egress and then ingress, beside MirrorMaker 2", ours_laps, peer, wanted=_WALL_WANTED, note=rates),
    ]


def _replicate(stage: Stage, here: Config, there: Config) -> None:
    with Backup(here, session=stage.session) as backup:
        backup.run()
    with Ingress(there, session=stage.session) as ingress:
        report = ingress.run()
    if any(partition.state is not State.IN_STEP for partition in report.partitions) or not report.partitions:
        raise MaxbrodError(f"ingress has not caught up: {report.states}", operation="bench")


@contextmanager
def _mirror_maker(stage: Stage, target: Cluster, load: Load, alias: str) -> Iterator[subprocess.Popen[bytes]]:
    properties = {
        "clusters": f"{alias},target",
        f"{alias}.bootstrap.servers": stage.cluster.bootstrap,
        "target.bootstrap.servers": target.bootstrap,
        f"{alias}->target.enabled": "true",
        f"{alias}->target.topics": load.topic,
        f"target->{alias}.enabled": "false",
        "tasks.max": str(load.partitions),
        "replication.factor": "1",
        "sync.topic.acls.enabled": "false",
        "target.producer.compression.type": "lz4",
        "config.storage.replication.factor": "1",
        **{f"{each}.replication.factor": "1" for each in _INTERNAL},
    }
    home = stage.disk / alias
    home.mkdir()
    file = home / "mm2.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in properties.items()))
    options = ("-Xms256M", "-Xmx2G", "-server", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")  # as Kafka's script
    with (home / "log").open("wb") as log:
        command = java_command(mirror_maker_jars(), _MAIN, str(file), options=options)
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=home)
        try:
            yield process
        except UnavailableError as error:
            raise UnavailableError(str(error), operation="bench", hint=_end_of(home / "log")) from error
        finally:
            process.kill()
            process.wait()


def _time_process(process: subprocess.Popen[bytes], target: Cluster, topic: str, load: Load) -> Lap:
    """From the moment at which half of the records are there to the last one, as if it had been all of them."""
    places = [TopicPartition(topic=topic, partition=number) for number in range(load.partitions)]
    with KafkaClient(KafkaConfig(bootstrap=target.bootstrap)) as client:

        def arrived() -> int:
            if process.poll() is not None:
                raise UnavailableError("MirrorMaker has ended", operation="bench")
            known = client.metadata([topic]).topics.get(topic)
            ready = known is not None and len(known.partitions) == len(places)
            return sum(log_ends(client, places).values()) if ready else 0

        _wait(lambda: arrived() or None, _START_TIMEOUT_S)
        first = _wait(lambda: reached if (reached := arrived()) >= load.records // 2 else None, _RUN_TIMEOUT_S)
        began, used = time.perf_counter(), cpu_seconds_of(frozenset({process.pid}))
        _wait(lambda: arrived() >= load.records or None, _RUN_TIMEOUT_S)
        took, cost = time.perf_counter() - began, cpu_seconds_of(frozenset({process.pid})) - used
    share = load.records / max(load.records - first, 1)
    return Lap(seconds=took * share, cpu_seconds=cost * share)


def _wait(condition: Callable[[], int | None], timeout_s: float) -> int:
    until = time.monotonic() + timeout_s
    while (value := condition()) is None:
        if time.monotonic() > until:
            raise UnavailableError(f"MirrorMaker has not got there within {timeout_s:g} s", operation="bench")
        time.sleep(_POLL_S)
    return value


def _peaks_of_ingress(config: Config, topic: str, load: Load) -> dict[str, int]:
    """The peaks of the Python processes of an ingress, and of its JVM, in a fresh process."""
    kafka = config.kafka or KafkaConfig(bootstrap="")
    command = [
        *(sys.executable, "-m", "maxbrod", "replicate", "ingress", "--once", "--quiet", "--topic", topic),
        *("--bootstrap", kafka.bootstrap, "--archive", str(config.archive), "--prefix", "mirror.", "--link", topic),
    ]
    peaks: dict[int, tuple[str, int]] = {}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            peaks |= peaks_below(process.pid)
            time.sleep(_POLL_S)
        said = process.stderr.read().decode(errors="replace") if process.stderr else ""
    if process.returncode != 0:
        raise MaxbrodError(f"ingress of {load.records} records failed", operation="bench", hint=said[-500:])
    jvm = sum(size for name, size in peaks.values() if name == "java")
    return {"Python": sum(size for _, size in peaks.values()) - jvm, "JVM": jvm}


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-800:]
