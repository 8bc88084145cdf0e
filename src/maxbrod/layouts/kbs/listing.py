"""Segments that no manifest describes, told by their names and headers.

A header has the first offset and the count of records. Where a segment ends, the next one's beginning or the manifest
tells; where neither does, its records must be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.columns import number_column
from maxbrod.errors import MaxbrodError, naming
from maxbrod.layouts.documents import INT64_MAX
from maxbrod.layouts.foreign import Fault, ForeignSegment
from maxbrod.layouts.kbs.names import list_segments, segment_name
from maxbrod.layouts.kbs.schema import HEADER_BYTES, Header, decode_header

if TYPE_CHECKING:
    from maxbrod.layouts.backups import Backup
    from maxbrod.layouts.kbs.manifest import PartitionEntry
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


class Listing:
    """The objects of a backup, listed once and only if somebody asks."""

    def __init__(self, storage: Storage, backup: Backup) -> None:
        self._storage, self._backup = storage, backup
        self._sizes: dict[str, int] | None = None

    def segments(self, entry: PartitionEntry, faults: list[Fault]) -> list[ForeignSegment]:
        """Those of a partition that the manifest counts, as far as they are there."""
        if self._sizes is None:
            self._sizes = {path: size for _, _, path, size in list_segments(self._storage, self._backup)}
        found: list[ForeignSegment] = []
        end = entry.last_offset + 1
        for index in reversed(range(min(entry.segments, len(self._sizes)))):
            path = self._backup.path(segment_name(entry.where, index))
            try:
                if path not in self._sizes:
                    faults.append(Fault(path=path, message="the segment is missing"))
                    continue
                header = read_header(self._storage, path, self._sizes[path])
            except MaxbrodError as error:
                faults.append(Fault(path=path, message=error.message))
                continue
            if header.first_offset >= end:
                faults.append(Fault(path=path, message="begins behind its end", offset=header.first_offset))
                continue
            found.append(_described(entry.where, path, index, header, end, self._sizes[path]))
            end = header.first_offset
        if entry.segments > len(self._sizes):
            message = f"{entry.segments} segments of {entry.where} are counted, and not as many are there"
            faults.append(Fault(path=self._backup.path("manifest.json"), message=message))
        return found[::-1]


def read_header(storage: Storage, path: str, size: int) -> Header:
    with naming(storage.name_of(path)):
        return decode_header(bytes(storage.get_range(path, 0, min(size, HEADER_BYTES))).ljust(HEADER_BYTES, b"\0"))


def _described(where: TopicPartition, path: str, index: int, header: Header, end: int, size: int) -> ForeignSegment:
    return ForeignSegment(
        where=where,
        path=path,
        base_offset=header.first_offset,
        end_offset=end,
        records=header.records,
        bytes=size,
        details={"index": index},
    )


def rebuilt_segments(storage: Storage, backup: Backup, faults: list[Fault]) -> list[ForeignSegment]:
    """Every segment that is there, where no manifest counts them; by partition and offset."""
    ends: dict[TopicPartition, int] = {}
    found: list[ForeignSegment] = []
    for where, index, path, size in sorted(list_segments(storage, backup), key=lambda one: (one[0], -one[1])):
        try:
            header = read_header(storage, path, size)
            end = ends.get(where) or _end_by_reading(storage, _described(where, path, index, header, INT64_MAX, size))
        except MaxbrodError as error:
            faults.append(Fault(path=path, message=error.message))
            continue
        if header.first_offset >= end:
            message = "holds offsets that another has, too; it is left out"
            faults.append(Fault(path=path, message=message, offset=header.first_offset))
            continue
        found.append(_described(where, path, index, header, end, size))
        ends[where] = header.first_offset
    return sorted(found, key=lambda each: (each.where, each.base_offset))


def _end_by_reading(storage: Storage, segment: ForeignSegment) -> int:
    from maxbrod.layouts.kbs.reading import read  # noqa: PLC0415 - loads numba, which looking must not

    end = segment.base_offset
    for batch in read(storage, segment, ["offset"]):
        end = int(number_column(batch.column(0))[-1]) + 1
    return end
