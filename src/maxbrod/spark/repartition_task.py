"""What one task does for a topic that gets another number of partitions: read all of it, append what is its own.

Each target partition belongs to one task. A task reads every source partition in the order of the plan and keeps the
records of its own targets, so that tasks wait for nobody: there is nothing between them that could fill up. Within a
task all targets are fed by one reader, which reads on while little waits to be acknowledged. A target for which nothing
comes says so, and is asked again: it never keeps the others from being emptied.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from maxbrod.batch.decode import decode
from maxbrod.batch.sharing import CONTENT_COLUMNS
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.appends import LATER, Feed
from maxbrod.kafka.client import KafkaClient
from maxbrod.kafka.deadline import Deadline
from maxbrod.kafka.log_ends import log_ends
from maxbrod.kafka.offsets import EARLIEST, list_offsets
from maxbrod.kafka.produce import produce_all
from maxbrod.kafka.producer_ids import new_producer_id
from maxbrod.kafka.ranges import read_range
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.planning.restore.resume import resume_shared
from maxbrod.planning.restore.shares import encode_shares
from maxbrod.planning.restore.targets import LogExtent
from maxbrod.spark.repartition_source import read_in_order
from maxbrod.spark.repartition_split import SharedTarget, Splitter
from maxbrod.spark.restore_task import Pace, Restored
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any
    from uuid import UUID

    import pyarrow as pa

    from maxbrod.kafka.appends import Acknowledged, Append, Later
    from maxbrod.spark.repartition_source import Piece
    from maxbrod.spark.restore_items import SharedItem
    from maxbrod.spark.restore_task import RestoreSettings

WAITING_BYTES_MAX: Final = 16 << 20
"""Of batches that wait to be sent or acknowledged: nothing more is read while there are so many, whosever they are."""


def run_shared_task(settings: RestoreSettings, item: SharedItem) -> list[Restored]:
    """Restore some partitions of a repartitioned topic. What goes wrong is told for all of them."""
    work = _Work(item)
    failure = None
    try:
        with KafkaClient(settings.kafka) as client:
            work.run(client, settings)
    except MaxbrodError as error:
        failure = error.as_dict()
    return work.outcome(failure)


class Feeding:
    """One reader, many targets: what each is to be appended, pulled as there is room for it."""

    def __init__(
        self, pieces: Iterator[Piece], splitter: Splitter, targets: Sequence[SharedTarget], pace: Pace
    ) -> None:
        self._pieces, self._splitter, self._pace = pieces, splitter, pace
        self._targets = {each.where: each for each in targets}
        self._sent: dict[TopicPartition, deque[int]] = {each.where: deque() for each in targets}
        self._exhausted = False
        self.waiting_bytes = 0

    def appends(self, where: TopicPartition) -> Iterator[Append | Later]:
        target, sent = self._targets[where], self._sent[where]
        while True:
            while not (target.batches or self._exhausted or self.waiting_bytes >= WAITING_BYTES_MAX):
                self._read_on()
            if target.batches:
                batch = target.batches.popleft()
                sent.append(len(batch.data))
                self._pace.wait(len(batch.data))
                yield batch
            elif self._exhausted:
                target.finish()
                return
            else:
                # Others have batches that wait, and those do not wait for this one.
                yield LATER

    def acknowledge(self, acknowledged: Acknowledged) -> None:
        self.waiting_bytes -= self._sent[acknowledged.where].popleft()

    def _read_on(self) -> None:
        for piece in self._pieces:
            if self._splitter.add(piece):
                break
        else:
            self._exhausted = True
        self.waiting_bytes += self._splitter.flush()


class _Work:
    def __init__(self, item: SharedItem) -> None:
        self._item = item
        self._where = {TopicPartition(topic=item.topic, partition=each): base for each, base in item.bases.items()}
        self._targets: list[SharedTarget] = []

    def run(self, client: KafkaClient, settings: RestoreSettings) -> None:
        item = self._item
        storage = open_storage(settings.archive_url, settings.storage)
        self._targets = self._found(client, Deadline.after(settings.patience_s))
        splitter = Splitter(
            self._targets,
            item.partition_count,
            marks={each.partition: each.marks for each in item.sources},
            identity=new_producer_id(client),
            batch_bytes_max=item.batch_bytes_max,
        )
        pieces = read_in_order(
            storage, item.sources, item.blocks, since_ms=settings.since_ms, until_ms=settings.until_ms
        )
        feeding = Feeding(pieces, splitter, self._targets, Pace(settings.rate_bytes_per_s))
        feeds = [
            Feed(
                where=each.where,
                topic_id=topic_id_of(item.topic_id),
                first_offset=each.base + each.there,
                appends=feeding.appends(each.where),
            )
            for each in self._targets
        ]
        for acknowledged in produce_all(client, feeds, patience_s=settings.patience_s):
            feeding.acknowledge(acknowledged)

    def outcome(self, failure: dict[str, Any] | None) -> list[Restored]:
        met = {each.where: each for each in self._targets}
        return [
            Restored(
                where=where,
                end=met[where].next_offset if where in met else base,
                records=met[where].passed if where in met else 0,
                map=encode_shares(met[where].shares if where in met else (), base=base),
                failure=failure,
            )
            for where, base in self._where.items()
        ]

    def _found(self, client: KafkaClient, deadline: Deadline) -> list[SharedTarget]:
        """The targets as they are: what a task before this one has put there."""
        starts = list_offsets(client, dict.fromkeys(self._where, EARLIEST), deadline=deadline)
        ends = log_ends(client, self._where, deadline=deadline)
        found = []
        for where, base in self._where.items():
            extent = LogExtent(start=min(starts[where].offset, ends[where]), end=ends[where])
            there = resume_shared(str(where), base, extent)
            tail = _last_records(client, where, extent.end, topic_id_of(self._item.topic_id)) if there else None
            found.append(SharedTarget(where, base, there, tail))
            if there and tail is None:
                raise found[-1].refused("what stands last in the log are no records: somebody else has written to it")
        return found


def _last_records(client: KafkaClient, where: TopicPartition, end: int, topic_id: UUID) -> pa.RecordBatch | None:
    """Of the batch that ends the log; None if it is a marker, which no restore of this kind writes."""
    for chunk in reversed(
        list(read_range(client, where, end - 1, end, topic_id=topic_id, floor=0, read_committed=False))
    ):
        if len(chunk.headers):
            last = chunk.headers.take(slice(len(chunk.headers) - 1, None))
            return None if bool(last.control[0]) else decode(chunk.data, last, columns=CONTENT_COLUMNS)
    return None
