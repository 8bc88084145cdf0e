"""`maxbrod bench restore`: a restore beside Kafka's ProducerPerformance and a bare loop, on one sandbox.

Contenders of a race take turns, each into a new topic, so that what is compared was measured in the same minute. Spark
is warm. What is timed of ours is the whole restore: plan, topics, reading, producing, report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from maxbrod.archive.archive import open_archive
from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.config import Config, KafkaConfig, StorageConfig
from maxbrod.kafka.admin import delete_records
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets, log_end, log_ends
from maxbrod.kafka.produce.appends import Append, Hole, stamped
from maxbrod.kafka.produce.empty_offsets import fillers
from maxbrod.kafka.produce.producer_ids import ProducerIdentity, new_producer_id
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.mapping import build_map, encode_map
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
    require,
    share,
    speed,
)
from maxbrod_bench.stage import (
    A_RECORDS,
    B_RECORDS,
    PARTITIONS,
    TOPIC_CONFIG,
    Load,
    Stage,
    append_all,
    delete_topic,
    letters,
    open_cluster,
    open_stage,
)

A_RECORD_BYTES: Final = 1024
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
_TOPIC: Final = "bench-offsets"
_TIMEOUT_S: Final = 60.0


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
    warm = [group for group in _RACES if group in chosen]
    if warm:
        on_stage("starting a cluster and Spark")
        with open_stage(scale=scale, rounds=rounds) as stage:
            for group in warm:
                on_stage(f"racing over {group}")
                found += _RACES[group](stage)
            found.append(stage.worker_memory())
    if RestoreGroup.OFFSETS in chosen:
        on_stage("filling and closing holes")
        found += measure_offsets(scale=scale)
    if RestoreGroup.PLANNING in chosen:
        on_stage("planning for 10,000 partitions")
        found += measure_restore_planning()
    return found


def _race_b(stage: Stage) -> list[Figure]:
    payloads = stage.disk / "payloads"
    payloads.write_bytes(b"\n".join(orders(_PAYLOADS).column("value").to_pylist()))
    load, config = _archive(stage, "bench-b", B_RECORDS, batch_bytes=B_BATCH_BYTES, json=True)
    race = _Race(stage, load, config, ("--payload-file", str(payloads)), "lz4")
    return race.figures("B", "M rec/s", load.records, wanted=5, tuned_wanted=3)


def _race_a(stage: Stage) -> list[Figure]:
    load, config = _archive(stage, "bench-a", A_RECORDS, json=False)
    race = _Race(stage, load, config, ("--record-size", str(A_RECORD_BYTES)), "none")
    return race.figures("A", "MB/s", load.bytes, wanted=3, tuned_wanted=2)


_RACES: Final = {RestoreGroup.B: _race_b, RestoreGroup.A: _race_a}


def _archive(
    stage: Stage, topic: str, records: int, *, batch_bytes: int | None = None, json: bool
) -> tuple[Load, Config]:
    """Write a topic, back it up, and delete it."""
    load = stage.write(topic, records, batch_bytes=batch_bytes, json=json)
    config = stage.config(topic, stage.disk / f"archive-{topic}", compression="source")
    stage.run_backup(config)
    delete_topic(stage.cluster, topic)
    return load, config


class _Race:
    """The contenders over one archive, each into a new topic."""

    def __init__(self, stage: Stage, load: Load, config: Config, payloads: Sequence[str], codec: str) -> None:
        self._stage, self._load, self._config, self._payloads, self._codec = stage, load, config, payloads, codec
        self._slices = _slices(str(config.archive))
        # Spark ends workers after a minute without work, and the peers take longer: here new ones load their modules.
        self._small, self._small_config = _archive(stage, f"{load.topic}-small", 0, json=True)
        self._broker_cpu_s: dict[str, float] = {}
        """The processor time that the last lap of each contender cost the brokers."""
        self._archived_batches = 0
        self._peer_batch_records: list[float] = []

    def figures(self, data: str, unit: str, amount: int, *, wanted: float, tuned_wanted: float) -> list[Figure]:
        with BareProducer(self._stage.cluster.bootstrap) as producer:
            laps = self._stage.race(
                {
                    "maxbrod": self._restore,
                    "peer": partial(self._peer, "peer"),
                    "bare": partial(self._bare, producer),
                    "tuned": partial(self._peer, "tuned", *_TUNED),
                }
            )
        ours, load = laps["maxbrod"], self._load
        names = {"maxbrod": "maxbrod", "peer": "ProducerPerformance", "bare": "bare loop", "tuned": "tuned"}
        rates = ", ".join(f"{shown} {amount / 1e6 / laps[name].best:.2f}" for name, shown in names.items())
        mine, theirs = load.records / self._archived_batches, float(np.mean(self._peer_batch_records))
        return [
            speed(f"{data} over ProducerPerformance", ours, laps["peer"], wanted=wanted, note=f"{rates} {unit}"),
            speed(
                f"{data} over ProducerPerformance, tuned",
                ours,
                laps["tuned"],
                wanted=tuned_wanted,
                note=" ".join(_TUNED),
            ),
            share(f"{data}, time over a bare loop", ours, laps["bare"], wanted=1.25, note=self._limits(laps)),
            Figure(
                name=f"{load.topic}, records a batch, over the peer's",
                value=mine / theirs,
                note=f"{mine:.0f} and {theirs:.0f}; {load.records:,} records, {load.bytes / 1e6:.0f} MB of ours in all",
            ),
        ]

    def _restore(self) -> Lap:
        self._stage.time_restore(self._small_config, self._small)
        lap = self._timed("maxbrod", partial(self._stage.time_restore, self._config, self._load))
        self._stage.worker_bytes.append(peak_bytes_below("pyspark.daemon"))
        return lap

    def _peer(self, name: str, *properties: str) -> Lap:
        stage, topic = self._stage, self._new_topic()
        produce = partial(
            produce_with_producer_performance,
            stage.cluster.bootstrap,
            topic,
            self._load.records,
            payloads=self._payloads,
            properties=(f"compression.type={self._codec}", *properties),
            processes=PROCESSES,
        )
        lap = self._timed(name, partial(stage.time, produce))
        if not properties:
            self._peer_batch_records.append(_records_in_a_batch(stage.cluster.log_dir(1) / f"{topic}-0"))
        delete_topic(stage.cluster, topic)
        return lap

    def _bare(self, producer: BareProducer) -> Lap:
        topic = self._new_topic()
        self._archived_batches = producer.prepare(topic, str(self._config.archive), self._slices)
        return self._timed("bare", partial(self._stage.time, producer.produce, into=topic))

    def _new_topic(self) -> str:
        topic = f"lap-{next(self._stage.numbers)}"
        create_topic(self._stage.cluster, topic, partitions=PARTITIONS, config=TOPIC_CONFIG)
        return topic

    def _timed(self, name: str, lap: Callable[[], Lap]) -> Lap:
        pids = frozenset(self._stage.cluster.pids)
        used = cpu_seconds_of(pids)
        done = lap()
        self._broker_cpu_s[name] = cpu_seconds_of(pids) - used
        return done

    def _limits(self, laps: dict[str, Laps]) -> str:
        """A note on the limit: the broker's cost of the last lap, beside the cost of the contender's best lap."""
        return "processor time of broker and contender: " + ", ".join(
            f"{name} {self._broker_cpu_s[name]:.1f} and {laps[name].best_cpu:.1f} s in {laps[name].best:.1f} s"
            for name in ("maxbrod", "bare", "peer")
        )


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


def measure_offsets(*, scale: float) -> list[Figure]:
    """Measure on a new sandbox. A scale below 1 reduces everything but the map."""
    small = min(scale, 1.0)
    with open_cluster() as (cluster, _), KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        create_topic(cluster, _TOPIC, partitions=PARTITIONS, config=TOPIC_CONFIG)
        filled = _fill_start(client, 0, int(LEADING_OFFSETS * small))
        closed = _close_hole(client, 1, int(HOLES * small))
        single = _close_single_holes(client, max(int(_SINGLE_HOLES * small), PARTITIONS))
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


def map_figure() -> Figure:
    """The map of a partition without holes that was appended to other records, batch by batch."""
    source = np.arange(0, MAP_RECORDS, _BATCH_RECORDS, dtype=np.int64)
    counts = np.minimum(MAP_RECORDS - source, _BATCH_RECORDS)
    document = json.dumps(encode_map(build_map(source, counts, source + 12_345, base=12_345)))
    return at_most("map of 100 M contiguous records", len(document), "bytes", MAP_BYTES_WANTED)


def _fill_start(client: KafkaClient, partition: int, offsets: int) -> float:
    """The seconds until the log begins at this offset."""
    where = _place(partition)
    began = time.perf_counter()
    append_all(client, {where: fillers(offsets, new_producer_id(client))})
    delete_records(client, {where: offsets}, deadline=Deadline.after(_TIMEOUT_S))
    taken = time.perf_counter() - began
    start = list_offsets(client, {where: EARLIEST}, deadline=Deadline.after(_TIMEOUT_S))[where]
    _expect(where, start.offset, offsets)
    return taken


def _close_hole(client: KafkaClient, partition: int, offsets: int) -> float:
    """Offsets a second."""
    where = _place(partition)
    began = time.perf_counter()
    append_all(client, {where: iter([Hole(count=offsets, source_offset=0)])})
    taken = time.perf_counter() - began
    _expect(where, log_end(client, where), offsets)
    return offsets / taken


def _close_single_holes(client: KafkaClient, holes: int) -> float:
    """Holes a second, over all partitions."""
    each = holes // PARTITIONS
    places = [_place(partition) for partition in range(PARTITIONS)]
    before = log_ends(client, places)
    feeds = {where: iter(_alternating(each, new_producer_id(client))) for where in places}
    began = time.perf_counter()
    append_all(client, feeds)
    taken = time.perf_counter() - began
    for where, end in log_ends(client, places).items():
        _expect(where, end - before[where], 2 * each)
    return each * PARTITIONS / taken


def _alternating(holes: int, identity: ProducerIdentity) -> list[Append]:
    """Appends as archived transactions of one record each have them. A list, because making it is not timed."""
    data = encode(letters(holes, size=100), starts=np.arange(holes))
    batches = stamped(data, walk(data, check_crc=False), identity, first_sequence=0)
    return [entry for batch in batches for entry in (batch, Hole(count=1, source_offset=batch.source_offset))]


def _place(partition: int) -> TopicPartition:
    return TopicPartition(topic=_TOPIC, partition=partition)


def _expect(where: TopicPartition, found: int, expected: int) -> None:
    require(found == expected, f"{expected} offsets were asked for, and {found} are there", object_name=str(where))
