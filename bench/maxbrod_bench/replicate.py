"""Replication: a backlog beside a backup and a restore of it and beside MirrorMaker 2; latency, idle intervals, memory.

Except beside MirrorMaker, source and destination are one cluster, and mirrors have a prefix: the brokers work for both
sides.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from kafka import KafkaProducer

from maxbrod.backup.run import Backup
from maxbrod.config import Config, KafkaConfig
from maxbrod.errors import UnavailableError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import Offsets, State
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.jars import java_command, mirror_maker_jars
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod_bench.race import (
    Figure,
    Lap,
    ReplicateGroup,
    at_most,
    cpu_seconds,
    cpu_seconds_of,
    peaks_below,
    race_laps,
    require,
    speed,
    time_lap,
)
from maxbrod_bench.stage import Load, Stage, open_sandbox, write_load

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator


_RECORDS: Final = 4_000_000
_BATCH_BYTES: Final = 32_768
_SUSTAINED_WANTED: Final = 0.7
_LATENCY_WANTED_S: Final = 5.0
_QUIET_WANTED: Final = 0.05
_QUIET_PARTITIONS: Final = 1000
_QUIET_INTERVALS: Final = 20
_INTERVAL_S: Final = 1.0
_PRODUCE_EVERY_S: Final = 0.1

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


def measure(
    *,
    scale: float,
    rounds: int,
    latency_s: float,
    only: Collection[ReplicateGroup] = (),
    on_stage: Callable[[str], None],
) -> list[Figure]:
    """Every figure of the chosen groups, or of all."""
    chosen = only or list(ReplicateGroup)
    figures: list[Figure] = []
    if ReplicateGroup.LINK in chosen:
        figures += _measure_link(scale, rounds, latency_s, on_stage)
    if ReplicateGroup.MIRROR_MAKER in chosen:
        figures += _measure_mirror_maker(scale, rounds, on_stage)
    if ReplicateGroup.MEMORY in chosen:
        figures += _measure_memory(scale, on_stage)
    return figures


def _measure_link(scale: float, rounds: int, latency_s: float, on_stage: Callable[[str], None]) -> list[Figure]:
    with ExitStack() as undo:
        on_stage("starting a cluster and Spark")
        disk, cluster, session = open_sandbox(undo)
        stage = Stage(cluster=cluster, session=session, disk=disk, scale=scale, rounds=rounds)
        on_stage("catching up a backlog")
        figures = _backlog(stage)
        on_stage("records on their way")
        figures += _latency(stage, latency_s)
        on_stage(f"{_QUIET_PARTITIONS} quiet partitions")
        figures += _quiet(stage)
    return figures


def _backlog(stage: Stage) -> list[Figure]:
    load = write_load(stage.cluster, "backlog", int(_RECORDS * stage.scale), batch_bytes=_BATCH_BYTES, json=True)
    config = stage.config(load.topic, stage.disk / "archive")
    stage.run_backup(config, records=load.records)
    numbers = count()

    def back_up() -> Lap:
        archive = str(stage.disk / f"copy-{next(numbers)}")
        return stage.time(lambda: stage.run_backup(config.model_copy(update={"archive": archive})))

    def restore() -> Lap:
        prefix = f"restored-{next(numbers)}-"
        lap = stage.time(lambda: stage.run_restore(config, load, prefix, exact=True))
        stage.delete(prefix + load.topic)
        return lap

    def take_in(offsets: Offsets) -> Lap:
        prefix = f"{offsets}-{next(numbers)}-"
        lap = stage.time(lambda: _catch_up(stage, _linked(config, load.topic, prefix, offsets)))
        stage.delete(prefix + load.topic)
        return lap

    laps = race_laps(
        {
            "backup": back_up,
            "restore": restore,
            "ingress": partial(take_in, Offsets.EXACT),
            "append": partial(take_in, Offsets.APPEND),
        },
        rounds=stage.rounds,
    )
    slower = max((laps["backup"], laps["restore"]), key=lambda each: each.best)
    rates = ", ".join(f"{name} {load.records / each.best / 1e6:.2f} M records/s" for name, each in laps.items())
    return [
        speed(
            "ingress of a backlog, beside the slower of backup and restore",
            laps["ingress"],
            slower,
            wanted=_SUSTAINED_WANTED,
            note=rates,
        ),
        speed(
            "the same with --offsets append, beside exact",
            laps["append"],
            laps["ingress"],
            note="every record is decoded, gets headers that name its source, and is encoded again",
        ),
    ]


def _catch_up(stage: Stage, config: Config) -> None:
    with Ingress(config, session=stage.session) as ingress:
        report = ingress.run()
    states = {partition.state for partition in report.partitions}
    require(states == {State.IN_STEP}, f"ingress has not caught up: {report.states}")


def _linked(config: Config, topic: str, prefix: str, offsets: Offsets = Offsets.EXACT) -> Config:
    options = replace(
        config.replicate, topics=(topic,), prefix=prefix, link=f"{prefix}link", every=_INTERVAL_S, offsets=str(offsets)
    )
    return config.model_copy(update={"replicate": options})


def _latency(stage: Stage, seconds: float) -> list[Figure]:
    """From the acknowledgement at the source to the log end at the destination, with intervals of a second."""
    topic, prefix = "travelling", "arrived-"
    create_topic(stage.cluster, topic, partitions=1)
    config = _linked(stage.config(topic, stage.disk / "travelling"), topic, prefix)
    where = TopicPartition(topic=prefix + topic, partition=0)
    stop, sent, arrived = threading.Event(), list[float](), list[float]()
    with ExitStack() as undo:
        producer = undo.enter_context(closing(KafkaProducer(**stage.cluster.running_client_properties())))
        client = undo.enter_context(KafkaClient(stage.config(topic, stage.disk).kafka))  # type: ignore[arg-type]
        backup = undo.enter_context(Backup(config, session=stage.session))
        ingress = undo.enter_context(Ingress(config, session=stage.session))
        producer.send(topic, b"first").get()
        backup.run()
        ingress.run()
        begun = log_ends(client, [where])[where]
        threads = [
            threading.Thread(target=_every_second, args=(backup.run, stop)),
            threading.Thread(target=_every_second, args=(ingress.run, stop)),
        ]
        for thread in threads:
            thread.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until or len(arrived) < len(sent):
            if time.monotonic() < until:
                producer.send(topic, b"news").get()
                sent.append(time.monotonic())
            end = log_ends(client, [where])[where]
            arrived += [time.monotonic()] * (end - begun - len(arrived))
            time.sleep(_PRODUCE_EVERY_S)
        stop.set()
        for thread in threads:
            thread.join()
    took = sorted(there - here for here, there in zip(sent, arrived, strict=True))
    note = f"{len(took)} records; median {took[len(took) // 2]:.2f} s, longest {took[-1]:.2f} s"
    slow = took[int(len(took) * 0.99) - 1]
    return [at_most("latency at an interval of 1 s, 99th percentile", slow, "seconds", _LATENCY_WANTED_S, note=note)]


def _every_second(act: Callable[[], object], stop: threading.Event) -> None:
    while not stop.is_set():
        began = time.monotonic()
        act()
        stop.wait(max(0.0, _INTERVAL_S - (time.monotonic() - began)))


def _quiet(stage: Stage) -> list[Figure]:
    topic, prefix = "quiet", "still-"
    create_topic(stage.cluster, topic, partitions=_QUIET_PARTITIONS)
    config = _linked(stage.config(topic, stage.disk / "quiet"), topic, prefix)
    stage.run_backup(config)
    uncounted = frozenset(stage.cluster.pids)
    with Ingress(config, session=stage.session) as ingress:
        ingress.run()
        ingress.run()
        used = cpu_seconds(uncounted)
        for _ in range(_QUIET_INTERVALS):
            ingress.run()
        cost_s = (cpu_seconds(uncounted) - used) / _QUIET_INTERVALS
    return [
        at_most(
            f"an interval of ingress over {_QUIET_PARTITIONS} quiet partitions",
            cost_s,
            "seconds",
            _QUIET_WANTED * _INTERVAL_S,
            note="processor time; at an interval of 1 s this is the share of a core",
        )
    ]


def _measure_mirror_maker(scale: float, rounds: int, on_stage: Callable[[str], None]) -> list[Figure]:
    """Replicate the same backlog from one sandbox cluster to another one, beside MirrorMaker 2.

    MirrorMaker runs as its own program does (org.apache.kafka.connect.mirror.MirrorMaker), with one task for each
    partition and lz4, as the source's batches have it. It is timed for the second half of the records, when its JVM is
    warm as ours is, as if all had been like them. Ours is timed from the start of a backup to the end of an ingress,
    one after the other, on a warm Spark session. Processor time is that of MirrorMaker's process, and that of all of
    our processes with the JVM of Spark; brokers are counted for neither.
    """
    with ExitStack() as undo:
        on_stage("starting two clusters and Spark")
        disk, source, session = open_sandbox(undo)
        target = undo.enter_context(Cluster.start(disk / "target"))
        stage = Stage(cluster=source, session=session, disk=disk, scale=scale, rounds=rounds)
        load = write_load(source, "backlog", int(_RECORDS * scale), batch_bytes=_BATCH_BYTES, json=True)
        on_stage("a backlog beside MirrorMaker 2")
        return _beside_mirror_maker(stage, target, load)


def _measure_memory(scale: float, on_stage: Callable[[str], None]) -> list[Figure]:
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
        at_most(
            f"peak memory of ingress with {_MEMORY_TIMES} times the backlog, beside that with one",
            sum(large.values()) / sum(small.values()),
            "times",
            _MEMORY_WANTED,
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
        there = config.model_copy(update={"kafka": KafkaConfig(bootstrap=target.bootstrap)})

        def egress_and_ingress() -> None:
            stage.run_backup(config)
            _catch_up(stage, _linked(there, load.topic, prefix))

        lap = time_lap(egress_and_ingress, uncounted=uncounted)
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
            end = (home / "log").read_text(errors="replace")[-800:]
            raise UnavailableError(str(error), operation="bench", hint=end) from error
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

        wait_for("the first records of MirrorMaker", arrived, timeout_s=_START_TIMEOUT_S)
        half = load.records // 2
        first = wait_for(
            "half of the records", lambda: reached if (reached := arrived()) >= half else 0, timeout_s=_RUN_TIMEOUT_S
        )
        began, used = time.perf_counter(), cpu_seconds_of(frozenset({process.pid}))
        wait_for("all records", lambda: arrived() >= load.records, timeout_s=_RUN_TIMEOUT_S)
        took, cost = time.perf_counter() - began, cpu_seconds_of(frozenset({process.pid})) - used
    share = load.records / max(load.records - first, 1)
    return Lap(seconds=took * share, cpu_seconds=cost * share)


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
    require(process.returncode == 0, f"ingress of {load.records} records failed", hint=said[-500:])
    jvm = sum(size for name, size in peaks.values() if name == "java")
    return {"Python": sum(size for _, size in peaks.values()) - jvm, "JVM": jvm}
