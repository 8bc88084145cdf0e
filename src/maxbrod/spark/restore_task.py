"""What one task of a restore does: read slices, make their batches ready for a broker, append them exactly once.

Each target partition belongs to one task, which appends to it in the order of the plan. A task that runs again finds in
the target's log how far the one before it came: it compares what stands last there with what should, and goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.cuts import Cut
from maxbrod.batch.headers import HEADER_BYTES
from maxbrod.batch.replay import replay
from maxbrod.errors import MaxbrodError, RefusedError
from maxbrod.kafka.appends import Batch, Feed, Hole, sequence_after, stamped
from maxbrod.kafka.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.deadline import Deadline
from maxbrod.kafka.filling import fill_by_transactions
from maxbrod.kafka.log_ends import log_ends
from maxbrod.kafka.produce import produce_all
from maxbrod.kafka.producer_ids import new_producer_id
from maxbrod.kafka.ranges import read_range
from maxbrod.layouts.kafka.reading import read_logs
from maxbrod.model import Codec, TopicPartition, topic_id_of
from maxbrod.planning.restore.mapping import build_map, encode_map
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from maxbrod.batch.replay import Replayed
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.kafka.appends import Append
    from maxbrod.kafka.producer_ids import ProducerIdentity
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.storage.interface import Storage

_OPERATION: Final = "restore"
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSettings:
    """What every task of a restore needs to know besides its items. Holds secrets."""

    restore_id: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of one item: where its log ends now, which records stand where, or why it did not go on."""

    where: TopicPartition
    end: int
    records: int
    map: dict[str, Any]
    failure: dict[str, Any] | None = None


def run_restore_task(settings: RestoreSettings, items: Sequence[RestoreItem]) -> list[Restored]:
    """Restore some partitions. What goes wrong with the target or the archive is told for all of them."""
    readings = [_Reading(item, settings) for item in items]
    failure = None
    try:
        storage = open_storage(settings.archive_url, settings.storage)
        with KafkaClient(settings.kafka) as client:
            _restore(client, storage, readings, settings)
    except MaxbrodError as error:
        failure = error.as_dict()
    return [reading.outcome(failure) for reading in readings]


def _restore(client: KafkaClient, storage: Storage, readings: Sequence[_Reading], settings: RestoreSettings) -> None:
    ends = log_ends(client, [each.item.where for each in readings], deadline=Deadline.after(settings.patience_s))
    for each in readings:
        each.begin(client, ends[each.item.where])
    pace = Pace(settings.rate_bytes_per_s)
    if settings.markers:
        feeds = [each.feed(client, storage, pace) for each in readings]
        for acknowledged in produce_all(client, feeds, patience_s=settings.patience_s):
            del acknowledged
        return
    for each in readings:
        _restore_without_markers(client, storage, each, settings, pace)


def _restore_without_markers(
    client: KafkaClient, storage: Storage, reading: _Reading, settings: RestoreSettings, pace: Pace
) -> None:
    """Batches up to a hole, then the hole, and so on: slow, but it needs no rights beyond those of a producer."""
    where, run = reading.item.where, list[Batch]()
    end = reading.next_offset

    def flush() -> None:
        nonlocal end
        if run:
            feed = Feed(where=where, topic_id=reading.topic_id, first_offset=end, appends=list(run))
            end += sum(
                acknowledged.count for acknowledged in produce_all(client, [feed], patience_s=settings.patience_s)
            )
            run.clear()

    for append in reading.appends(client, storage, pace):
        if isinstance(append, Hole):
            flush()
            end += append.count
            transactional_id = f"maxbrod-{settings.restore_id}-{where}"
            fill_by_transactions(
                client, {where: end}, transactional_id=transactional_id, patience_s=settings.patience_s
            )
        else:
            run.append(append)
            if sum(len(each.data) for each in run) > 8 << 20:
                flush()
    flush()


