"""The cost of exact offsets: a filled start, closed holes; and the size of the map if offsets cannot be kept."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.encode import encode
from maxbrod.batch.headers import walk
from maxbrod.bench.figures import Figure
from maxbrod.bench.loads import TOPIC_CONFIG, letters
from maxbrod.config import KafkaConfig
from maxbrod.errors import MaxbrodError
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
from maxbrod.sandbox.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
        Figure(
            name="fill of 10 M leading offsets",
            value=filled,
            unit="seconds",
            wanted=FILL_SECONDS_WANTED,
            at_most=True,
        ),
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
    return Figure(
        name="map of 100 M contiguous records",
        value=len(document),
        unit="bytes",
        wanted=MAP_BYTES_WANTED,
        at_most=True,
    )


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
    if found != expected:
        raise MaxbrodError(f"{expected} offsets were asked for, and {found} are there", object_name=str(where))
