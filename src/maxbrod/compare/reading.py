"""Reads the committed records of one part as columns, from an archive's slices or from a live topic.

The same columns either way, and in bounded memory: a few batches are decoded at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.cuts import Cut
from maxbrod.batch.decode import decode
from maxbrod.batch.hashing import COLUMNS
from maxbrod.batch.headers import NEWEST_MAGIC
from maxbrod.batch.transactions import committed_batches, from_fetch
from maxbrod.compare.plan.pairs import translate_all
from maxbrod.compare.plan.parts import Side
from maxbrod.errors import UnsupportedFormatError
from maxbrod.kafka.fetch.ranges import read_range
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.layouts.reading import read_logs
from maxbrod.model import Codec, TimestampType, topic_id_of
from maxbrod.restore.plan.mapping import decode_map
from maxbrod.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.compare.items import CompareItem, CompareSettings
    from maxbrod.model import AbortedTransaction

    Read = tuple[pa.RecordBatch, NDArray[np.int64]]
    """Records, and the place of each: its offset in the target's counting."""

_RUN_BYTES: Final = 4 << 20
"""Of records that are decoded at once."""
_RATIO: Final = 8
"""How much larger compressed batches are taken to become: a guess, so that what they really become stays small too."""


class Reader:
    """Both sides, opened when they are first needed. Use it in a `with`."""

    def __init__(self, settings: CompareSettings) -> None:
        self._settings = settings
        self._undo = ExitStack()
        self._clients: dict[Side, KafkaClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def read(self, item: CompareItem) -> Iterator[Read]:
        """All committed records of a part, in order."""
        cut = Cut(first_offset=item.first, end_offset=item.end, since_ms=item.since_ms, until_ms=item.until_ms)
        found = None if item.map is None else decode_map(item.map)
        in_archive = item.side is Side.SOURCE and self._settings.source is None
        for records in self._archived(item, cut) if in_archive else self._live(item, cut):
            offsets = number_column(records.column("offset"))
            places = offsets if found is None else translate_all(found, offsets)
            yield _as_restored(records) if item.restored else records, places

    def _archived(self, item: CompareItem, cut: Cut) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        storage = open_storage(settings.archive_url or "", settings.storage)
        for stored in item.slices:
            for data, headers in read_logs(storage, stored):
                yield from _committed(data, headers, stored.aborted, cut, storage.name_of(stored.path))

    def _live(self, item: CompareItem, cut: Cut) -> Iterator[pa.RecordBatch]:
        chunks = read_range(
            self._client(item.side),
            item.where,
            item.first,
            item.end,
            topic_id=topic_id_of(item.topic_id),
            # A batch that begins before the part may reach into it; which of its records are meant, their offsets tell.
            floor=0,
            patience_s=self._settings.patience_s,
        )
        for chunk in chunks:
            if item.split and (chunk.headers["magic"] != NEWEST_MAGIC).any():
                raise _too_old(item)
            aborted = from_fetch(chunk.data, chunk.headers, chunk.aborted)
            yield from _committed(chunk.data, chunk.headers, aborted, cut, str(item.where))

    def _client(self, side: Side) -> KafkaClient:
        if side not in self._clients:
            config = self._settings.source if side is Side.SOURCE else self._settings.target
            if config is None:
                raise AssertionError("an archive is no cluster")
            self._clients[side] = self._undo.enter_context(KafkaClient(config))
        return self._clients[side]


def _committed(
    data: NDArray[np.uint8], headers: BatchHeaders, aborted: Iterable[AbortedTransaction], cut: Cut, name: str
) -> Iterator[pa.RecordBatch]:
    chosen = headers.take(committed_batches(headers, aborted) & cut.touches(headers))
    for run in _runs(chosen):
        records = decode(data, run, columns=list(COLUMNS), object_name=name)
        keep = cut.keeps(*(number_column(records.column(each)) for each in ("offset", "timestamp_ms")))
        if not keep.all():
            records = records.filter(number_array(keep))
        if records.num_rows:
            yield records


def _runs(headers: BatchHeaders) -> Iterator[BatchHeaders]:
    """Neighbours together, up to a size; a batch that is larger stands alone."""
    start = 0
    sizes = np.cumsum(np.where(headers.codec == Codec.NONE, headers.size, headers.size * _RATIO))
    while start < len(headers):
        before = int(sizes[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(sizes, before + _RUN_BYTES, side="right")))
        yield headers.take(slice(start, stop))
        start = stop


def _as_restored(records: pa.RecordBatch) -> pa.RecordBatch:
    place = records.schema.get_field_index("timestamp_type")
    kinds = np.full(records.num_rows, TimestampType.CREATE, np.int8)
    return records.set_column(place, records.schema.field(place), number_array(kinds))


def _too_old(item: CompareItem) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        "a large partition with messages of magic 0 or 1 cannot be compared in parts",
        operation="compare",
        object_name=str(item.where),
        offset=item.first,
        hint="compare ranges of fewer offsets, with --range",
    )
