"""A topic shared out among other partitions, without a broker: logs are lists, and acknowledgements come as drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import project
from maxbrod.batch.decode import decode
from maxbrod.batch.headers import walk
from maxbrod.batch.rewrite import CONTENT_COLUMNS, RECORD_COLUMNS
from maxbrod.kafka.produce.appends import LATER, Acknowledged, Batch
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.model import Codec, TopicPartition
from maxbrod.restore.repartition.split import SharedTarget, Splitter
from maxbrod.restore.repartition.task import Feeding, SourceRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Row = tuple[int, bytes | None]
"""Offset and key of a record; its value names its source."""
Came = tuple[int, int]
"""Source partition and offset."""
Choice = tuple[str, int]
"""A partition is asked for its next batch, or acknowledges one."""

BASE = 100
IN_FLIGHT_MAX = 5


def piece(partition: int, rows: Sequence[Row], codec: Codec = Codec.NONE) -> SourceRecords:
    columns: dict[str, list[Any]] = {
        "offset": [offset for offset, _ in rows],
        "timestamp_ms": [offset for offset, _ in rows],
        "key": [key for _, key in rows],
        "value": [b"%d-%d" % (partition, offset) for offset, _ in rows],
        "headers": [[] for _ in rows],
    }
    records = pa.RecordBatch.from_pydict(columns, schema=project(list(RECORD_COLUMNS)))
    return SourceRecords(partition=partition, records=records, codec=codec)


def records_of(came: Sequence[Came], keys: Mapping[Came, bytes | None]) -> pa.RecordBatch:
    """As they stand in a target's log."""
    parts = [piece(each[0], [(each[1], keys[each])]).records.select(CONTENT_COLUMNS) for each in came]
    return pa.concat_batches(parts)


class Logs:
    """The target's partitions, and one run of a task that appends to them."""

    def __init__(
        self,
        count: int,
        there: Mapping[int, pa.RecordBatch | None] | None = None,
        lengths: Mapping[int, int] | None = None,
        *,
        marks: Mapping[int, Sequence[int]] | None = None,
        mine: Iterable[int] | None = None,
        batch_bytes_max: int = 1_000_000,
    ) -> None:
        """`there` are the last records of each partition, `lengths` how many it has."""
        self.targets = [
            SharedTarget(
                TopicPartition(topic="t", partition=each), BASE, (lengths or {}).get(each, 0), (there or {}).get(each)
            )
            for each in (range(count) if mine is None else mine)
        ]
        self._splitter = Splitter(
            self.targets,
            count,
            marks=marks or {},
            identity=ProducerIdentity(producer_id=1, epoch=0),
            batch_bytes_max=batch_bytes_max,
        )
        self.appended: dict[int, list[Came]] = {each.where.partition: [] for each in self.targets}
        self._ends = {each.where: each.reached for each in self.targets}
        self.waiting_most = 0

    def run(self, pieces: Iterable[SourceRecords], choose: Callable[[list[Choice]], int] = lambda _: 0) -> None:
        """`choose` says what happens next, of all that may."""
        feeding = Feeding(iter(pieces), self._splitter, self.targets, Pace(None))
        feeds = {each.where: feeding.appends(each.where) for each in self.targets}
        flying: dict[TopicPartition, list[Batch]] = {where: [] for where in feeds}
        while feeds or any(flying.values()):
            hungry = [where for where in feeds if len(flying[where]) < IN_FLIGHT_MAX]
            answers = [where for where, batches in flying.items() if batches]
            choices = [("pull", each.partition) for each in hungry] + [("ack", each.partition) for each in answers]
            place = choose(choices)
            self.waiting_most = max(self.waiting_most, feeding.waiting_bytes)
            if place >= len(hungry):
                where = answers[place - len(hungry)]
                batch = flying[where].pop(0)
                feeding.acknowledge(self._land(where, batch))
                continue
            where = hungry[place]
            append = next(feeds[where], None)
            if append is None:
                del feeds[where]
            elif append is LATER:
                assert any(flying.values()) or any(each.batches for each in self.targets), "a deadlock"
            else:
                assert isinstance(append, Batch)
                flying[where].append(append)
        for failure in (feeding.failure, *(each.failure for each in self.targets)):
            if failure is not None:
                raise failure

    def _land(self, where: TopicPartition, batch: Batch) -> Acknowledged:
        """A broker takes no batch but the one whose sequence number comes next, whatever stands in the log."""
        end = self._ends[where]
        assert int(walk(np.asarray(batch.data))["base_sequence"][0]) == end - BASE
        self._ends[where] += batch.count
        values = decode(np.asarray(batch.data), columns=["value"]).column("value").to_pylist()
        for value in values:
            partition, offset = value.decode().split("-")
            self.appended[where.partition].append((int(partition), int(offset)))
        return Acknowledged(where, end, batch.count, batch.source_offset, -1)
