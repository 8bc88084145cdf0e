"""What one task of a restore does: read slices, make their batches ready for a broker, append them exactly once.

Each target partition belongs to one task, which appends to it in the order of the plan. A task that runs again finds in
the target's log how far the one before it came: it compares what stands last there with what should, and goes on with
the same producer id and the next sequence number, so that what the one before it sent and what only arrives now is not
there twice.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import HEADER_BYTES
from maxbrod.batch.replay import replay
from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.kafka.fetch.log_ends import log_ends
from maxbrod.kafka.fetch.log_tails import next_sequence, read_tail
from maxbrod.kafka.produce.appends import Batch, Feed, Hole, sequence_after, stamped
from maxbrod.kafka.produce.filling import fill_by_transactions
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.produce.producing import produce_all, prove_topic
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.layouts.kafka.reading import REQUEST_BYTES
from maxbrod.layouts.reading import read_logs
from maxbrod.model import Codec, TopicPartition, topic_id_of
from maxbrod.restore.plan.mapping import build_map, encode_map
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor
    from typing import Any

    from numpy.typing import NDArray

    from maxbrod.batch.provenance import Provenance
    from maxbrod.batch.replay import Replayed
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.kafka.fetch.log_tails import LogTail
    from maxbrod.kafka.produce.appends import Append
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage

_OPERATION: Final = "restore"
_PAUSE_S: Final = 0.05
PARTITIONS_AT_ONCE: Final = 64
"""Appended to side by side: the others wait, and hold nothing meanwhile."""
_READ_BYTES: Final = 64 << 20
"""Read at once, for all partitions together; about three times as much is held while batches are made ready."""
_READERS: Final = 2
_SETTLING_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSettings:
    """What every task of a restore needs to know besides its items. Holds secrets."""

    restore_id: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
    producer_id: int
    """Of this restore and nobody else, whoever carries it out."""
    since_ms: int | None = None
    until_ms: int | None = None
    markers: bool = True
    """Whether this user may write markers into holes; otherwise they are filled by empty transactions."""
    rate_bytes_per_s: float | None = None
    """Of one task."""
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreItem:
    """One target partition, and the slices that it is restored from, in the order of offsets."""

    where: TopicPartition
    topic_id: str
    """Of the target."""
    exact: bool
    base: int
    """The target's offset of the first record of all."""
    first_offset: int
    """The source's offset of it."""
    end_offset: int
    """Source offsets from here on are not restored."""
    batch_bytes_max: int
    slices: tuple[Slice, ...]
    provenance: Provenance | None = None
    """What every record is told to say of its source, in headers."""
    lossy: bool = False
    """Whether slices are left out because they are lost: an earlier attempt may have met them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of one item: where its log ends now, which records stand where, or why it did not go on."""

    where: TopicPartition
    end: int
    records: int
    map: dict[str, Any]
    failure: dict[str, Any] | None = None


def transactional_id_of(restore_id: str, where: str) -> str:
    """By which holes of a partition are closed where markers are not allowed."""
    return f"maxbrod-{restore_id}-{where}"


def run_restore_task(settings: RestoreSettings, items: Sequence[RestoreItem]) -> list[Restored]:
    """Restore some partitions. What goes wrong with the archive ends one of them, with the target all that are left."""
    share = _READ_BYTES // max(1, min(len(items), PARTITIONS_AT_ONCE))
    readings = [_Reading(item, settings, request_bytes=min(share, REQUEST_BYTES)) for item in items]
    failure = None
    try:
        storage = open_storage(settings.archive_url, settings.storage)
        with KafkaClient(settings.kafka) as client, ThreadPoolExecutor(_READERS) as ahead:
            for each in readings:
                each.ahead = ahead
            _restore(client, storage, readings, settings)
    except MaxbrodError as error:
        failure = error.as_dict()
    return [reading.outcome(failure) for reading in readings]


def _restore(client: KafkaClient, storage: Storage, readings: Sequence[_Reading], settings: RestoreSettings) -> None:
    readings = _begun(client, readings, settings)
    pace = Pace(settings.rate_bytes_per_s)
    if settings.markers:
        found = {each.item.where: each for each in readings}
        feeds = [each.feed(storage, pace) for each in readings]
        done = produce_all(client, feeds, at_once=PARTITIONS_AT_ONCE, patience_s=settings.patience_s)
        for acknowledged in done:
            found[acknowledged.where].reached = acknowledged.base_offset + acknowledged.count
        return
    for each in readings:
        _restore_without_markers(client, storage, each, settings, pace)


