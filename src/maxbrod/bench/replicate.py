"""Replication: a backlog caught up beside a backup and a restore of it, the latency of a record, a quiet interval.

Source and destination are one cluster here, and mirrors have a prefix: the brokers work for both sides.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from kafka import KafkaProducer

from maxbrod.backup.run import Backup
from maxbrod.bench.figures import Figure, speed
from maxbrod.bench.loads import Load, write_load
from maxbrod.bench.processes import cpu_seconds
from maxbrod.bench.race import Lap, race_laps
from maxbrod.bench.stage import Stage, open_sandbox
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import Offsets, State
from maxbrod.restore.plan.rename import parse_rename
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.run import Restore
from maxbrod.sandbox.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from maxbrod.config import Config

_RECORDS: Final = 4_000_000
_BATCH_BYTES: Final = 32_768
_SUSTAINED_WANTED: Final = 0.7
_LATENCY_WANTED_S: Final = 5.0
_QUIET_WANTED: Final = 0.05
_QUIET_PARTITIONS: Final = 1000
_QUIET_INTERVALS: Final = 20
_INTERVAL_S: Final = 1.0
_PRODUCE_EVERY_S: Final = 0.1


def measure(*, scale: float, rounds: int, latency_s: float, on_stage: Callable[[str], None]) -> list[Figure]:
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

    def delete(topic: str) -> None:
        with stage.cluster.admin() as admin:
            admin.delete_topics([topic])

    def back_up() -> Lap:
        archive = str(stage.disk / f"copy-{next(numbers)}")
        return stage.time(lambda: stage.run_backup(config.model_copy(update={"archive": archive})))

    def restore() -> Lap:
        prefix = f"restored-{next(numbers)}-"
        lap = stage.time(lambda: _restore(stage, config, load, prefix))
        delete(prefix + load.topic)
        return lap

    def take_in(offsets: Offsets) -> Lap:
        prefix = f"{offsets}-{next(numbers)}-"
        lap = stage.time(lambda: _catch_up(stage, _linked(config, load.topic, prefix, offsets)))
        delete(prefix + load.topic)
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


def _restore(stage: Stage, config: Config, load: Load, prefix: str) -> None:
    request = RestoreRequest(topics=(load.topic,), rename=parse_rename(prefix=prefix), offsets=OffsetsMode.EXACT)
    with Restore(config, request, session=stage.session) as work:
        if not work.run(work.plan()).complete:
            raise MaxbrodError("the restore is not complete", operation="bench")


def _catch_up(stage: Stage, config: Config) -> None:
    with Ingress(config, session=stage.session) as ingress:
        report = ingress.run()
    if any(partition.state is not State.IN_STEP for partition in report.partitions):
        raise MaxbrodError(f"ingress has not caught up: {report.states}", operation="bench")


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
    return [
        Figure(
            name="latency at an interval of 1 s, 99th percentile",
            value=took[int(len(took) * 0.99) - 1],
            unit="seconds",
            wanted=_LATENCY_WANTED_S,
            at_most=True,
            note=note,
        )
    ]


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
        Figure(
            name=f"an interval of ingress over {_QUIET_PARTITIONS} quiet partitions",
            value=cost_s,
            unit="seconds",
            wanted=_QUIET_WANTED * _INTERVAL_S,
            at_most=True,
            note="processor time; at an interval of 1 s this is the share of a core",
        )
    ]
