"""The two tasks that write an archive: records into another tool's layout, and whole batches into our own.

Records come from a cluster or from an archive; batches come from an archive. Nothing counts before the driver has
published or committed it, so a task may run twice, or again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from maxbrod.batch.columns import number_column
from maxbrod.batch.transactions import from_fetch
from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import MaxbrodError, UsageError, naming
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.kafka.wire.deadline import Pace
from maxbrod.layouts.foreign import ForeignSegment, Survey, WriteOptions
from maxbrod.layouts.kafka.described_batches import TimestampScan, look_into
from maxbrod.layouts.kafka.format import Compression, SegmentLimits, Slice
from maxbrod.layouts.kafka.writer import ArchiveWriter, PartitionWriter
from maxbrod.layouts.reader import Skipped, decode_committed, read_logs, read_records
from maxbrod.layouts.registry import NATIVE, layout_of
from maxbrod.model import PartitionId, TopicPartition, topic_id_of
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage

_PACKED_BYTES: Final = 4 << 20
"""Partitions with less than this share objects, as in a backup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """The settings that all tasks of a transfer share. Contains secrets."""

    run_id: str
    layout: str = NATIVE
    options: WriteOptions = field(default_factory=WriteOptions)
    target_url: str
    target: StorageConfig = field(repr=False)
    source_url: str | None = None
    source: StorageConfig | None = field(default=None, repr=False)
    """The archive to read slices from; None if everything comes from a cluster."""
    kafka: KafkaConfig | None = None
    patience_s: float = PATIENCE_S
    rate_bytes_per_s: float | None = None
    """At which one task reads from the cluster."""
    shown: tuple[str, ...] = ()
    """Columns that the expressions of a transformation use, besides those that are written."""
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferItem:
    """Records of one partition with offsets in [start, end): from slices, or from the live log if there are none."""

    where: TopicPartition
    topic_id: str
    start: int
    end: int
    survey: Survey | None = None
    """The part of the partition that a target in another tool's layout has."""
    slices: tuple[Slice, ...] = ()
    asked: int | None = None
    """The end of the target, if the log began after that: the source has deleted the offsets up to `start`."""
    segment_bytes_max: int | None = None
    segment_records_max: int | None = None

    @property
    def id(self) -> PartitionId:
        return PartitionId(topic_id=self.topic_id, partition=self.where.partition)

    def result(self, **values: Any) -> Transferred:  # noqa: ANN401 - fields of the result
        place = {"where": self.where, "topic_id": self.topic_id, "start": self.start, "end": self.end}
        return Transferred(**{**place, **values})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """The result of an item: all of it was written, or nothing."""

    where: TopicPartition
    topic_id: str
    segments: tuple[ForeignSegment, ...] = ()
    """The segments that were written in another tool's layout."""
    slices: tuple[Slice, ...] = ()
    """The slices that were written in our own."""
    records: int = 0
    read: int = 0
    changed: Mapping[str, int] = field(default_factory=dict)
    """Records that went through expressions, and how many of those written have another value, by field."""
    raw_bytes: int = 0
    """Bytes of log read; 0 if the records did not come from a cluster."""
    start: int = 0
    """The start of the log when it was read, if that is after the start of the item."""
    end: int = 0
    """Before the end of the item if retention overtook the reader there."""
    failure: MaxbrodError | None = None


def key_of(either: TransferItem | Transferred) -> tuple[str, int, int]:
    """Return what is the same for an item and its result."""
    return either.topic_id, either.where.partition, either.start


def run_transfer_task(settings: TransferSettings, items: Sequence[TransferItem]) -> list[Transferred]:
    """Write items. An error of one partition is reported and does not affect the others."""
    if settings.layout == NATIVE:
        return run_copy_task(settings, items)
    target = open_storage(settings.target_url, settings.target)
    if settings.kafka is None:
        source = open_source(settings)
        return [_transfer(settings, target, _Records(settings, item, source=source)) for item in items]
    pace = Pace(settings.rate_bytes_per_s)
    with KafkaClient(settings.kafka) as client:
        return [_transfer(settings, target, _Records(settings, item, client=client, pace=pace)) for item in items]


def open_source(settings: TransferSettings) -> Storage:
    """Return the archive that slices are read from."""
    if settings.source_url is None or settings.source is None:
        raise UsageError("the records come from no archive")
    return open_storage(settings.source_url, settings.source)


def _transfer(settings: TransferSettings, target: Storage, records: _Records) -> Transferred:
    item = records.item
    try:
        with naming(str(item.where)):
            layout = layout_of(settings.layout)
            if item.survey is None:
                raise UsageError("nothing says what the target has of the partition")
            options, survey = records.options(settings.options), item.survey
            written = layout.write(target, item.where, records, options, survey=survey)
    except MaxbrodError as error:
        return item.result(end=item.start, failure=error)
    return item.result(
        segments=tuple(written),
        records=records.count,
        raw_bytes=records.raw_bytes,
        start=records.start,
        end=records.end,
    )


