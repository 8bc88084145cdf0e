"""One task of a restore: reads slices, makes their batches ready for a broker, and appends them exactly once.

Each target partition belongs to one task, which appends to it in the order of the plan. That order depends on the plan
and the archive alone. So a task that runs again, after a crash of anything, learns from the log end of the target how
far the earlier attempt got, compares the last batch in the log with the one that should be there, and continues with
the next record.

The fence against the earlier attempt is the producer id, which all attempts share, with sequence numbers that follow
from the position of a record. A batch that the earlier attempt sent, and that arrives only now, has the id and the
sequence number of a batch that this attempt sends too. The broker appends the first of the two and answers the second
as a duplicate.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.coalesce import AUTO, JOIN, Batches, Coalescer, same_records
from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import walk
from maxbrod.batch.replay import Replayed, replay
from maxbrod.errors import MaxbrodError, RefusedError, TopicGoneError, UsageError
from maxbrod.kafka.fetch.offsets import log_ends
from maxbrod.kafka.produce.appends import Append, Batch, Feed, Hole, prove_topic, sequence_after, stamped
from maxbrod.kafka.produce.empty_offsets import fill_by_transactions
from maxbrod.kafka.produce.producer import produce_all
from maxbrod.kafka.produce.producer_ids import LogTail, ProducerIdentity, next_sequence, read_tail
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.kafka.wire.deadline import Deadline, Pace
from maxbrod.kafka.wire.kept import client_for
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.reader import read_logs
from maxbrod.model import Codec, TopicPartition, topic_id_of
from maxbrod.restore.items import Restored, RestoreItem, RestoreSettings, transactional_id_of
from maxbrod.restore.plan.mapping import build_map, encode_map
from maxbrod.restore.plan.request import BatchesMode
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

_OPERATION: Final = "restore"
PARTITIONS_AT_ONCE: Final = 64
"""Partitions that are written at the same time. The others wait, and hold no memory."""
_READ_BYTES: Final = 24 << 20
"""Read at once for all partitions together. Three times as much is held: two more requests are under way."""
_REQUEST_BYTES_MIN: Final = 1 << 20
"""However many partitions share the memory: smaller requests are slow."""
_REQUEST_BYTES: Final = 2 << 20
"""Bytes that are read at once exist several times: as it was read, without what is left out, joined and in flight."""
_READERS: Final = 4
_SETTLING_S: Final = 0.2
_OF_TOPIC: Final = (UsageError, TopicGoneError)
"""Rights, or another incarnation: every partition of the topic would be refused, one after the other."""
_RULES: Final = {BatchesMode.AUTO: AUTO, BatchesMode.JOIN: JOIN}
_RUN_BYTES: Final = 8 << 20
"""Batches between two holes that are sent together, where holes are filled by transactions."""


def run_restore_task(settings: RestoreSettings, items: Sequence[RestoreItem]) -> list[Restored]:
    """Restore some partitions. A refusal stops the partition that it names, any other error all unfinished ones.

    Errors are returned, not raised: Spark would run the task again, and the user would not see the message.
    """
    found: dict[TopicPartition, Restored] = {}
    rest = list(items)
    while rest:
        outcomes, refused = _run_restore_task(settings, rest)
        found |= {outcome.where: outcome for outcome in outcomes}
        # Whatever a broker refuses one partition for, the others have nothing to do with: they go on without it.
        stopped = {outcome.where for outcome in outcomes if refused is not None and outcome.failure is refused}
        rest = [item for item in rest if item.where in stopped and not _concerns(refused, item.where)]
    return [found[item.where] for item in items]


def _concerns(refused: MaxbrodError | None, where: TopicPartition) -> bool:
    name = "" if refused is None else refused.object_name or ""
    return name.rpartition("-")[0] == where.topic if isinstance(refused, _OF_TOPIC) else name == str(where)


def _run_restore_task(
    settings: RestoreSettings, items: Sequence[RestoreItem]
) -> tuple[list[Restored], MaxbrodError | None]:
    """The outcomes; and the error that stopped the task, if it is the refusal of one of its partitions."""
    share = _READ_BYTES // max(1, min(len(items), PARTITIONS_AT_ONCE))
    partitions = [
        _Partition(item, settings, request_bytes=max(_REQUEST_BYTES_MIN, min(share, _REQUEST_BYTES))) for item in items
    ]
    failure: MaxbrodError | None = None
    refused: MaxbrodError | None = None
    try:
        storage = open_storage(settings.archive_url, settings.storage)
        with client_for(settings.kafka) as client, ThreadPoolExecutor(_READERS) as ahead:
            for partition in partitions:
                partition.ahead = ahead
            _restore(client, storage, partitions, settings)
    except MaxbrodError as error:
        failure = error
        if not error.retryable and error.object_name in {str(item.where) for item in items}:
            refused = failure
    return [partition.outcome(failure) for partition in partitions], refused


def _restore(
    client: KafkaClient, storage: Storage, partitions: Sequence[_Partition], settings: RestoreSettings
) -> None:
    partitions = _resume(client, partitions, settings)
    pace = Pace(settings.rate_bytes_per_s)
    if settings.markers:
        known = {partition.item.where: partition for partition in partitions}
        feeds = [partition.feed(storage, pace) for partition in partitions]
        # A request whose answer is lost may have been carried out or not. `produce_all` sends its batches again as
        # they were, and the broker answers a batch that it has as a duplicate. Only what is yielded here is in the log
        # for certain; whatever else arrived, the next attempt finds by the log end.
        appended = produce_all(
            client,
            feeds,
            at_once=PARTITIONS_AT_ONCE,
            patience_s=settings.patience_s,
            markers=settings.marker_producer,
        )
        for acknowledged in appended:
            known[acknowledged.where].reached = acknowledged.base_offset + acknowledged.count
        return
    for partition in partitions:
        _restore_without_markers(client, storage, partition, settings, pace)


def _resume(client: KafkaClient, partitions: Sequence[_Partition], settings: RestoreSettings) -> list[_Partition]:
    """Find out what each target log already holds. Returns the partitions that can be written.

    Markers have no sequence numbers, so a broker appends a late one again. Where the log ends with a marker, requests
    of an earlier attempt may still be arriving: wait until the log no longer grows.
    """
    deadline = Deadline.after(settings.patience_s)
    ends = log_ends(client, [partition.item.where for partition in partitions], deadline=deadline)
    growing = partitions
    while growing:
        for grown in growing:
            grown.resume(client, ends[grown.item.where], deadline)
        growing = [grown for grown in growing if grown.ends_with_marker]
        if growing:
            time.sleep(_SETTLING_S)
            before, ends = ends, log_ends(client, [grown.item.where for grown in growing], deadline=deadline)
            growing = [grown for grown in growing if ends[grown.item.where] != before[grown.item.where]]
    return [partition for partition in partitions if partition.sound]


def _restore_without_markers(
    client: KafkaClient, storage: Storage, partition: _Partition, settings: RestoreSettings, pace: Pace
) -> None:
    """Send the batches up to a hole, then fill the hole, and so on: slow, but it needs only a producer's rights."""
    where, run = partition.item.where, list[Batch]()
    end = partition.reached

    def flush() -> None:
        nonlocal end
        if run:
            feed = Feed(where=where, topic_id=partition.topic_id, first_offset=end, appends=list(run))
            for acknowledged in produce_all(client, [feed], patience_s=settings.patience_s):
                end += acknowledged.count
                partition.reached = end
            run.clear()

    for append in partition.appends(storage, pace):
        if isinstance(append, Hole):
            flush()
            end += append.count
            # These requests name the topic, not its id: another topic may have the name by now.
            prove_topic(client, where, partition.topic_id, deadline=Deadline.after(settings.patience_s))
            transactional_id = transactional_id_of(settings.restore_id, str(where))
            fill_by_transactions(
                client, {where: end}, transactional_id=transactional_id, patience_s=settings.patience_s
            )
            partition.reached = end
        else:
            run.append(append)
            if sum(len(batch.data) for batch in run) > _RUN_BYTES:
                flush()
    flush()