def _begun(client: KafkaClient, readings: Sequence[_Reading], settings: RestoreSettings) -> list[_Reading]:
    """Those that can go on. Markers have no sequence numbers, so those that still come must be waited for."""
    deadline = Deadline.after(settings.patience_s)
    ends = log_ends(client, [each.item.where for each in readings], deadline=deadline)
    growing = readings
    while growing:
        for each in growing:
            each.begin(client, ends[each.item.where], deadline)
        growing = [each for each in growing if each.within_hole]
        if growing:
            time.sleep(_SETTLING_S)
            before, ends = ends, log_ends(client, [each.item.where for each in growing], deadline=deadline)
            growing = [each for each in growing if ends[each.item.where] != before[each.item.where]]
    return [each for each in readings if each.sound]


def _restore_without_markers(
    client: KafkaClient, storage: Storage, reading: _Reading, settings: RestoreSettings, pace: Pace
) -> None:
    """Batches up to a hole, then the hole, and so on: slow, but it needs no rights beyond those of a producer."""
    where, run = reading.item.where, list[Batch]()
    end = reading.reached

    def flush() -> None:
        nonlocal end
        if run:
            feed = Feed(where=where, topic_id=reading.topic_id, first_offset=end, appends=list(run))
            for acknowledged in produce_all(client, [feed], patience_s=settings.patience_s):
                end += acknowledged.count
                reading.reached = end
            run.clear()

    for append in reading.appends(storage, pace):
        if isinstance(append, Hole):
            flush()
            end += append.count
            prove_topic(client, where, reading.topic_id, deadline=Deadline.after(settings.patience_s))
            transactional_id = transactional_id_of(settings.restore_id, str(where))
            fill_by_transactions(
                client, {where: end}, transactional_id=transactional_id, patience_s=settings.patience_s
            )
            reading.reached = end
        else:
            run.append(append)
            if sum(len(each.data) for each in run) > 8 << 20:
                flush()
    flush()


