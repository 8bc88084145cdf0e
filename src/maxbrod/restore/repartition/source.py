"""The records of a repartitioned topic in the order of its plan: block after block, from all source partitions.

Owns the readers, one a source partition. Each holds a part of a slice at most, and none while no block ends inside one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.batch.cuts import Cut
from maxbrod.batch.sharing import DecodedRecords, kept_records
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.reading import REQUEST_BYTES
from maxbrod.layouts.reading import read_logs
from maxbrod.model import Codec
from maxbrod.restore.repartition.blocks import OPEN_SOURCES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.restore.items import SharedSource
    from maxbrod.restore.repartition.blocks import SourceExtent
    from maxbrod.storage.interface import Storage

_OPEN_BYTES: Final = 8 << 20
"""What all readers together ask of the storage at once; as much again is on its way where they read ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecords:
    """Records of one source partition, in the order of offsets."""

    partition: int
    records: pa.RecordBatch
    codec: Codec


def read_in_order(
    storage: Storage,
    sources: Sequence[SharedSource],
    blocks: Iterable[SourceExtent],
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    ahead: Executor | None = None,
) -> Iterator[SourceRecords]:
    """All records that are asked for, the same in the same order each time; read `ahead` while they are used."""
    several = len(sources) if len(sources) <= OPEN_SOURCES_MAX else 1
    request_bytes = min(REQUEST_BYTES, _OPEN_BYTES // several)
    readers = {}
    for each in sources:
        cut = Cut(first_offset=each.first_offset, end_offset=each.end_offset, since_ms=since_ms, until_ms=until_ms)
        readers[each.partition] = _Reader(storage, each, cut, request_bytes=request_bytes, ahead=ahead)
    for block in blocks:
        yield from readers[block.partition].read_until(block.end)


class _Reader:
    """Of one source partition."""

    def __init__(
        self, storage: Storage, source: SharedSource, cut: Cut, *, request_bytes: int, ahead: Executor | None
    ) -> None:
        self._storage, self._partition = storage, source.partition
        self._cut, self._request_bytes, self._ahead = cut, request_bytes, ahead
        self._slices = iter(source.slices)
        self._next = next(self._slices, None)
        self._portions: Iterator[DecodedRecords] | None = None
        self._held: DecodedRecords | None = None
        self._reached = source.first_offset

    def read_until(self, end: int) -> Iterator[SourceRecords]:
        """What comes next, below the offset `end`."""
        while (portion := self._held or self._more(end)) is not None:
            offsets = number_column(portion.records.column("offset"))
            count = int(np.searchsorted(offsets, end))
            self._held = None
            if count < len(offsets):
                self._held = DecodedRecords(records=portion.records.slice(count), codec=portion.codec)
            if count:
                records = portion.records.slice(0, count)
                yield SourceRecords(partition=self._partition, records=records, codec=portion.codec)
            if self._held is not None:
                return

    def _more(self, end: int) -> DecodedRecords | None:
        """The next portion. A slice that begins at `end` or later is not opened yet."""
        while True:
            if self._portions is None:
                if self._next is None or self._next.base_offset >= end:
                    return None
                self._portions = self._read(self._next)
                self._next = next(self._slices, None)
            portion = next(self._portions, None)
            if portion is not None:
                return portion
            self._portions = None

    def _read(self, stored: Slice) -> Iterator[DecodedRecords]:
        name, codec = self._storage.name_of(stored.path), Codec[stored.codec.upper()]
        logs = read_logs(self._storage, stored, request_bytes=self._request_bytes, ahead=self._ahead)
        for data, headers in logs:
            for portion in kept_records(data, headers, stored.aborted, cut=self._cut, codec=codec, object_name=name):
                self._refuse_repetition(portion, name)
                yield portion

    def _refuse_repetition(self, portion: DecodedRecords, name: str) -> None:
        offsets = number_column(portion.records.column("offset"))
        if int(offsets[0]) < self._reached:
            raise CorruptDataError(
                f"a record stands after one at offset {self._reached - 1}",
                operation="restore",
                object_name=name,
                offset=int(offsets[0]),
                hint="the archive holds these offsets twice, or its slices are out of order; check it",
            )
        self._reached = int(offsets[-1]) + 1
