"""Rebuilds indexes from the records files, which alone hold what cannot be rebuilt.

The tool rebuilds its partition index in the order of names, which differs from that of offsets from 10^10 on, where
names become longer. Here offsets are compared as numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.layouts.binlog.format import (
    INDEX,
    MAGIC,
    RECORDS,
    PartitionObjects,
    SegmentFiles,
    arrange,
    decode_partition_index,
    encode_partition_index,
    encode_segment_index,
    index_path,
    segment_path,
)
from maxbrod.layouts.binlog.reader import Entries, entries
from maxbrod.layouts.binlog.survey import files_of
from maxbrod.layouts.foreign import Fault

if TYPE_CHECKING:
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage


def repair(storage: Storage) -> list[Fault]:
    """Repairs every index, and reports what was wrong. `fatal`: records that no index can lead to.

    Reads all segment indexes, and the records of segments whose index is useless. Indexes are replaced by correct
    ones; records files are never changed. May be repeated after a crash.
    """
    faults: list[Fault] = []
    for where, objects in arrange(storage.list()).items():
        if objects.backed_up:
            _repair_partition(storage, where, objects, faults)
    return faults


def _repair_partition(storage: Storage, where: TopicPartition, objects: PartitionObjects, faults: list[Fault]) -> None:
    before = b"" if objects.index is None else bytes(storage.get(objects.index.path))
    listed = decode_partition_index(before, where.partition).start_offsets
    spans: dict[int, tuple[int, int]] = {}
    for start_offset in sorted(objects.segments):
        files = files_of(where, objects, start_offset)
        if files is None:
            message = "is a segment index without its records, which are lost"
            faults.append(Fault(path=segment_path(where, start_offset, INDEX), message=message, offset=start_offset))
            continue
        span = _repair_segment(storage, where, start_offset, files, faults)
        if span is not None:
            spans[start_offset] = span
    chosen = _chosen(where, spans, set(listed), faults)
    after = encode_partition_index(where.partition, chosen)
    if after != before:
        storage.replace(index_path(where), after)
        message = f"was rebuilt, with {len(chosen)} segments instead of {len(listed)}"
        faults.append(Fault(path=index_path(where), message=message, fatal=False))


def _repair_segment(
    storage: Storage, where: TopicPartition, start_offset: int, files: SegmentFiles, faults: list[Fault]
) -> tuple[int, int] | None:
    """Repairs the index of a segment, and returns its offsets [base, end); None if it cannot be read at all."""
    pieces: list[Entries] = []
    try:
        pieces.extend(entries(storage, files))
    except CorruptDataError as error:
        faults.append(Fault(path=files.records, message=error.message, offset=error.offset))
    except UnsupportedFormatError as error:
        faults.append(Fault(path=files.records, message=error.message, offset=start_offset))
        return None
    index = _index_of(pieces)
    path = segment_path(where, start_offset, INDEX)
    # The old index is read only if its length is right: any other one differs.
    if files.index is None or files.index_bytes != len(index) or bytes(storage.get(path)) != index:
        storage.replace(path, index)
        records = sum(len(piece.offset) for piece in pieces)
        faults.append(Fault(path=path, message=f"was rebuilt, with {records} records", fatal=False))
    return (int(pieces[0].offset[0]), int(pieces[-1].offset[-1]) + 1) if pieces else (start_offset, start_offset)


def _index_of(pieces: list[Entries]) -> bytes:
    if not pieces:
        return MAGIC
    offset = np.concatenate([piece.offset for piece in pieces])
    start = np.concatenate([piece.start for piece in pieces])
    return encode_segment_index(offset, start, np.concatenate([piece.stop for piece in pieces]) - start)


def _chosen(
    where: TopicPartition, spans: dict[int, tuple[int, int]], listed: set[int], faults: list[Fault]
) -> list[int]:
    """The segments for the partition index: first those that it had, then all that fit between them."""
    chosen: list[tuple[int, int, int]] = []
    for start_offset in sorted(spans, key=lambda start: (start not in listed, start)):
        base, end = spans[start_offset]
        at = bisect_left(chosen, (base,))
        rivals = [
            *(other for other in chosen[max(at - 1, 0) : at] if other[1] > base),
            *(other for other in chosen[at : at + 1] if other[0] < max(end, base + 1)),
        ]
        if not rivals:
            chosen.insert(at, (base, end, start_offset))
            continue
        held = any(other_base <= base and end <= other_end for other_base, other_end, _ in rivals)
        message = f"holds offsets {base} to {end - 1} of which others hold {'all' if held else 'some'}; it is left out"
        path = segment_path(where, start_offset, RECORDS)
        faults.append(Fault(path=path, message=message, offset=base, fatal=not held))
    return sorted(start_offset for _, _, start_offset in chosen)