class _Reading:
    """One partition under way: where the source is, what was sent, what stands where."""

    ahead: Executor | None = None

    def __init__(self, item: RestoreItem, settings: RestoreSettings, *, request_bytes: int) -> None:
        self.item = self._all = item
        self._request_bytes = request_bytes
        self.topic_id = topic_id_of(item.topic_id)
        self.next_offset = self.reached = item.base
        self.within_hole = False
        """Whether what stands last in the log is a marker."""
        self._identity = ProducerIdentity(producer_id=settings.producer_id, epoch=0)
        self._sequence = 0
        """Of the first record that the target lacks."""
        self._cut = Cut(
            first_offset=item.first_offset,
            end_offset=item.end_offset,
            since_ms=settings.since_ms,
            until_ms=settings.until_ms,
        )
        self._found = 0
        """How many offsets of the target were there already."""
        self._tail: LogTail | None = None
        self._source: list[NDArray[np.int64]] = []
        self._count: list[NDArray[np.int64]] = []
        self._failure: MaxbrodError | None = None
        self._read = False
        """Whether all was read that there is to send."""

    def outcome(self, failure: dict[str, Any] | None) -> Restored:
        """`failure` is what ended the task; it is not held against a partition that was done by then."""
        counts = np.concatenate([np.zeros(0, np.int64), *self._count])
        source = np.concatenate([np.zeros(0, np.int64), *self._source])
        exact, base = self.item.exact, self.item.base
        target = source if exact else base + np.cumsum(counts) - counts
        counts = np.clip(self.reached - target, 0, counts)  # what was read and not acknowledged is not there
        there = counts > 0
        made = build_map(source[there], counts[there], target[there], base=base)
        done = self._read and self.reached == self.next_offset
        return Restored(
            where=self.item.where,
            end=self.reached,
            records=int(counts.sum()),
            map=encode_map(made),
            failure=self._failure.as_dict() if self._failure else None if done else failure,
        )

    @property
    def sound(self) -> bool:
        return self._failure is None

    def begin(self, client: KafkaClient, end: int, deadline: Deadline) -> None:
        """From what the target's log has already."""
        try:
            self._begin(client, end, deadline)
        except RefusedError as error:
            self._failure = error

    def _begin(self, client: KafkaClient, end: int, deadline: Deadline) -> None:
        self.item, self.reached = self._all, end
        if end < self.item.base:
            raise self._refused(f"the log ends at {end}, before the offset {self.item.base} at which it was to begin")
        if self.item.exact and end > self.item.end_offset:
            raise self._foreign()
        if end == self.item.base:
            return
        self._tail = read_tail(client, self.item.where, end, topic_id=self.topic_id)
        self.within_hole = self._tail is not None and self._tail.control
        self._sequence = self._next_sequence(client, end, deadline)
        if self.item.exact:
            self._go_near(end)
        self._found = end - self.item.base
        if not self._found and self._tail is not None and not self._tail.control and not self._is_lost(self._tail):
            raise self._foreign()  # a record where there is none in the archive

    def _is_lost(self, tail: LogTail) -> bool:
        """Whether an earlier attempt has restored a record that the archive has lost since. Nobody else has its id."""
        return self.item.exact and self.item.lossy and tail.producer_id == self._identity.producer_id

    def _next_sequence(self, client: KafkaClient, end: int, deadline: Deadline) -> int:
        if not self.item.exact:
            return sequence_after(0, end - self.item.base)
        if self._tail is not None and not self._tail.control:
            return self._tail.next_sequence
        return next_sequence(client, self.item.where, self._identity.producer_id, deadline=deadline)

    def _go_near(self, end: int) -> None:
        """Where records keep their offsets, only the slice that holds the last one there has to be read again."""
        slices = tuple(each for each in self.item.slices if each.end_offset >= end)
        if not slices and self._cut.until_ms is not None:
            return  # only all that is kept tells where the log has to end
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
        """All that the target lacks, in order; up to what cannot be read, which does not stop other partitions."""
        try:
            yield from self._appends(storage, pace)
            self._read = True
        except MaxbrodError as error:
            self._failure = error

    def _appends(self, storage: Storage, pace: Pace) -> Iterator[Append]:
        """What the target has is read as well, because only that tells what comes next."""
        for replayed in self._replayed(storage):
            for hole, batch in self._in_order(replayed):
                if hole:
                    yield from self._passed_hole(hole)
                if not self._is_there(batch):
                    pace.wait(len(batch.data))
                    yield batch
        if self.item.exact and self._cut.until_ms is None and self.next_offset < self.item.end_offset:
            yield from self._passed_hole(self.item.end_offset - self.next_offset)
        if self._found > self.next_offset - self.item.base:
            raise self._foreign()

    def _replayed(self, storage: Storage) -> Iterator[Replayed]:
        item = self.item
        position = item.first_offset
        for stored in item.slices:
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
                    object_name=storage.name_of(stored.path),
                )
                for oversized in replayed.oversized:
                    raise self._refused(
                        f"a batch of {oversized.bytes} bytes at offset {oversized.offset} is more than the target takes"
                    )
                position = replayed.position
                self._source.append(replayed.ranges.first_offset)
                self._count.append(replayed.ranges.count)
                yield replayed

    def _in_order(self, replayed: Replayed) -> Iterable[tuple[int, Batch]]:
        counts = replayed.headers["count"].astype(np.int64)
        places = self.next_offset + np.cumsum(replayed.hole + counts) - counts
        there = int(counts[places < self.item.base + self._found].sum())
        batches = stamped(
            replayed.data, replayed.headers, self._identity, first_sequence=sequence_after(self._sequence, -there)
        )
        self._sequence = sequence_after(self._sequence, int(counts.sum()) - there)
        return zip(replayed.hole.tolist(), batches, strict=True)

    def _passed_hole(self, count: int) -> Iterator[Hole]:
        """The part of a hole that the target has not passed yet."""
        before = self.next_offset - self.item.base
        there = min(max(self._found - before, 0), count)
        if 0 < there == self._found - before and self._tail is not None and not self._tail.control:
            raise self._foreign()
        self.next_offset += count
        if there < count:
            yield Hole(count=count - there, source_offset=self.next_offset - count + there)

    def _is_there(self, batch: Batch) -> bool:
        """Whether a batch stands in the target already. The last of those is compared, byte for byte."""
        before, count = self.next_offset - self.item.base, batch.count
        self.next_offset += count
        if self._found <= before:
            return False
        if self._found < before + count:
            raise self._refused("the log ends within a batch of this restore: somebody else has written to it")
        if self._found == before + count and self._tail is not None and not self._is_ours(self._tail, batch):
            raise self._refused("what stands last in the log is not what this restore put there")
        return True

    def _is_ours(self, tail: LogTail, batch: Batch) -> bool:
        ours = not tail.control and tail.producer_id == self._identity.producer_id
        return ours and np.array_equal(tail.records, batch.data[HEADER_BYTES:])

    def _foreign(self) -> RefusedError:
        return self._refused("the log has more than this restore puts there: somebody else has written to it")

    def _refused(self, message: str) -> RefusedError:
        return RefusedError(
            message,
            operation=_OPERATION,
            object_name=str(self.item.where),
            offset=self.next_offset,
            hint="nothing was changed since; restore under another name, or delete the topic and run this again",
        )


class Pace:
    """Lets so many bytes pass in a second."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    def wait(self, size: int) -> None:
        if self._bytes_per_s is None:
            return
        now = time.monotonic()
        if self._free_at > now + _PAUSE_S:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
