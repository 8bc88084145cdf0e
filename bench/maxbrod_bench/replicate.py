"""Replication: a backlog beside a backup and a restore of it and beside MirrorMaker 2; latency, idle intervals, memory.

Except beside MirrorMaker, source and destination are one cluster, and mirrors have a prefix: the brokers work for both
sides.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from typing import Final

from kafka import KafkaProducer

from maxbrod.backup.run import Backup
from maxbrod.config import Config, KafkaConfig
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import Offsets, State
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.topics import create_topic
from maxbrod_bench.mirror_maker import BATCH_BYTES, mirror_maker, time_process
from maxbrod_bench.race import (
    Figure,
    Lap,
    ReplicateGroup,
    at_most,
    cpu_seconds,
    peaks_below,
    require,
    speed,
    time_lap,
)
from maxbrod_bench.replicate_latency import measure_latency
from maxbrod_bench.stage import B_RECORDS, Load, Stage, delete_topic, open_stage

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


def measure(
    *,
    scale: float,
    rounds: int,
    latency_s: float,
    only: Collection[ReplicateGroup] = (),
    on_stage: Callable[[str], None],
) -> list[Figure]:
    """Every figure of the chosen groups, or of all."""
    measures = {
        ReplicateGroup.LINK: partial(_measure_link, scale, rounds, latency_s, on_stage),
        ReplicateGroup.MIRROR_MAKER: partial(_measure_mirror_maker, scale, rounds, on_stage),
        ReplicateGroup.LATENCY: partial(measure_latency, rounds=rounds, seconds=latency_s, on_stage=on_stage),
        ReplicateGroup.MEMORY: partial(_measure_memory, scale, on_stage),
    }
    return [figure for group, measure in measures.items() if group in (only or measures) for figure in measure()]


def _measure_link(scale: float, rounds: int, latency_s: float, on_stage: Callable[[str], None]) -> list[Figure]:
    on_stage("starting a cluster and Spark")
    with open_stage(scale=scale, rounds=rounds) as stage:
        on_stage("catching up a backlog")
        figures = _backlog(stage)
        on_stage("records on their way")
        figures += _latency(stage, latency_s)
        on_stage(f"{_QUIET_PARTITIONS} quiet partitions")
        return [*figures, *_quiet(stage)]


def _backlog(stage: Stage) -> list[Figure]:
    load = stage.write("backlog", B_RECORDS, batch_bytes=BATCH_BYTES, json=True)
    config = stage.config(load.topic, stage.disk / "archive")
    stage.run_backup(config, records=load.records)

    def back_up() -> Lap:
        archive = str(stage.disk / f"copy-{next(stage.numbers)}")
        return stage.time(lambda: stage.run_backup(config.model_copy(update={"archive": archive})))

    def take_in(offsets: Offsets) -> Lap:
        prefix = f"{offsets}-{next(stage.numbers)}-"
        linked = _linked(config, load.topic, prefix, offsets)
        return stage.time(lambda: _catch_up(stage, linked), into=prefix + load.topic)

    laps = stage.race(
        {
            "backup": back_up,
            "restore": partial(stage.time_restore, config, load, exact=True),
            "ingress": partial(take_in, Offsets.EXACT),
            "append": partial(take_in, Offsets.APPEND),
        }
    )
    slower = max((laps["backup"], laps["restore"]), key=lambda measured: measured.best)
    rates = ", ".join(f"{name} {load.records / measured.best / 1e6:.2f} M records/s" for name, measured in laps.items())
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
    on_stage("starting two clusters and Spark")
    with open_stage(scale=scale, rounds=rounds) as stage, Cluster.start(stage.disk / "target") as target:
        load = stage.write("backlog", B_RECORDS, batch_bytes=BATCH_BYTES, json=True)
        on_stage("a backlog beside MirrorMaker 2")
        return _beside_mirror_maker(stage, target, load)


def _measure_memory(scale: float, on_stage: Callable[[str], None]) -> list[Figure]:
    """The peak memory of a fresh ingress that catches up a backlog, and one of four times the size."""
    peaks: list[dict[str, int]] = []
    on_stage("starting a cluster and Spark")
    with open_stage(scale=scale) as stage:
        for times in (1, _MEMORY_TIMES):
            topic = f"backlog-{times}"
            on_stage(f"the memory of ingress, {times} times the backlog")
            load = stage.write(topic, B_RECORDS * times // _MEMORY_TIMES, batch_bytes=BATCH_BYTES, json=True)
            config = stage.config(topic, stage.disk / topic)
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
    uncounted = frozenset((*stage.cluster.pids, *target.pids))

    def theirs() -> Lap:
        alias = f"source{next(stage.numbers)}"
        with mirror_maker(stage.cluster.bootstrap, target, load.topic, alias, load.partitions, stage.disk) as process:
            lap = time_process(process, target, f"{alias}.{load.topic}", load)
        delete_topic(target, f"{alias}.{load.topic}")
        return lap

    def ours() -> Lap:
        number = next(stage.numbers)
        prefix = f"mirror-{number}-"
        config = stage.config(load.topic, stage.disk / f"archive-{number}")
        there = config.model_copy(update={"kafka": KafkaConfig(bootstrap=target.bootstrap)})

        def egress_and_ingress() -> None:
            stage.run_backup(config)
            _catch_up(stage, _linked(there, load.topic, prefix))

        lap = time_lap(egress_and_ingress, uncounted=uncounted)
        delete_topic(target, prefix + load.topic)
        return lap

    laps = stage.race({"maxbrod": ours, "mirror_maker": theirs})
    ours_laps, peer = laps["maxbrod"], laps["mirror_maker"]
    rates = ", ".join(
        f"{name} {load.records / measured.best / 1e6:.2f} M records/s, {measured.best_cpu:.1f} processor seconds"
        for name, measured in laps.items()
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
