"""One task for a repartitioned topic: reads all of it, and appends the records of its own target partitions.

Each target partition belongs to one task. A task reads every source partition in the order of the plan and keeps the
records of its own targets. So no task waits for another, and no queue between tasks can fill up. Within a task one
reader feeds all targets. It reads on while few bytes wait to be acknowledged. A target without batches answers `LATER`
and is asked again, so that it never blocks the others.

A task that runs again continues each log where the earlier attempt left it, with the same producer id and the sequence
numbers that follow from the log. A batch of the earlier attempt that arrives only now is a duplicate for the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_column
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.rewrite import CONTENT_COLUMNS, DecodedRecords, kept_records
from maxbrod.batch.schema_ids import SchemaIdMap, with_mapped_ids
from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError
from maxbrod.kafka.fetch.offsets import EARLIEST, list_offsets, log_ends
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.produce.appends import LATER, Acknowledged, Append, Feed, Later
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline, Pace
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.kafka.reader import REQUEST_BYTES
from maxbrod.layouts.reader import read_logs
from maxbrod.model import Codec, TopicPartition, topic_id_of
from maxbrod.restore.items import Restored, RestoreSettings, SharedItem, SharedSource
from maxbrod.restore.plan.mapping import encode_shares
from maxbrod.restore.plan.targets import LogExtent
from maxbrod.restore.repartition.extents import OPEN_SOURCES_MAX, SourceExtent
from maxbrod.restore.repartition.split import FOREIGN, SharedTarget, Splitter
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

WAITING_BYTES_MAX: Final = 16 << 20
"""Bytes that wait to be sent or acknowledged, for all targets together, above which nothing more is read."""
_READERS: Final = 2


def run_shared_task(settings: RestoreSettings, item: SharedItem) -> list[Restored]:
    """Restore some partitions of a repartitioned topic.

    An error in one of their logs stops that one; an error in the archive or the cluster all that are not complete.
    """
    work = _Work(settings, item)
    failure: MaxbrodError | None = None
    try:
        storage = open_storage(settings.archive_url, settings.storage)
        with KafkaClient(settings.kafka) as client, ThreadPoolExecutor(_READERS) as ahead:
            work.run(client, storage, ahead)
    except MaxbrodError as error:
        failure = error
    return work.outcome(failure)


class Feeding:
    """One reader, many targets: the batches of each, read from the source as there is room for them."""

    def __init__(
        self, records: Iterator[SourceRecords], splitter: Splitter, targets: Sequence[SharedTarget], pace: Pace
    ) -> None:
        self._records, self._splitter, self._pace = records, splitter, pace
        self._targets = {target.where: target for target in targets}
        self._sent: dict[TopicPartition, deque[int]] = {target.where: deque() for target in targets}
        self._exhausted = False
        self.waiting_bytes = 0
        self.failure: MaxbrodError | None = None
        """The reason why reading stopped early."""

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
                # Other targets have batches to send, and they do not wait for this one.
                yield LATER

    def acknowledge(self, acknowledged: Acknowledged) -> None:
        self.waiting_bytes -= self._sent[acknowledged.where].popleft()
        self._targets[acknowledged.where].reached = acknowledged.base_offset + acknowledged.count

    def _over(self, target: SharedTarget) -> bool:
        """True if the target gets no more batches."""
        return self._exhausted or target.failure is not None

    def _read_on(self) -> None:
        try:
            for records in self._records:
                if self._splitter.add(records):
                    break
            else:
                self._exhausted = True
        except MaxbrodError as error:
            # What comes before it in the order of the plan is still sent.
            self.failure, self._exhausted = error, True
        self.waiting_bytes += self._splitter.flush()


class _Work:
    def __init__(self, settings: RestoreSettings, item: SharedItem) -> None:
        self._settings, self._item = settings, item
        self._topic_id = topic_id_of(item.topic_id)
        self._identity = ProducerIdentity(producer_id=settings.producer_id, epoch=0)
        self._where = {TopicPartition(topic=item.topic, partition=number): base for number, base in item.bases.items()}
        self._targets: list[SharedTarget] = []
        self._refused: dict[TopicPartition, tuple[int, RefusedError]] = {}
        """Logs that cannot be resumed: where they end, and why."""
        self._feeding: Feeding | None = None

    def run(self, client: KafkaClient, storage: Storage, ahead: Executor) -> None:
        item, settings = self._item, self._settings
        self._resume(client, Deadline.after(settings.patience_s))
        splitter = Splitter(
            self._targets,
            item.partition_count,
            marks={source.partition: source.marks for source in item.sources},
            identity=self._identity,
            batch_bytes_max=item.batch_bytes_max,
        )
        records = read_in_order(
            storage,
            item.sources,
            item.extents,
            since_ms=settings.since_ms,
            until_ms=settings.until_ms,
            ahead=ahead,
            schema_ids=item.schema_ids,
            topic=item.topic,
        )
        feeding = self._feeding = Feeding(records, splitter, self._targets, Pace(settings.rate_bytes_per_s))
        feeds = [
            Feed(
                where=target.where,
                topic_id=self._topic_id,
                first_offset=target.reached,
                appends=feeding.appends(target.where),
            )
            for target in self._targets
        ]
        for acknowledged in produce_all(client, feeds, patience_s=settings.patience_s):
            feeding.acknowledge(acknowledged)

    def outcome(self, failure: MaxbrodError | None) -> list[Restored]:
        """`failure` is what stopped the task. It does not count against a partition that was complete by then."""
        failure = (None if self._feeding is None else self._feeding.failure) or failure
        met = {target.where: target for target in self._targets}
        return [
            _restored(met[where], failure) if where in met else self._untouched(where, failure) for where in self._where
        ]

    def _untouched(self, where: TopicPartition, failure: MaxbrodError | None) -> Restored:
        base = self._where[where]
        end, refused = self._refused.get(where, (base, None))
        return Restored(where=where, end=end, records=0, map=encode_shares((), base=base), failure=refused or failure)

    def _resume(self, client: KafkaClient, deadline: Deadline) -> None:
        """Find out what the target logs already hold, from an earlier attempt."""
        starts = list_offsets(client, dict.fromkeys(self._where, EARLIEST), deadline=deadline)
        ends = log_ends(client, self._where, deadline=deadline)
        for where in self._where:
            extent = LogExtent(start=min(starts[where].offset, ends[where]), end=ends[where])
            try:
                self._targets.append(self._target(client, where, extent))
            except RefusedError as error:
                self._refused[where] = extent.end, error

    def _target(self, client: KafkaClient, where: TopicPartition, extent: LogExtent) -> SharedTarget:
        base = self._where[where]
        present = records_present(where, base, extent)
        if not present:
            return SharedTarget(where, base)
        tail = self._last_records(client, where, extent.end)
        if tail is None:
            raise SharedTarget(where, base, present).refused(FOREIGN)
        return SharedTarget(where, base, present, tail)

    def _last_records(self, client: KafkaClient, where: TopicPartition, end: int) -> pa.RecordBatch | None:
        """The records of the last batch in the log; None if this restore did not write it."""
        chunks = list(read_range(client, where, end - 1, end, topic_id=self._topic_id, floor=0, read_committed=False))
        for chunk in reversed(chunks):
            if len(chunk.headers):
                last = chunk.headers.take(slice(len(chunk.headers) - 1, None))
                ours = int(last["producer_id"][0]) == self._identity.producer_id and not bool(last.control[0])
                return decode(chunk.data, last, columns=CONTENT_COLUMNS) if ours else None
        return None


def records_present(where: TopicPartition, base: int, extent: LogExtent) -> int:
    """Return the number of records from `base` on. RefusedError: the log is shorter, or its start was deleted."""
    if extent.end < base:
        what = f"the log ends at {extent.end}, before offset {base}, where the restore starts"
        raise SharedTarget(where, base).refused(what)
    if extent.start > base:
        what = f"the log begins at {extent.start}: records that were restored from offset {base} on were deleted"
        raise SharedTarget(where, base).refused(what)
    return extent.end - base


def _restored(target: SharedTarget, failure: MaxbrodError | None) -> Restored:
    shares = target.written_shares()
    return Restored(
        where=target.where,
        end=target.reached,
        records=sum(share.count for share in shares),
        map=encode_shares(shares, base=target.base),
        failure=None if target.done else target.failure or failure,
    )


_OPEN_BYTES: Final = 8 << 20
"""Bytes that all readers together request from the storage at once, and the same again if they read ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecords:
    """Records of one source partition, in the order of offsets."""

    partition: int
    records: pa.RecordBatch
    codec: Codec


