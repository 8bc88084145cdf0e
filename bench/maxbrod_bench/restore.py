"""`maxbrod bench restore`: a restore beside Kafka's ProducerPerformance and a bare loop, on one sandbox.

Contenders of a race take turns, each into a new topic, so that what is compared was measured in the same minute. Spark
is warm. What is timed of ours is the whole restore: plan, topics, reading, producing, report.
"""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.archive.archive import open_archive
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.config import Config, KafkaConfig, StorageConfig
from maxbrod.kafka.admin.topics import delete_records
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets, log_end, log_ends
from maxbrod.kafka.produce.appends import Append, Feed, Hole, stamped
from maxbrod.kafka.produce.empty_offsets import fillers
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import build_map, encode_map
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.events import orders
from maxbrod.sandbox.topics import create_topic
from maxbrod_bench.peers import PROCESSES, BareProducer, produce_with_producer_performance
from maxbrod_bench.planning import measure_restore_planning
from maxbrod_bench.race import (
    Figure,
    Lap,
    Laps,
    RestoreGroup,
    at_most,
    cpu_seconds_of,
    peak_bytes_below,
    race_laps,
    require,
    share,
    speed,
)
from maxbrod_bench.stage import PARTITIONS, TOPIC_CONFIG, Load, letters, open_sandbox, worker_memory, write_load
from maxbrod_bench.stage import Stage as SharedStage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from maxbrod.layouts.kafka.format import Slice


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

MAP_RECORDS: Final = 100_000_000
MAP_BYTES_WANTED: Final = 1e6
_BATCH_RECORDS: Final = 60
LEADING_OFFSETS: Final = 10_000_000
FILL_SECONDS_WANTED: Final = 10.0
HOLES: Final = 100_000
HOLES_A_SECOND_WANTED: Final = 10_000
_SINGLE_HOLES: Final = 20_000
_PARTITIONS: Final = 4
_TOPIC: Final = "bench-offsets"
_TIMEOUT_S: Final = 60.0


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
        lap = self.lap("maxbrod", partial(self.run_restore, config, load, prefix))
        self.delete(prefix + load.topic)
        return lap

    def new_topic(self) -> str:
        topic = f"lap-{next(self.numbers)}"
        create_topic(self.cluster, topic, partitions=PARTITIONS, config=TOPIC_CONFIG)
        return topic


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
    return [*_figures("B", stage, laps, _rates(load, laps, "M rec/s"), wanted=5, tuned_wanted=3), alike]


def _race_a(stage: Stage) -> list[Figure]:
    load, config = stage.archive("bench-a", A_RECORDS, batch_bytes=A_BATCH_BYTES, json=False)
    laps, alike = _race(stage, load, config, ("--record-size", str(A_RECORD_BYTES)), "none")
    return [*_figures("A", stage, laps, _rates(load, laps, "MB/s"), wanted=3, tuned_wanted=2), alike]


