"""`maxbrod bench restore`: a restore beside Kafka's ProducerPerformance and a bare loop, on one sandbox.

Contenders of a race take turns, each into a new topic, so that what is compared was measured in the same minute. Spark
is warm. What is timed of ours is the whole restore: plan, topics, reading, producing, report.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.archive.archive import open_archive
from maxbrod.batch.headers import walk
from maxbrod.bench.bare import PROCESSES, BareProducer
from maxbrod.bench.exact_offsets import measure_offsets
from maxbrod.bench.figures import Figure, share, speed
from maxbrod.bench.groups import RestoreGroup
from maxbrod.bench.loads import PARTITIONS, TOPIC_CONFIG, Load, write_load
from maxbrod.bench.peers import produce_with_producer_performance
from maxbrod.bench.planning import measure_restore_planning
from maxbrod.bench.processes import cpu_seconds_of, peak_bytes_below
from maxbrod.bench.race import Lap, Laps, race_laps
from maxbrod.bench.stage import Stage as SharedStage
from maxbrod.bench.stage import open_sandbox, worker_memory
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.config import Config, StorageConfig
from maxbrod.errors import MaxbrodError
from maxbrod.restore.plan.rename import parse_rename
from maxbrod.restore.plan.request import RestoreRequest
from maxbrod.restore.run import Restore
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.work.session import Session

A_RECORDS: Final = 1_000_000
A_RECORD_BYTES: Final = 1024
B_RECORDS: Final = 4_000_000
A_BATCH_BYTES: Final = 16_384
B_BATCH_BYTES: Final = 32_768
"""Before compression. Java's producer fills `batch.size` (16 KiB) by the estimated compressed size: with its defaults,
ProducerPerformance put 120 of these records into a batch."""
_PAYLOADS: Final = 20_000
_LOG_BYTES: Final = 64 << 20
_TUNED: Final = ("batch.size=131072", "linger.ms=10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(SharedStage):
    """Also warm processes without Spark, and what laps cost the brokers and workers."""

    bare: BareProducer
    broker_cpu_s: dict[str, float] = field(default_factory=dict)
    """What the last lap of each contender cost the brokers."""
    worker_bytes: list[int] = field(default_factory=list)
    """The peak of any Python worker, after each restore."""
    numbers: Iterator[int] = field(default_factory=count)

    def archive(self, topic: str, records: int, *, batch_bytes: int, json: bool) -> tuple[Load, Config]:
        """Write a topic, back it up, and delete it."""
        size = max(int(records * self.scale), PARTITIONS)
        load = write_load(self.cluster, topic, size, batch_bytes=batch_bytes, json=json)
        config = self.config(topic, self.disk / f"archive-{topic}", compression="source")
        self.run_backup(config)
        self.delete(topic)
        return load, config

    def lap(self, name: str, contender: Callable[[], object]) -> Lap:
        """A lap without the processor time of the brokers, which is kept apart."""
        pids = frozenset(self.cluster.pids)
        used = cpu_seconds_of(pids)
        lap = self.time(contender)
        self.broker_cpu_s[name] = cpu_seconds_of(pids) - used
        return lap

    def restore(self, load: Load, config: Config) -> Lap:
        prefix = f"lap-{next(self.numbers)}-"
        lap = self.lap("maxbrod", partial(_restore, config, self.session, load, prefix))
        self.delete(prefix + load.topic)
        return lap

    def new_topic(self) -> str:
        topic = f"lap-{next(self.numbers)}"
        create_topic(self.cluster, topic, partitions=PARTITIONS, config=TOPIC_CONFIG)
        return topic

    def delete(self, topic: str) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topics([topic])


def measure(
    *,
    scale: float,
    rounds: int,
    only: Collection[RestoreGroup] = (),
    on_stage: Callable[[str], None] = lambda _: None,
) -> list[Figure]:
    """Every figure of the chosen groups, or of all."""
    chosen = frozenset(only or RestoreGroup)
    found: list[Figure] = []
    warm = [group for group in (RestoreGroup.B, RestoreGroup.A) if group in chosen]
    if warm:
        on_stage("starting a cluster and Spark")
        with _stage(scale, rounds) as stage:
            for group in warm:
                on_stage(f"racing over {group}")
                found += _RACES[group](stage)
            found.append(worker_memory(max(stage.worker_bytes)))
    if RestoreGroup.OFFSETS in chosen:
        on_stage("filling and closing holes")
        found += measure_offsets(scale=scale)
    if RestoreGroup.PLANNING in chosen:
        on_stage("planning for 10,000 partitions")
        found += measure_restore_planning()
    return found


@contextmanager
def _stage(scale: float, rounds: int) -> Iterator[Stage]:
    with ExitStack() as undo:
        disk, cluster, session = open_sandbox(undo)
        bare = undo.enter_context(BareProducer(cluster.bootstrap))
        yield Stage(cluster=cluster, session=session, bare=bare, disk=disk, scale=scale, rounds=rounds)


def _race_b(stage: Stage) -> list[Figure]:
    payloads = stage.disk / "payloads"
    payloads.write_bytes(b"\n".join(orders(_PAYLOADS).column("value").to_pylist()))
    load, config = stage.archive("bench-b", B_RECORDS, batch_bytes=B_BATCH_BYTES, json=True)
    laps, alike = _race(stage, load, config, ("--payload-file", str(payloads)), "lz4")
    return [
        speed(
            "B over ProducerPerformance", laps["maxbrod"], laps["peer"], wanted=5, note=_rates(load, laps, "M rec/s")
        ),
        speed("B over ProducerPerformance, tuned", laps["maxbrod"], laps["tuned"], wanted=3, note=" ".join(_TUNED)),
        share("B, time over a bare loop", laps["maxbrod"], laps["bare"], wanted=1.25, note=_limits(stage, laps)),
        alike,
    ]


def _race_a(stage: Stage) -> list[Figure]:
    load, config = stage.archive("bench-a", A_RECORDS, batch_bytes=A_BATCH_BYTES, json=False)
    laps, alike = _race(stage, load, config, ("--record-size", str(A_RECORD_BYTES)), "none")
    return [
        speed("A over ProducerPerformance", laps["maxbrod"], laps["peer"], wanted=3, note=_rates(load, laps, "MB/s")),
        speed("A over ProducerPerformance, tuned", laps["maxbrod"], laps["tuned"], wanted=2, note=" ".join(_TUNED)),
        share("A, time over a bare loop", laps["maxbrod"], laps["bare"], wanted=1.25, note=_limits(stage, laps)),
        alike,
    ]


_RACES: Final[dict[RestoreGroup, Callable[[Stage], list[Figure]]]] = {
    RestoreGroup.B: _race_b,
    RestoreGroup.A: _race_a,
}


def _race(
    stage: Stage, load: Load, config: Config, payloads: Sequence[str], codec: str
) -> tuple[dict[str, Laps], Figure]:
    """The laps of each contender, and how alike their batches were."""
    batches: list[float] = []
    archived: list[int] = []
    slices = _slices(str(config.archive))

    # Spark ends workers after a minute without work, and the peers take longer: new workers load their modules here.
    small = stage.archive(f"{load.topic}-small", 0, batch_bytes=A_BATCH_BYTES, json=True)

    def restore() -> Lap:
        stage.restore(*small)
        lap = stage.restore(load, config)
        stage.worker_bytes.append(peak_bytes_below("pyspark.daemon"))
        return lap

    def peer(name: str, *properties: str) -> Lap:
        topic = stage.new_topic()
        taken: list[float] = []
        produce = partial(
            produce_with_producer_performance,
            stage.cluster.bootstrap,
            topic,
            load.records,
            payloads=payloads,
            properties=(f"compression.type={codec}", *properties),
            processes=PROCESSES,
        )
        lap = stage.lap(name, lambda: taken.append(produce()))
        if not properties:
            batches.append(_records_in_a_batch(stage.cluster.log_dir(1) / f"{topic}-0"))
        stage.delete(topic)
        return Lap(seconds=taken[0], cpu_seconds=lap.cpu_seconds)

    def bare() -> Lap:
        topic = stage.new_topic()
        archived.append(stage.bare.prepare(topic, str(config.archive), slices))
        lap = stage.lap("bare", stage.bare.produce)
        stage.delete(topic)
        return lap

    contenders: dict[str, Callable[[], Lap]] = {
        "maxbrod": restore,
        "peer": partial(peer, "peer"),
        "bare": bare,
        "tuned": partial(peer, "tuned", *_TUNED),
    }
    laps = race_laps(contenders, rounds=stage.rounds)
    return laps, _batch_figure(load, load.records / archived[0], float(np.mean(batches)))


def _slices(archive_url: str) -> dict[int, list[Slice]]:
    rows = decode_rows(open_archive(archive_url, StorageConfig()).catalog.rows())
    found: dict[int, list[Slice]] = {}
    for row in rows:
        if isinstance(row, Segment):
            found.setdefault(row.partition, []).append(slice_of(row))
    return found


def _restore(config: Config, session: Session, load: Load, prefix: str) -> None:
    request = RestoreRequest(topics=(load.topic,), rename=parse_rename(prefix=prefix))
    with Restore(config, request, session=session) as work:
        report = work.run(work.plan())
    if not report.complete or report.records != load.records:
        raise MaxbrodError(f"the restore has {report.records} of {load.records} records", operation="bench")


def _records_in_a_batch(folder: Path) -> float:
    """As the log of a partition tells, from its beginning."""
    logs = [np.fromfile(path, np.uint8, _LOG_BYTES) for path in sorted(folder.glob("*.log"))[:1]]
    return float(np.concatenate([walk(log, check_crc=False)["count"] for log in logs]).mean())


def _batch_figure(load: Load, ours: float, theirs: float) -> Figure:
    return Figure(
        name=f"{load.topic}, records a batch, over the peer's",
        value=ours / theirs,
        note=f"{ours:.0f} and {theirs:.0f}; {load.records:,} records, {load.bytes / 1e6:.0f} MB of ours in all",
    )


def _rates(load: Load, laps: dict[str, Laps], unit: str) -> str:
    amount = load.records / 1e6 if unit == "M rec/s" else load.bytes / 1e6
    names = {"maxbrod": "maxbrod", "peer": "ProducerPerformance", "bare": "bare loop", "tuned": "tuned"}
    return ", ".join(f"{shown} {amount / laps[name].best:.2f}" for name, shown in names.items()) + f" {unit}"


def _limits(stage: Stage, laps: dict[str, Laps]) -> str:
    """Whether the broker is the limit: what the last lap cost it, beside what the contender's best lap cost itself."""
    return "processor time of broker and contender: " + ", ".join(
        f"{name} {stage.broker_cpu_s[name]:.1f} and {laps[name].best_cpu:.1f} s in {laps[name].best:.1f} s"
        for name in ("maxbrod", "bare", "peer")
    )