class _Reading:
    """One partition under way: where the source is, what was sent, what stands where."""

    def __init__(self, item: RestoreItem, settings: RestoreSettings) -> None:
        self.item = item
        self.topic_id = topic_id_of(item.topic_id)
        self.next_offset = item.base
        self._cut = Cut(
            first_offset=item.first_offset,
            end_offset=item.end_offset,
            since_ms=settings.since_ms,
            until_ms=settings.until_ms,
        )
        self._found = 0
        """How many offsets of the target were there already."""
        self._tail: NDArray[np.uint8] | None = None
        self._source: list[NDArray[np.int64]] = []
        self._count: list[NDArray[np.int64]] = []
        self._records = 0

    def outcome(self, failure: dict[str, Any] | None) -> Restored:
        counts = np.concatenate([np.zeros(0, np.int64), *self._count])
        source = np.concatenate([np.zeros(0, np.int64), *self._source])
        exact, base = self.item.exact, self.item.base
        target = source if exact else base + np.cumsum(counts) - counts
        made = build_map(source, counts, target, base=base)
        return Restored(
            where=self.item.where,
            end=self.next_offset,
            records=self._records,
            map=encode_map(made),
            failure=failure,
        )

    def begin(self, client: KafkaClient, end: int) -> None:
        """From what the target's log has already."""
        if end < self.item.base:
            raise self._refused(f"the log ends at {end}, before the offset {self.item.base} at which it was to begin")
        if self.item.exact and end > self.item.base:
            self._go_near(end)
        self._found = end - self.item.base
        self._tail = self._last_batch(client, end) if self._found else None

    def _go_near(self, end: int) -> None:
        """Where records keep their offsets, only the slice that holds the last one there has to be read again."""
        slices = tuple(each for each in self.item.slices if each.end_offset >= end)
        first = max(self.item.first_offset, min(slices[0].base_offset if slices else end, end))
        self.item = replace(self.item, base=first, first_offset=first, slices=slices)
        self._cut = replace(self._cut, first_offset=first)
        self.next_offset = first

    def feed(self, client: KafkaClient, storage: Storage, pace: Pace) -> Feed:
        return Feed(
            where=self.item.where,
            topic_id=self.topic_id,
            first_offset=self.item.base + self._found,
            appends=self.appends(client, storage, pace),
        )

    def appends(self, client: KafkaClient, storage: Storage, pace: Pace) -> Iterator[Append]:
        """All that the target lacks, in order. What it has is read as well, because only that tells what comes next."""
        identity, sequence = new_producer_id(client), 0
        for replayed in self._replayed(storage):
            for hole, batch, data in self._in_order(replayed, identity, sequence):
                sequence = sequence_after(sequence, batch.count)
                if hole:
                    yield from self._passed_hole(hole)
                if not self._is_there(batch.count, data):
                    pace.wait(len(batch.data))
                    yield batch
        if self.item.exact and self._cut.until_ms is None and self.next_offset < self.item.end_offset:
            yield from self._passed_hole(self.item.end_offset - self.next_offset)
        if self._found > self.next_offset - self.item.base:
            raise self._refused("the log has more than this restore puts there: somebody else has written to it")

    def _replayed(self, storage: Storage) -> Iterator[Replayed]:
        item = self.item
        position = item.first_offset
        for stored in item.slices:
            for data, headers in read_logs(storage, stored):
                replayed = replay(
                    data,
                    headers,
                    stored.aborted,
                    cut=self._cut,
                    exact=item.exact,
                    batch_bytes_max=item.batch_bytes_max,
                    codec=Codec[stored.codec.upper()],
                    position=position,
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

    def _in_order(
        self, replayed: Replayed, identity: ProducerIdentity, sequence: int
    ) -> Iterable[tuple[int, Batch, NDArray[np.uint8]]]:
        batches = stamped(replayed.data, replayed.headers, identity, first_sequence=sequence)
        return zip(replayed.hole.tolist(), batches, (each.data[HEADER_BYTES:] for each in batches), strict=True)

    def _passed_hole(self, count: int) -> Iterator[Hole]:
        """The part of a hole that the target has not passed yet."""
        there = min(max(self._found - (self.next_offset - self.item.base), 0), count)
        self.next_offset += count
        if there < count:
            yield Hole(count=count - there, source_offset=self.next_offset - count + there)

    def _is_there(self, count: int, records: NDArray[np.uint8]) -> bool:
        """Whether a batch stands in the target already. The last of those is compared, byte for byte."""
        before = self.next_offset - self.item.base
        self.next_offset += count
        self._records += count
        if self._found <= before:
            return False
        if self._found < before + count:
            raise self._refused("the log ends within a batch of this restore: somebody else has written to it")
        if self._found == before + count and self._tail is not None and not np.array_equal(self._tail, records):
            raise self._refused("what stands last in the log is not what this restore put there")
        return True

    def _last_batch(self, client: KafkaClient, end: int) -> NDArray[np.uint8] | None:
        """The records of the batch that ends the log, if it is one with records."""
        where = self.item.where
        chunks = list(read_range(client, where, end - 1, end, topic_id=self.topic_id, floor=0, read_committed=False))
        for chunk in reversed(chunks):
            if len(chunk.headers):
                if bool(chunk.headers.control[-1]):
                    return None
                start = int(chunk.headers.position[-1]) + HEADER_BYTES
                return chunk.data[start : int(chunk.headers.position[-1] + chunk.headers.size[-1])].copy()
        return None

    def _refused(self, message: str) -> RefusedError:
        return RefusedError(
            message,
            operation=_OPERATION,
            object_name=str(self.item.where),
            offset=self.next_offset,
            hint="nothing was changed since; restore under another name, or delete the topic and begin anew",
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
