"""What one task does that writes an archive in another tool's layout: read records, from a cluster or from an archive,
and write each partition's.

Nothing counts before the driver has published it, so a task may run twice, or again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.batch.columns import number_column
from maxbrod.batch.transactions import from_fetch
from maxbrod.errors import MaxbrodError, naming
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import PATIENCE_S, KafkaClient
from maxbrod.layouts.decoding import Skipped, decode_committed
from maxbrod.layouts.reading import read_records
from maxbrod.layouts.registry import layout_of
from maxbrod.layouts.travelling import decode_survey, encode_segment
from maxbrod.model import topic_id_of
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.layouts.foreign import WriteOptions
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """What every task needs to know besides its items. Holds secrets."""

    run_id: str
    layout: str
    options: WriteOptions
    target_url: str
    target: StorageConfig = field(repr=False)
    source_url: str | None = None
    source: StorageConfig | None = field(default=None, repr=False)
    """Where slices are read from; None where everything comes from a cluster."""
    kafka: KafkaConfig | None = None
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferItem:
    """Records of one partition with offsets in [start, end): of slices, or without any of them of the live log."""

    where: TopicPartition
    topic_id: str
    start: int
    end: int
    survey: str
    """What the target has of the partition, as `travelling.encode_survey` tells it."""
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transferred:
    """What was written of an item, all of it or nothing."""

    where: TopicPartition
    topic_id: str
    segments: tuple[dict[str, Any], ...] = ()
    """As `travelling.encode_segment` tells them."""
    records: int = 0
    raw_bytes: int = 0
    """Of the log that was read; 0 where it did not come from a cluster."""
    start: int = 0
    """Where the log began when it was read, if that is later than the item."""
    end: int = 0
    failure: dict[str, Any] | None = None


def run_transfer_task(settings: TransferSettings, items: Sequence[TransferItem]) -> list[Transferred]:
    """What goes wrong with one partition is told, and the others go on."""
    target = open_storage(settings.target_url, settings.target)
    source = None
    if settings.source_url is not None and settings.source is not None:
        source = open_storage(settings.source_url, settings.source)
    if settings.kafka is None:
        return [_transfer(settings, target, _Records(settings, item, source=source)) for item in items]
    with KafkaClient(settings.kafka) as client:
        return [_transfer(settings, target, _Records(settings, item, client=client)) for item in items]


def nothing(item: TransferItem, error: MaxbrodError) -> Transferred:
    """Of an item that could not be read, or not be written."""
    return Transferred(
        where=item.where, topic_id=item.topic_id, start=item.start, end=item.start, failure=error.as_dict()
    )


def _transfer(settings: TransferSettings, target: Storage, records: _Records) -> Transferred:
    item = records.item
    try:
        with naming(str(item.where)):
            layout = layout_of(settings.layout)
            survey = decode_survey(item.survey)
            written = layout.write(target, item.where, records, settings.options, survey=survey)
    except MaxbrodError as error:
        return nothing(item, error)
    return Transferred(
        where=item.where,
        topic_id=item.topic_id,
        segments=tuple(encode_segment(each) for each in written),
        records=records.count,
        raw_bytes=records.raw_bytes,
        start=records.start,
        end=item.end,
    )


class _Records:
    """The records of an item; counted while they are given."""

    def __init__(
        self,
        settings: TransferSettings,
        item: TransferItem,
        *,
        source: Storage | None = None,
        client: KafkaClient | None = None,
    ) -> None:
        self.item = item
        self.count = self.raw_bytes = 0
        self.start, self.end = item.start, item.end
        self.skipped = Skipped()
        self._patience_s = settings.patience_s
        self._source, self._client = source, client

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.count = self.raw_bytes = 0
        self.skipped = Skipped()
        for records in self._archived() if self._client is None else self._live(self._client):
            wanted = self._within(records)
            self.count += wanted.num_rows
            if wanted.num_rows:
                yield wanted

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
            self.start = max(self.start, min(chunk.log_start_offset, item.end))
            self.raw_bytes += chunk.data.size
            aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted) if len(chunk.headers) else ()
            yield from decode_committed(chunk.data, chunk.headers, aborted, skipped=self.skipped)

    def _within(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """A batch may reach beyond the item on either side."""
        offsets = number_column(records.column("offset"))
        first, end = offsets.searchsorted([self.item.start, self.item.end]).tolist()
        return records.slice(first, end - first)
