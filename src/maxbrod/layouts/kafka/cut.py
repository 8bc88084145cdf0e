"""Copies a part of a slice into a new object: what remains of it after a log truncation, or after damage."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from maxbrod.errors import CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.compression import LEVEL_DEFAULT
from maxbrod.layouts.kafka.contents import entry_of
from maxbrod.layouts.kafka.described_batches import DescribedBatches, describe
from maxbrod.layouts.kafka.names import is_framed, segment_path
from maxbrod.layouts.kafka.objects import OpenObject
from maxbrod.layouts.kafka.reading import read_logs
from maxbrod.layouts.kafka.slicing import SliceWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.layouts.kafka.partition import PartitionName
    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import AbortedTransaction
    from maxbrod.storage.interface import Storage


def cut_slice(storage: Storage, row: Slice, end_offset: int, name: PartitionName, *, run_id: str = "") -> Slice | None:
    """Copy the batches that end before `end_offset` into a new, durable object; None if there are none.

    The slice itself does not change. A batch that reaches `end_offset` is left out entirely. CorruptDataError: the
    bytes are not those that were written; nothing becomes visible.
    """
    return _copy(storage, row, _below(storage, row, end_offset), name, run_id)


def salvage_slice(storage: Storage, row: Slice, name: PartitionName, *, run_id: str = "") -> Slice | None:
    """Copy the intact batches before the first damage of a slice into a new, durable object; None if there are none."""
    return _copy(storage, row, _sound(storage, row), name, run_id)


def _copy(
    storage: Storage, row: Slice, described: Iterator[DescribedBatches], name: PartitionName, run_id: str
) -> Slice | None:
    framed = is_framed(row.path)
    first = next(described, None)
    if first is None:
        return None
    path = segment_path(
        topic=name.topic,
        topic_id=name.topic_id,
        partition=name.partition,
        base_offset=int(first.facts.first_offset[0]),
        framed=framed,
    )
    with storage.create(path) as writer:
        opened = OpenObject(path, writer)
        out = SliceWriter(opened, LEVEL_DEFAULT if framed else None)
        out.add(first)
        for batches in described:
            out.add(batches)
        # In a log of decompressed batches, headers no longer show the codec of the source.
        written = replace(out.finish(_still_aborted(row, out.tally.end_offset)), codec=row.codec)
        opened.entries.append(entry_of(name, written, out.tally.epochs))
        opened.finish(run_id)
    return written


def _below(storage: Storage, row: Slice, end_offset: int) -> Iterator[DescribedBatches]:
    """Reads the slice to its end, so that its digest is checked even if only a part is copied."""
    for data, headers in read_logs(storage, row):
        batches = describe(data, headers, exact=True)
        count = int(np.count_nonzero(batches.facts.last_offset < end_offset))
        if count:
            yield batches.take(slice(count))


def _sound(storage: Storage, row: Slice) -> Iterator[DescribedBatches]:
    with suppress(CorruptDataError, UnsupportedFormatError, ObjectNotFoundError):
        for data, headers in read_logs(storage, row):
            yield describe(data, headers, exact=False)


def _still_aborted(row: Slice, end_offset: int) -> tuple[AbortedTransaction, ...]:
    return tuple(
        replace(each, last_offset=min(each.last_offset, end_offset - 1))
        for each in row.aborted
        if each.first_offset < end_offset
    )