def read_in_order(
    storage: Storage,
    sources: Sequence[SharedSource],
    extents: Iterable[SourceExtent],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    ahead: Executor | None = None,
    schema_ids: SchemaIdMap | None = None,
    topic: str = "",
) -> Iterator[SourceRecords]:
    """All requested records, in the same order each time. `ahead` reads on while they are used.

    `schema_ids`: with other schema ids. Keys have them before they are hashed, as those of producers will. Errors about
    that name the `topic`.
    """
    several = len(sources) if len(sources) <= OPEN_SOURCES_MAX else 1
    request_bytes = min(REQUEST_BYTES, _OPEN_BYTES // several)
    readers = {}
    for source in sources:
        cut = Cut(first_offset=source.first_offset, end_offset=source.end_offset, since_ms=since_ms, until_ms=until_ms)
        readers[source.partition] = _SourceReader(storage, source, cut, request_bytes=request_bytes, ahead=ahead)
    for extent in extents:
        for found in readers[extent.partition].read_until(extent.end):
            if schema_ids is None:
                yield found
            else:
                mapped = with_mapped_ids(found.records, schema_ids, where=f"{topic}, partition {found.partition}")
                yield replace(found, records=mapped)


class _SourceReader:
    """Reads one source partition."""

    def __init__(
        self, storage: Storage, source: SharedSource, cut: Cut, *, request_bytes: int, ahead: Executor | None
    ) -> None:
        self._storage, self._partition = storage, source.partition
        self._cut, self._request_bytes, self._ahead = cut, request_bytes, ahead
        self._slices = iter(source.slices)
        self._next = next(self._slices, None)
        self._decoded: Iterator[DecodedRecords] | None = None
        self._held: DecodedRecords | None = None
        self._reached = source.first_offset

    def read_until(self, end: int) -> Iterator[SourceRecords]:
        """The next records, below the offset `end`."""
        while (decoded := self._held or self._more(end)) is not None:
            offsets = number_column(decoded.records.column("offset"))
            count = int(np.searchsorted(offsets, end))
            self._held = None
            if count < len(offsets):
                self._held = DecodedRecords(records=decoded.records.slice(count), codec=decoded.codec)
            if count:
                records = decoded.records.slice(0, count)
                yield SourceRecords(partition=self._partition, records=records, codec=decoded.codec)
            if self._held is not None:
                return

    def _more(self, end: int) -> DecodedRecords | None:
        """The next records. A slice that begins at `end` or later is not opened yet."""
        while True:
            if self._decoded is None:
                if self._next is None or self._next.base_offset >= end:
                    return None
                self._decoded = self._read(self._next)
                self._next = next(self._slices, None)
            decoded = next(self._decoded, None)
            if decoded is not None:
                return decoded
            self._decoded = None

    def _read(self, stored: Slice) -> Iterator[DecodedRecords]:
        name, codec = self._storage.name_of(stored.path), Codec[stored.codec.upper()]
        logs = read_logs(self._storage, stored, request_bytes=self._request_bytes, ahead=self._ahead)
        for data, headers in logs:
            for decoded in kept_records(data, headers, stored.aborted, cut=self._cut, codec=codec, object_name=name):
                self._refuse_repetition(decoded, name)
                yield decoded

    def _refuse_repetition(self, decoded: DecodedRecords, name: str) -> None:
        offsets = number_column(decoded.records.column("offset"))
        if int(offsets[0]) < self._reached:
            raise CorruptDataError(
                f"a record follows one at offset {self._reached - 1}",
                operation="restore",
                object_name=name,
                offset=int(offsets[0]),
                hint="the archive holds these offsets twice, or its slices are out of order; see 'maxbrod check'",
            )
        self._reached = int(offsets[-1]) + 1