def _figures(
    data: str, stage: Stage, laps: dict[str, Laps], rates: str, *, wanted: float, tuned_wanted: float
) -> list[Figure]:
    ours, tuned = laps["maxbrod"], " ".join(_TUNED)
    return [
        speed(f"{data} over ProducerPerformance", ours, laps["peer"], wanted=wanted, note=rates),
        speed(f"{data} over ProducerPerformance, tuned", ours, laps["tuned"], wanted=tuned_wanted, note=tuned),
        share(f"{data}, time over a bare loop", ours, laps["bare"], wanted=1.25, note=_limits(stage, laps)),
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
    mine, theirs = load.records / archived[0], float(np.mean(batches))
    alike = Figure(
        name=f"{load.topic}, records a batch, over the peer's",
        value=mine / theirs,
        note=f"{mine:.0f} and {theirs:.0f}; {load.records:,} records, {load.bytes / 1e6:.0f} MB of ours in all",
    )
    return laps, alike


def _slices(archive_url: str) -> dict[int, list[Slice]]:
    rows = decode_rows(open_archive(archive_url, StorageConfig()).catalog.rows())
    found: dict[int, list[Slice]] = {}
    for row in rows:
        if isinstance(row, Segment):
            found.setdefault(row.partition, []).append(slice_of(row))
    return found


def _records_in_a_batch(folder: Path) -> float:
    """As the log of a partition tells, from its beginning."""
    logs = [np.fromfile(path, np.uint8, _LOG_BYTES) for path in sorted(folder.glob("*.log"))[:1]]
    return float(np.concatenate([walk(log, check_crc=False)["count"] for log in logs]).mean())


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


def measure_offsets(*, scale: float) -> list[Figure]:
    """Measure on a new sandbox. A scale below 1 reduces everything but the map."""
    small = min(scale, 1.0)
    with (
        tempfile.TemporaryDirectory(prefix="maxbrod-bench-") as folder,
        Cluster.start(Path(folder) / "cluster") as cluster,
        KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client,
    ):
        create_topic(cluster, _TOPIC, partitions=_PARTITIONS, config=TOPIC_CONFIG)
        filled = _fill_start(client, 0, int(LEADING_OFFSETS * small))
        closed = _close_hole(client, 1, int(HOLES * small))
        single = _close_single_holes(client, max(int(_SINGLE_HOLES * small), _PARTITIONS))
    return [
        map_figure(),
        at_most("fill of 10 M leading offsets", filled, "seconds", FILL_SECONDS_WANTED),
        Figure(
            name="holes closed by markers",
            value=closed,
            unit="per second",
            wanted=HOLES_A_SECOND_WANTED,
            note="one partition, 100,000 offsets",
        ),
        Figure(
            name="single holes between single records",
            value=single,
            unit="per second",
            note="four partitions at once; before and after each hole everything is acknowledged",
        ),
    ]


def map_figure(records: int = MAP_RECORDS) -> Figure:
    """The map of a partition without holes that was appended to other records, batch by batch."""
    source = np.arange(0, records, _BATCH_RECORDS, dtype=np.int64)
    counts = np.minimum(records - source, _BATCH_RECORDS)
    document = json.dumps(encode_map(build_map(source, counts, source + 12_345, base=12_345)))
    return at_most("map of 100 M contiguous records", len(document), "bytes", MAP_BYTES_WANTED)


def _fill_start(client: KafkaClient, partition: int, offsets: int) -> float:
    """The seconds until the log begins at this offset."""
    where = _place(partition)
    began = time.perf_counter()
    _append(client, {where: fillers(offsets, new_producer_id(client))})
    delete_records(client, {where: offsets}, deadline=Deadline.after(_TIMEOUT_S))
    taken = time.perf_counter() - began
    start = list_offsets(client, {where: EARLIEST}, deadline=Deadline.after(_TIMEOUT_S))[where]
    _expect(where, start.offset, offsets)
    return taken


def _close_hole(client: KafkaClient, partition: int, offsets: int) -> float:
    """Offsets a second."""
    where = _place(partition)
    began = time.perf_counter()
    _append(client, {where: iter([Hole(count=offsets, source_offset=0)])})
    taken = time.perf_counter() - began
    _expect(where, log_end(client, where), offsets)
    return offsets / taken


def _close_single_holes(client: KafkaClient, holes: int) -> float:
    """Holes a second, over all partitions."""
    each = holes // _PARTITIONS
    places = [_place(partition) for partition in range(_PARTITIONS)]
    before = log_ends(client, places)
    feeds = {where: iter(_alternating(each, new_producer_id(client))) for where in places}
    began = time.perf_counter()
    _append(client, feeds)
    taken = time.perf_counter() - began
    for where, end in log_ends(client, places).items():
        _expect(where, end - before[where], 2 * each)
    return each * _PARTITIONS / taken


def _alternating(holes: int, identity: ProducerIdentity) -> list[Append]:
    """Appends as archived transactions of one record each have them. A list, because making it is not timed."""
    data = encode(letters(holes, size=100), starts=np.arange(holes))
    batches = stamped(data, walk(data, check_crc=False), identity, first_sequence=0)
    return [each for batch in batches for each in (batch, Hole(count=1, source_offset=batch.source_offset))]


def _append(client: KafkaClient, appends: Mapping[TopicPartition, Iterator[Append]]) -> None:
    ends = log_ends(client, appends)
    topic_id = client.topic(_TOPIC, deadline=Deadline.after(_TIMEOUT_S)).topic_id
    feeds = [
        Feed(where=where, topic_id=topic_id, first_offset=ends[where], appends=each) for where, each in appends.items()
    ]
    for acknowledged in produce_all(client, feeds):
        del acknowledged


def _place(partition: int) -> TopicPartition:
    return TopicPartition(topic=_TOPIC, partition=partition)


def _expect(where: TopicPartition, found: int, expected: int) -> None:
    require(found == expected, f"{expected} offsets were asked for, and {found} are there", object_name=str(where))
