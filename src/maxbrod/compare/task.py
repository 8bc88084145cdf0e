"""The tasks of a comparison: digest the committed records of parts, and find the first differences of two parts.

Records come as columns from an archive's slices or from a live topic, in bounded memory: a few batches are decoded at
a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.digest import Digest, Field
from maxbrod.batch.erasure import without_erased
from maxbrod.batch.hashes import COLUMNS, Words, digest_records, hash_fields
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.batch.provenance import passed, source_offsets, without_provenance
from maxbrod.batch.schema_ids import with_mapped_ids
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.compare.items import CompareItem, CompareSettings, Digested, SuspectItem
from maxbrod.compare.plan import BroughtRecords, Side, translate_all
from maxbrod.compare.report import ABSENT, RECORD, Difference, show_field, show_record
from maxbrod.errors import MaxbrodError, UnsupportedFormatError
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.reader import read_logs
from maxbrod.model import AbortedTransaction, Codec, topic_id_of
from maxbrod.restore.plan.mapping import decode_map
from maxbrod.storage.stores import open_storage

Read: TypeAlias = "tuple[pa.RecordBatch, NDArray[np.int64]]"
"""Records, and the place of each: its offset in the target."""
Event: TypeAlias = "tuple[int, int, Field | None, int | None]"
"""A row of the source, or the row before which it is sorted in; -1 if only the target has the record; the field that
differs; a row of the target."""
_RUN_BYTES: Final = 4 << 20
"""The size of the records that are decoded at once."""
_RATIO: Final = 8
"""The assumed compression ratio, so that decoded batches stay small too."""
_ALL: Final = np.iinfo(np.int64).max


def digest_parts(settings: CompareSettings, items: Sequence[CompareItem]) -> list[Digested]:
    """The digest of each part. A part that cannot be read has a failure; the others are read all the same."""
    digests = []
    with SideReader(settings) as reader:
        for item in items:
            digest = Digest()
            failure: MaxbrodError | None = None
            try:
                for records, places in reader.read(item):
                    hashes = hash_fields(records)
                    digest = digest.then(digest_records(hashes, places if item.by_offset else None, settings.ignored))
            except MaxbrodError as error:
                failure = error
            digests.append(Digested(pair=item.pair, side=item.side, number=item.number, digest=digest, failure=failure))
    return digests


def find_differences(settings: CompareSettings, item: SuspectItem) -> list[Difference]:
    """The first differences, in order.

    An error while reading only means that fewer are shown: the verdict is known already.
    """
    search = Search(item, settings.ignored)
    with SideReader(settings) as reader, suppress(MaxbrodError):
        for _ in search.run(reader):
            if len(search.differences) >= item.limit:
                break
    return search.differences[: item.limit]


# Reading


class SideReader:
    """Reads both sides, which it opens when first needed. Use it in a `with`."""

    def __init__(self, settings: CompareSettings) -> None:
        self._settings = settings
        self._undo = ExitStack()
        self._clients: dict[Side, KafkaClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def read(self, item: CompareItem) -> Iterator[Read]:
        """All committed records of a part, in order."""
        extent = item.extent
        cut = Cut(first_offset=extent.first, end_offset=extent.end, since_ms=item.since_ms, until_ms=item.until_ms)
        offset_map = None if item.map is None else decode_map(item.map)
        in_archive = item.side is Side.SOURCE and self._settings.source is None
        for records in self._archived(item, cut) if in_archive else self._live(item, cut):
            if item.brought is not None:
                yield from _of_link(records, item.side, item.brought)
                continue
            offsets = number_column(records.column("offset"))
            places = offsets if offset_map is None else translate_all(offset_map, offsets)
            yield records, places

    def _archived(self, item: CompareItem, cut: Cut) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        storage = open_storage(settings.archive_url or "", settings.storage)
        for stored in item.slices:
            for data, headers in read_logs(storage, stored):
                for records in _committed(data, headers, stored.aborted, cut, storage.name_of(stored.path)):
                    if item.schema_ids is None:
                        yield records
                    else:
                        yield with_mapped_ids(records, item.schema_ids, where=str(item.where))

    def _live(self, item: CompareItem, cut: Cut) -> Iterator[pa.RecordBatch]:
        chunks = read_range(
            self._client(item.side),
            item.where,
            item.extent.first,
            item.extent.end,
            topic_id=topic_id_of(item.extent.topic_id),
            # A batch that begins before the part may reach into it: records are chosen by their own offsets.
            floor=0,
            patience_s=self._settings.patience_s,
        )
        for chunk in chunks:
            if item.split and (chunk.headers["magic"] != NEWEST_MAGIC).any():
                raise UnsupportedFormatError(
                    "a large partition with messages of magic 0 or 1 cannot be compared in parts",
                    operation="compare",
                    object_name=str(item.where),
                    offset=item.extent.first,
                    hint="compare ranges of fewer offsets, with --range",
                )
            aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted)
            data, headers = chunk.data, chunk.headers
            if item.erased is not None:
                data, headers = without_erased(data, headers, item.erased)
            yield from _committed(data, headers, aborted, cut, str(item.where))

    def _client(self, side: Side) -> KafkaClient:
        if side not in self._clients:
            config = self._settings.source if side is Side.SOURCE else self._settings.target
            if config is None:
                raise AssertionError("an archive has no client")
            self._clients[side] = self._undo.enter_context(KafkaClient(config))
        return self._clients[side]


def _committed(
    data: NDArray[np.uint8], headers: BatchHeaders, aborted: Iterable[AbortedTransaction], cut: Cut, name: str
) -> Iterator[pa.RecordBatch]:
    chosen = headers.take(committed_batches(headers, aborted) & cut.touches(headers))
    for run in _runs(chosen):
        records = decode(data, run, columns=list(COLUMNS), object_name=name)
        keep = cut.keeps(*(number_column(records.column(column)) for column in ("offset", "timestamp_ms")))
        if not keep.all():
            records = records.filter(number_array(keep))
        if records.num_rows:
            yield records


def _runs(headers: BatchHeaders) -> Iterator[BatchHeaders]:
    """Runs of neighbouring batches up to a size; a larger batch is a run of its own."""
    start = 0
    sizes = np.cumsum(np.where(headers.codec == Codec.NONE, headers.size, headers.size * _RATIO))
    while start < len(headers):
        before = int(sizes[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(sizes, before + _RUN_BYTES, side="right")))
        yield headers.take(slice(start, stop))
        start = stop


def _of_link(records: pa.RecordBatch, side: Side, brought: BroughtRecords) -> Iterator[Read]:
    """The records that a link has appended, or should have: as they are at the source, and at their offsets there."""
    headers = records.column("headers")
    if side is Side.SOURCE:
        places = number_column(records.column("offset"))
        kept = ~passed(headers, brought.left_out)
    else:
        places = source_offsets(headers, brought.restore_id)
        kept = (places >= brought.first) & (places < brought.end)
    if kept.any():
        records = records.filter(number_array(kept))
        yield records if side is Side.SOURCE else without_provenance(records), places[kept]


# Searching for differences


@dataclass(frozen=True, slots=True)
class Rows:
    """Records with their places, which ascend; unmapped records have none."""

    records: pa.RecordBatch
    places: NDArray[np.int64]

    def cut(self, rows: slice) -> Rows:
        return Rows(self.records.slice(rows.start, rows.stop - rows.start), self.places[rows])

    def record(self, row: int) -> dict[str, Any]:
        values: dict[str, Any] = self.records.slice(row, 1).to_pylist()[0]
        return values


class _Stream:
    """One side, read as far as needed."""

    def __init__(self, reads: Iterator[Read], *, by_offset: bool) -> None:
        self._reads = reads
        self._by_offset = by_offset
        self._rows: Rows | None = None
        self._count = 0

    def more(self) -> bool:
        if self._rows is None:
            records, places = next(self._reads, (None, None))
            if records is not None and places is not None:
                if not self._by_offset:
                    places = np.arange(self._count, self._count + len(places))
                self._count += len(places)
                self._rows = Rows(records, places)
        return self._rows is not None

    @property
    def last(self) -> int:
        """The place up to which this side has been read; the largest place at the end."""
        if not self.more() or self._rows is None:
            return int(_ALL)
        # Not the last one: what a link has appended may be out of order, and that is to be found.
        return int(self._rows.places.max())

    def read_until(self, until: int) -> Rows | None:
        """The rows up to and including that place."""
        rows = self._rows
        if rows is None:
            return None
        beyond = np.flatnonzero(rows.places > until)
        stop = int(beyond[0]) if len(beyond) else len(rows.places)
        self._rows = rows.cut(slice(stop, len(rows.places))) if stop < len(rows.places) else None
        return rows.cut(slice(0, stop)) if stop else None


class Search:
    """The differences of two parts, in order: at most some more than the limit."""

    def __init__(self, item: SuspectItem, ignored: Sequence[Field]) -> None:
        self._item = item
        self._ignored = ignored
        self.differences: list[Difference] = []

    def run(self, reader: SideReader) -> Iterator[None]:
        """Compare portion by portion, for as long as the caller wants more."""
        item = self._item
        source, target = (_Stream(reader.read(side), by_offset=side.by_offset) for side in (item.source, item.target))
        while source.more() or target.more():
            until = min(source.last, target.last)
            self.compare(source.read_until(until), target.read_until(until))
            yield

    def lacking(self, side: Side, rows: Rows, lacks: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002 - theirs
        """Those of the rows which `side` lacks, and which it must have."""
        return lacks

    def compare(self, source: Rows | None, target: Rows | None) -> None:
        """Compare all rows of both sides up to some place."""
        nothing = np.zeros(0, np.int64)
        mine, its = (nothing if rows is None else rows.places for rows in (source, target))
        _, left, right = np.intersect1d(mine, its, return_indices=True)
        lost, new = np.setdiff1d(np.arange(len(mine)), left), np.setdiff1d(np.arange(len(its)), right)
        if source is not None and len(lost):
            lost = self.lacking(Side.TARGET, source, lost)[: self._item.limit]
        if target is not None and len(new):
            new = self.lacking(Side.SOURCE, target, new)[: self._item.limit]
        events: list[Event] = [(row, 0, None, None) for row in lost.tolist()]
        # Sorted in before the first record of the source that follows it.
        events += [(int(np.searchsorted(mine, its[row])), -1, None, row) for row in new.tolist()]
        if source is not None and target is not None and len(left):
            events += self.changed(source, target, left, right)
        for event in sorted(events, key=lambda event: (event[0], event[1], _order(event[2]), event[3] or 0)):
            self.differences.append(self._difference(source, target, event))

    def changed(self, source: Rows, target: Rows, left: NDArray[np.int64], right: NDArray[np.int64]) -> Iterator[Event]:
        mine, its = (hash_fields(_whole(rows.records)) for rows in (source, target))
        for field in Field:
            if field not in self._ignored:
                for row in np.flatnonzero(_differ(mine[field], its[field], left, right))[: self._item.limit].tolist():
                    yield int(left[row]), 0, field, int(right[row])

    def _difference(self, source: Rows | None, target: Rows | None, event: Event) -> Difference:
        row, only_target, field, other = event
        mine = None if only_target or source is None else source.record(row)
        its = None if other is None or target is None else target.record(other)
        if field is None or mine is None or its is None:
            shown = ABSENT if mine is None else show_record(mine), ABSENT if its is None else show_record(its)
        else:
            shown = show_field(field, mine, its)
        return Difference(
            source_topic=self._item.source_topic,
            target_topic=self._item.target_topic,
            partition=self._item.source.extent.partition,
            source_offset=None if mine is None else mine["offset"],
            target_offset=None if its is None else its["offset"],
            field=RECORD if field is None else str(field),
            source=shown[0],
            target=shown[1],
        )


def _order(field: Field | None) -> int:
    return -1 if field is None else list(Field).index(field)


def _differ(mine: Words, its: Words, left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.bool_]:
    differ: NDArray[np.bool_] = (mine[:, left] != its[:, right]).any(axis=0)
    return differ


def _whole(records: pa.RecordBatch) -> pa.RecordBatch:
    """A copy that is no slice of another batch: hashing ignores offsets into buffers."""
    return records.filter(number_array(np.ones(records.num_rows, np.bool_)))
