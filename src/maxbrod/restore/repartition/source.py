"""The records of a repartitioned topic in the order of its plan: extent after extent, from all source partitions.

Owns the readers, one for each source partition. A reader holds records only while an extent ends within a slice, and
then at most a part of that slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from maxbrod.batch.columns import number_column
from maxbrod.batch.cuts import Cut
from maxbrod.batch.rewrite import DecodedRecords, kept_records
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.kafka.reader import REQUEST_BYTES
from maxbrod.layouts.reader import read_logs
from maxbrod.model import Codec
from maxbrod.restore.repartition.extents import OPEN_SOURCES_MAX, SourceExtent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.restore.repartition.items import SharedSource
    from maxbrod.storage.interface import Storage

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
) -> Iterator[SourceRecords]:
    """All requested records, in the same order each time. `ahead` reads on while they are used."""
    several = len(sources) if len(sources) <= OPEN_SOURCES_MAX else 1
    request_bytes = min(REQUEST_BYTES, _OPEN_BYTES // several)
    readers = {}
    for source in sources:
        cut = Cut(first_offset=source.first_offset, end_offset=source.end_offset, since_ms=since_ms, until_ms=until_ms)
        readers[source.partition] = _Reader(storage, source, cut, request_bytes=request_bytes, ahead=ahead)
    for extent in extents:
        yield from readers[extent.partition].read_until(extent.end)


class _Reader:
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