class _Records:
    """The records of an item, counted while they are iterated."""

    def __init__(
        self,
        settings: TransferSettings,
        item: TransferItem,
        *,
        source: Storage | None = None,
        client: KafkaClient | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.item = item
        self.count = self.raw_bytes = 0
        self.start, self.end = item.start, item.end
        self.skipped = Skipped()
        self._patience_s = settings.patience_s
        self._source, self._client = source, client
        self._pace = pace or Pace(None)

    def options(self, common: WriteOptions) -> WriteOptions:
        """Return how to write this item: its own limits stand above those of all."""
        return replace(
            common,
            segment_bytes_max=self.item.segment_bytes_max or common.segment_bytes_max,
            segment_records_max=self.item.segment_records_max or common.segment_records_max,
            # An archive may lack offsets that its topic had; a log lacks only what it never had, or no longer has.
            read_from=None if self._client is None else lambda: self.start,
            asked_from=self.item.start if self.item.asked is None else self.item.asked,
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.count = self.raw_bytes = 0
        self.skipped = Skipped()
        for records in self._archived() if self._client is None else self._live(self._client):
            within = self._within(records)
            self.count += within.num_rows
            if within.num_rows:
                yield within

    def _archived(self) -> Iterator[pa.RecordBatch]:
        if self._source is not None:
            for stored in self.item.slices:
                yield from read_records(self._source, stored, skipped=self.skipped)

    def _live(self, client: KafkaClient) -> Iterator[pa.RecordBatch]:
        item = self.item
        chunks = read_range(
            client,
            item.where,
            item.start,
            item.end,
            topic_id=topic_id_of(item.topic_id),
            floor=0,
            patience_s=self._patience_s,
        )
        for chunk in chunks:
            self._pace.wait(chunk.data.size)
            first = int(chunk.headers["base_offset"][0]) if len(chunk.headers) else chunk.end
            begin = min(chunk.log_start_offset, first, item.end)
            if begin > chunk.start > self.start:
                # Retention has overtaken the reader. No segment may span what it deleted: the next item begins here.
                self.end = chunk.start
                return
            self.start = max(self.start, begin)
            self.raw_bytes += chunk.data.size
            aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted) if len(chunk.headers) else ()
            yield from decode_committed(chunk.data, chunk.headers, aborted, skipped=self.skipped)

    def _within(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """A batch may reach beyond the item at both ends."""
        offsets = number_column(records.column("offset"))
        first, end = offsets.searchsorted([self.item.start, self.item.end]).tolist()
        return records.slice(first, end - first)


def run_copy_task(settings: TransferSettings, items: Sequence[TransferItem]) -> list[Transferred]:
    """Copy batches into our own layout. Items share objects, so an error affects all: each is then copied by itself."""
    source = open_source(settings)
    look = look_into(sum(piece.raw_bytes for item in items for piece in item.slices))
    try:
        with open_writer(settings, look=look) as archive:
            parts = [_copy(archive, source, item) for item in items]
    except MaxbrodError as error:
        if len(items) == 1:
            return [item.result(end=item.start, failure=error) for item in items]
        return [done for item in items for done in run_copy_task(settings, [item])]
    return [
        item.result(slices=tuple(part.slices), records=sum(stored.records for stored in part.slices))
        for item, part in zip(items, parts, strict=True)
    ]


def native_compression(options: WriteOptions) -> Compression:
    """Return the compression of our own layout that `--codec` asks for. UsageError: it has none of that name."""
    name = options.codec or "auto"
    return Compression.parse(name if options.level is None else f"{name}:{options.level}")


def open_writer(settings: TransferSettings, *, look: TimestampScan | None = None) -> ArchiveWriter:
    """Return the writer of one attempt of a task into our own layout."""
    options = settings.options
    return ArchiveWriter(
        open_storage(settings.target_url, settings.target),
        run_id=settings.run_id,
        compression=native_compression(options),
        limits=SegmentLimits(
            bytes_max=options.segment_bytes_max or SegmentLimits().bytes_max, records_max=options.segment_records_max
        ),
        look=look,
    )


def open_partition(archive: ArchiveWriter, item: TransferItem) -> PartitionWriter:
    return archive.partition(
        topic=item.where.topic,
        topic_id=item.topic_id,
        partition=item.where.partition,
        packed=sum(part.raw_bytes for part in item.slices) < _PACKED_BYTES,
    )


def _copy(archive: ArchiveWriter, source: Storage, item: TransferItem) -> PartitionWriter:
    part = open_partition(archive, item)
    with naming(str(item.where)):
        for before, stored in pairwise((None, *item.slices)):
            if before is not None and stored is not None and before.end_offset < stored.base_offset:
                # A gap stays a row of its own: no slice may span it.
                part.close()
            if stored is not None:
                _append(part, source, stored)
        part.close()
    return part


def _append(part: PartitionWriter, source: Storage, stored: Slice) -> None:
    for data, headers in read_logs(source, stored):
        if len(headers):
            first, last = int(headers["base_offset"][0]), int(headers.last_offset[-1])
            # The transactions that touch these batches, as a broker would list them.
            touching = [
                aborted for aborted in stored.aborted if aborted.first_offset <= last and aborted.last_offset >= first
            ]
            part.append(data, headers, [(aborted.producer_id, aborted.first_offset) for aborted in touching])
