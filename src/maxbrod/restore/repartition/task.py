"""What one task does for a topic that gets another number of partitions: read all of it, append what is its own.

Each target partition belongs to one task. A task reads every source partition in the order of the plan and keeps the
records of its own targets, so that tasks wait for nobody: there is nothing between them that could fill up. Within a
task all targets are fed by one reader, which reads on while little waits to be acknowledged. A target for which nothing
comes says so, and is asked again: it never keeps the others from being emptied.

A task that runs again goes on in each log where the one before it came to, with the same producer id and the sequence
numbers that follow from the log, so that what that one sent and what only arrives now is not there twice.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from maxbrod.batch.decode import decode
from maxbrod.batch.sharing import CONTENT_COLUMNS
from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.kafka.fetch.log_ends import log_ends
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import LATER, Feed
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.producing import produce_all
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.restore.plan.resume import resume_shared
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.restore.repartition.shares import encode_shares
from maxbrod.restore.repartition.source import read_in_order
from maxbrod.restore.repartition.split import FOREIGN, SharedTarget, Splitter
from maxbrod.restore.task import Pace, Restored
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor
    from typing import Any

    import pyarrow as pa

    from maxbrod.kafka.produce.appends import Acknowledged, Append, Later
    from maxbrod.restore.items import SharedItem
    from maxbrod.restore.repartition.source import SourceRecords
    from maxbrod.restore.task import RestoreSettings
    from maxbrod.storage.interface import Storage

WAITING_BYTES_MAX: Final = 16 << 20
"""Of batches that wait to be sent or acknowledged: nothing more is read while there are so many, whosever they are."""
_READERS: Final = 2


def run_shared_task(settings: RestoreSettings, item: SharedItem) -> list[Restored]:
    """Restore some partitions of a repartitioned topic.

    What is wrong with one of their logs ends that one, with the archive or the cluster all that are not done by then.
    """
    work = _Work(settings, item)
    failure = None
    try:
        storage = open_storage(settings.archive_url, settings.storage)
        with KafkaClient(settings.kafka) as client, ThreadPoolExecutor(_READERS) as ahead:
            work.run(client, storage, ahead)
    except MaxbrodError as error:
        failure = error.as_dict()
    return work.outcome(failure)


class Feeding:
    """One reader, many targets: what each is to be appended, pulled as there is room for it."""

    def __init__(
        self, pieces: Iterator[SourceRecords], splitter: Splitter, targets: Sequence[SharedTarget], pace: Pace
    ) -> None:
        self._pieces, self._splitter, self._pace = pieces, splitter, pace
        self._targets = {each.where: each for each in targets}
        self._sent: dict[TopicPartition, deque[int]] = {each.where: deque() for each in targets}
        self._exhausted = False
        self.waiting_bytes = 0
        self.failure: MaxbrodError | None = None
        """Why reading ended early."""

    def appends(self, where: TopicPartition) -> Iterator[Append | Later]:
        target, sent = self._targets[where], self._sent[where]
        while True:
            while not (target.batches or self._over(target) or self.waiting_bytes >= WAITING_BYTES_MAX):
                self._read_on()
            if target.batches:
                batch = target.batches.popleft()
                sent.append(len(batch.data))
                self._pace.wait(len(batch.data))
                yield batch
            elif self._over(target):
                if target.failure is None and self.failure is None:
                    target.finish()
                return
            else:
                # Others have batches that wait, and those do not wait for this one.
                yield LATER

    def acknowledge(self, acknowledged: Acknowledged) -> None:
        self.waiting_bytes -= self._sent[acknowledged.where].popleft()
        self._targets[acknowledged.where].reached = acknowledged.base_offset + acknowledged.count

    def _over(self, target: SharedTarget) -> bool:
        """Whether nothing more comes for it."""
        return self._exhausted or target.failure is not None

    def _read_on(self) -> None:
        try:
            for piece in self._pieces:
                if self._splitter.add(piece):
                    break
            else:
                self._exhausted = True
        except MaxbrodError as error:
            # What comes before it in the order of the plan goes out still.
            self.failure, self._exhausted = error, True
        self.waiting_bytes += self._splitter.flush()


class _Work:
    def __init__(self, settings: RestoreSettings, item: SharedItem) -> None:
        self._settings, self._item = settings, item
        self._topic_id = topic_id_of(item.topic_id)
        self._identity = ProducerIdentity(producer_id=settings.producer_id, epoch=0)
        self._where = {TopicPartition(topic=item.topic, partition=each): base for each, base in item.bases.items()}
        self._targets: list[SharedTarget] = []
        self._refused: dict[TopicPartition, tuple[int, RefusedError]] = {}
        """Logs that cannot be gone on with: where they end, and why."""
        self._feeding: Feeding | None = None

    def run(self, client: KafkaClient, storage: Storage, ahead: Executor) -> None:
        item, settings = self._item, self._settings
        self._begin(client, Deadline.after(settings.patience_s))
        splitter = Splitter(
            self._targets,
            item.partition_count,
            marks={each.partition: each.marks for each in item.sources},
            identity=self._identity,
            batch_bytes_max=item.batch_bytes_max,
        )
        pieces = read_in_order(
            storage, item.sources, item.blocks, since_ms=settings.since_ms, until_ms=settings.until_ms, ahead=ahead
        )
        feeding = self._feeding = Feeding(pieces, splitter, self._targets, Pace(settings.rate_bytes_per_s))
        feeds = [
            Feed(
                where=each.where,
                topic_id=self._topic_id,
                first_offset=each.reached,
                appends=feeding.appends(each.where),
            )
            for each in self._targets
        ]
        for acknowledged in produce_all(client, feeds, patience_s=settings.patience_s):
            feeding.acknowledge(acknowledged)

    def outcome(self, failure: dict[str, Any] | None) -> list[Restored]:
        """`failure` is what ended the task; it is not held against a partition that was done by then."""
        if self._feeding is not None and self._feeding.failure is not None:
            failure = self._feeding.failure.as_dict()
        met = {each.where: each for each in self._targets}
        return [
            _restored(met[where], failure) if where in met else self._untouched(where, failure) for where in self._where
        ]

    def _untouched(self, where: TopicPartition, failure: dict[str, Any] | None) -> Restored:
        base = self._where[where]
        end, refused = self._refused.get(where, (base, None))
        failure = failure if refused is None else refused.as_dict()
        return Restored(where=where, end=end, records=0, map=encode_shares((), base=base), failure=failure)

    def _begin(self, client: KafkaClient, deadline: Deadline) -> None:
        """With the targets as they are: what a task before this one has put there."""
        starts = list_offsets(client, dict.fromkeys(self._where, EARLIEST), deadline=deadline)
        ends = log_ends(client, self._where, deadline=deadline)
        for where in self._where:
            extent = LogExtent(start=min(starts[where].offset, ends[where]), end=ends[where])
            try:
                self._targets.append(self._found(client, where, extent))
            except RefusedError as error:
                self._refused[where] = extent.end, error

    def _found(self, client: KafkaClient, where: TopicPartition, extent: LogExtent) -> SharedTarget:
        base = self._where[where]
        there = resume_shared(str(where), base, extent)
        if not there:
            return SharedTarget(where, base)
        tail = self._last_records(client, where, extent.end)
        if tail is None:
            raise SharedTarget(where, base, there).refused(FOREIGN)
        return SharedTarget(where, base, there, tail)

    def _last_records(self, client: KafkaClient, where: TopicPartition, end: int) -> pa.RecordBatch | None:
        """Of the batch that ends the log; None if no task of this restore has written it."""
        chunks = list(read_range(client, where, end - 1, end, topic_id=self._topic_id, floor=0, read_committed=False))
        for chunk in reversed(chunks):
            if len(chunk.headers):
                last = chunk.headers.take(slice(len(chunk.headers) - 1, None))
                ours = int(last["producer_id"][0]) == self._identity.producer_id and not bool(last.control[0])
                return decode(chunk.data, last, columns=CONTENT_COLUMNS) if ours else None
        return None


def _restored(target: SharedTarget, failure: dict[str, Any] | None) -> Restored:
    shares = target.shares_there()
    if target.failure is not None:
        failure = target.failure.as_dict()
    return Restored(
        where=target.where,
        end=target.reached,
        records=sum(each.count for each in shares),
        map=encode_shares(shares, base=target.base),
        failure=None if target.done else failure,
    )