class _Partition:
    """One partition while it is restored: how far the source is read, and what the target's log holds."""

    ahead: Executor | None = None

    def __init__(self, item: RestoreItem, settings: RestoreSettings, *, request_bytes: int) -> None:
        self.item = self._all = item
        self._request_bytes = request_bytes
        self.topic_id = topic_id_of(item.topic_id)
        self.next_offset = self.reached = item.base
        """`next_offset`: the target offset of the next batch. `reached`: the end of what is known to be in the log."""
        self.ends_with_marker = False
        self._identity = ProducerIdentity(producer_id=settings.producer_id, epoch=0)
        self._sequence = 0
        """The sequence number of the first record that the target lacks."""
        self._cut = Cut(
            first_offset=item.first_offset,
            end_offset=item.end_offset,
            since_ms=settings.since_ms,
            until_ms=settings.until_ms,
        )
        self._present = 0
        """The number of target offsets from `item.base` on that were in the log before."""
        self._tail: LogTail | None = None
        self._tail_batches: list[NDArray[np.uint8]] = []
        """Batches of this attempt whose records the last batch in the log has."""
        rule = _RULES.get(settings.batches)
        self._coalescer = None if rule is None else Coalescer(rule, batch_bytes_max=item.batch_bytes_max)
        self._source: list[NDArray[np.int64]] = []
        self._count: list[NDArray[np.int64]] = []
        self._failure: MaxbrodError | None = None
        self._read = False
        """True if the source was read to its end."""

    def outcome(self, failure: MaxbrodError | None) -> Restored:
        """`failure` is what stopped the task. It does not count against a partition that was complete by then."""
        counts = np.concatenate([np.zeros(0, np.int64), *self._count])
        source = np.concatenate([np.zeros(0, np.int64), *self._source])
        exact, base = self.item.exact, self.item.base
        target = source if exact else base + np.cumsum(counts) - counts
        counts = np.clip(self.reached - target, 0, counts)  # without what was read and not acknowledged
        there = counts > 0
        made = build_map(source[there], counts[there], target[there], base=base)
        done = self._read and self.reached == self.next_offset
        return Restored(
            where=self.item.where,
            end=self.reached,
            records=int(counts.sum()),
            map=encode_map(made),
            failure=self._failure or (None if done else failure),
        )

    @property
    def sound(self) -> bool:
        return self._failure is None

    def resume(self, client: KafkaClient, end: int, deadline: Deadline) -> None:
        """Start from what the target's log, which ends at `end`, already holds."""
        try:
            self._resume(client, end, deadline)
        except RefusedError as error:
            self._failure = error

    def _resume(self, client: KafkaClient, end: int, deadline: Deadline) -> None:
        self.item, self.reached = self._all, end
        if end < self.item.base:
            raise self._refused(f"the log ends at {end}, before offset {self.item.base}, where the restore starts")
        if self.item.exact and end > self.item.end_offset:
            raise self._foreign()
        if end == self.item.base:
            if self.item.exact and end:
                # Everything before was deleted, but the broker still knows the producer.
                self._sequence = self._next_sequence(client, end, deadline)
            return
        # The log end says how many offsets are there, not whose they are: another producer may have appended as many.
        # If the last batch is the one that belongs at this offset, nobody else has written: any other record would
        # have shifted it. `_already_written` compares the two, once the source is read that far.
        self._tail = read_tail(client, self.item.where, end, topic_id=self.topic_id)
        self.ends_with_marker = self._tail is not None and self._tail.control
        self._sequence = self._next_sequence(client, end, deadline)
        if self.item.exact:
            self._skip_restored(end)
        self._present = end - self.item.base
        alien = self._tail is not None and not self._tail.control and not self._is_lost(self._tail)
        if not self._present and alien and not self.item.adopted:
            raise self._foreign()  # a record at an offset where the archive has none

    def _is_lost(self, tail: LogTail) -> bool:
        """True if an earlier attempt restored this batch before the archive lost it: only this restore has the id."""
        return self.item.exact and self.item.lossy and tail.producer_id == self._identity.producer_id

    def _next_sequence(self, client: KafkaClient, end: int, deadline: Deadline) -> int:
        """Appended records fill every offset, so their number is the sequence number. Exact logs also hold markers."""
        if not self.item.exact:
            return sequence_after(0, end - self.item.base)
        if self._tail is not None and not self._tail.control and self._is_own(self._tail):
            return self._tail.next_sequence
        return next_sequence(client, self.item.where, self._identity.producer_id, deadline=deadline)

    def _skip_restored(self, end: int) -> None:
        """With exact offsets, read again only the slice that holds the last record in the log, to compare it."""
        slices = tuple(part for part in self.item.slices if part.end_offset >= end)
        if not slices and self._cut.until_ms is not None:
            return  # where the log must end follows only from reading everything that the time limit keeps
        first = max(self.item.first_offset, min(slices[0].base_offset if slices else end, end))
        self.item = replace(self.item, base=first, first_offset=first, slices=slices)
        self._cut = replace(self._cut, first_offset=first)
        self.next_offset = first

    def feed(self, storage: Storage, pace: Pace) -> Feed:
        return Feed(
            where=self.item.where,
            topic_id=self.topic_id,
            first_offset=self.reached,
            appends=self.appends(storage, pace),
        )

    def appends(self, storage: Storage, pace: Pace) -> Iterator[Append]:
        """Everything that the target lacks, in order. An error stops this partition, and not the others."""
        try:
            yield from self._appends(storage, pace)
            self._read = True
        except MaxbrodError as error:
            self._failure = error

    def _appends(self, storage: Storage, pace: Pace) -> Iterator[Append]:
        """Batches that the target has are read too: only reading them tells what comes next.

        With exact offsets, every offset without a record is a hole before a batch or at the end. A broker gives each
        batch the next free offset, so a hole must be filled with markers before the batch behind it is sent.
        """
        for batches in self._joined(storage):
            for hole, batch in self._stamped(batches):
                if hole:
                    yield from self._rest_of_hole(hole)
                if not self._already_written(batch):
                    pace.wait(len(batch.data))
                    yield batch
        if self.item.exact and self._cut.until_ms is None and self.next_offset < self.item.end_offset:
            yield from self._rest_of_hole(self.item.end_offset - self.next_offset)
        if self._present > self.next_offset - self.item.base:
            raise self._foreign()

    def _joined(self, storage: Storage) -> Iterator[Batches]:
        """The batches of the source, small ones joined.

        A joined batch holds whole batches of one slice, so the log of an earlier attempt ends where a batch of the
        source ends, also if that attempt joined others. Groups begin there again: a batch that was in flight when the
        earlier attempt died is a batch of this attempt too, and the broker recognizes it.
        """
        position = self.item.first_offset
        for stored in self.item.slices:
            for replayed in self._replayed(storage, stored, position):
                position = replayed.position
                batches = Batches(
                    data=replayed.data,
                    headers=replayed.headers,
                    source_offset=replayed.source_offset,
                    hole=replayed.hole,
                )
                if self._coalescer is None:
                    yield batches
                    continue
                present = self._count_present(batches)
                if present:
                    yield batches.take(slice(present)).copy()
                yield from self._coalescer.add(batches.take(slice(present, None)))
            if self._coalescer is not None:
                yield from self._coalescer.finish()

    def _count_present(self, batches: Batches) -> int:
        """Return the number of batches that the target has. They come first, so none waits in an open group."""
        if self._present <= self.next_offset - self.item.base:
            return 0
        counts = batches.headers["count"].astype(np.int64)
        offsets = self.next_offset + np.cumsum(batches.hole + counts) - counts
        return int((offsets < self.item.base + self._present).sum())

    def _replayed(self, storage: Storage, stored: Slice, position: int) -> Iterator[Replayed]:
        """The batches of a slice as a broker accepts them, with the holes before them.

        Where batches end must depend on the plan and the archive alone, not on how much is read at once: the log of an
        earlier attempt must end where a batch of this one ends.
        """
        item = self.item
        for data, headers in read_logs(storage, stored, request_bytes=self._request_bytes, ahead=self.ahead):
            replayed = replay(
                data,
                headers,
                stored.aborted,
                cut=self._cut,
                exact=item.exact,
                batch_bytes_max=item.batch_bytes_max,
                codec=Codec[stored.codec.upper()],
                position=position,
                provenance=item.provenance,
                schema_ids=item.schema_ids,
                target=str(item.where),
                object_name=storage.name_of(stored.path),
                copied=self._coalescer is None,  # a coalescer copies them
            )
            for oversized in replayed.oversized:
                raise self._refused(
                    f"a batch of {oversized.bytes} bytes at offset {oversized.offset} is too large for the target"
                )
            position = replayed.position
            self._source.append(replayed.ranges.first_offset)
            self._count.append(replayed.ranges.count)
            yield replayed

    def _stamped(self, batches: Batches) -> Iterable[tuple[int, Batch]]:
        """Batches with producer id and sequence numbers, each with the number of offsets without a record before it."""
        counts = batches.headers["count"].astype(np.int64)
        offsets = self.next_offset + np.cumsum(batches.hole + counts) - counts
        # `_sequence` belongs to the first record that the target lacks; those before it count backwards from there.
        present = int(counts[offsets < self.item.base + self._present].sum())
        made = stamped(
            batches.data, batches.headers, self._identity, first_sequence=sequence_after(self._sequence, -present)
        )
        self._sequence = sequence_after(self._sequence, int(counts.sum()) - present)
        named = zip(made, batches.source_offset.tolist(), strict=True)
        return zip(
            batches.hole.tolist(), [Batch(batch.data, batch.count, source) for batch, source in named], strict=True
        )

    def _rest_of_hole(self, count: int) -> Iterator[Hole]:
        """The part of a hole that the target's log does not cover yet."""
        before = self.next_offset - self.item.base
        present = min(max(self._present - before, 0), count)
        # The log ends within this hole, so its last batch must be a marker.
        tail = None if self.item.adopted else self._tail
        if 0 < present == self._present - before and tail is not None and not tail.control:
            raise self._foreign()
        self.next_offset += count
        if present < count:
            yield Hole(count=count - present, source_offset=self.next_offset - count + present)

    def _already_written(self, batch: Batch) -> bool:
        """True if the target has this batch. The records of the last batch in the log are compared."""
        before, count = self.next_offset - self.item.base, batch.count
        self.next_offset += count
        if self._present <= before:
            return False
        if self._present < before + count:
            raise self._refused("the log ends within a batch of this restore: somebody else has written to it")
        if self._tail is None or self.item.adopted:
            return True
        if self._present - before <= self._tail.count:
            self._tail_batches.append(batch.data)
        if self._present == before + count and not self._is_ours(self._tail):
            raise self._refused("the last batch in the log is not the one that this restore wrote")
        return True

    def _is_ours(self, tail: LogTail) -> bool:
        """True if the last batch in the log has the records of the batches that end there."""
        if tail.control or not self._is_own(tail) or not self._tail_batches:
            return False
        data = np.concatenate(self._tail_batches)
        headers = walk(data, check_crc=False)
        zeros = np.zeros(len(headers), np.int64)
        batches = Batches(data=data, headers=headers, source_offset=zeros, hole=zeros)
        return int(headers["count"].sum()) == tail.count and same_records(tail.records, Codec(tail.codec), batches)

    def _is_own(self, tail: LogTail) -> bool:
        return tail.producer_id == self._identity.producer_id

    def _foreign(self) -> RefusedError:
        return self._refused("the log is longer than this restore makes it: somebody else has written to it")

    def _refused(self, message: str) -> RefusedError:
        return RefusedError(
            message,
            operation=_OPERATION,
            object_name=str(self.item.where),
            offset=self.next_offset,
            hint="nothing more was written; restore under another name, or delete the topic and run this again",
        )
