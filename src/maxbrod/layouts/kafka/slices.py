"""A slice as a whole: its deep check, and copies: of what remains after a truncation or damage, or of whole objects.

The check reads every byte and compares what the catalog records with what is stored. A problem is a value, not an
error, so that one damaged slice does not hide another. A storage that does not answer is an error: then nothing is
known about the slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.compression import DECOMPRESSED_BYTES_MAX
from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.errors import BatchLimitError, CorruptDataError, ObjectNotFoundError, UnsupportedFormatError
from maxbrod.layouts.kafka.described_batches import DescribedBatches, SliceTally, describe
from maxbrod.layouts.kafka.format import LEVEL_DEFAULT, PartitionName, Slice, is_framed, pack_path, parse_segment_path
from maxbrod.layouts.kafka.reader import read_logs
from maxbrod.layouts.kafka.writer import OpenObject, SliceWriter
from maxbrod.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceProblem:
    """A defect of an object, and the offset from which it has it."""

    object_name: str
    offset: int
    message: str
    limit: bool = False
    """The bytes are those that were written, but unpack to more than was looked into."""

    def __str__(self) -> str:
        return f"{self.message} (in {self.object_name}, at offset {self.offset})"


def verify_slice(storage: Storage, row: Slice) -> list[SliceProblem]:
    """All problems of this slice; empty if it is intact."""
    comparison = _Comparison(storage.name_of(row.path), row)
    try:
        for data, headers in read_logs(storage, row):
            comparison.add(describe(data, headers, exact=True))
    except (CorruptDataError, ObjectNotFoundError, UnsupportedFormatError) as error:
        # Comparing counts of a partly read slice would only repeat the problem.
        offset = row.base_offset if error.offset is None else error.offset
        comparison.complain(error.message, offset)
        return comparison.problems
    comparison.compare()
    return comparison.problems


class _Comparison:
    def __init__(self, object_name: str, row: Slice) -> None:
        self._object_name = object_name
        self._row = row
        self._tally = SliceTally()
        self._first_timestamp: int | None = None
        """The lowest according to headers: what a row records if the records were not read."""
        self.problems: list[SliceProblem] = []

    def complain(self, message: str, offset: int | None = None, *, limit: bool = False) -> None:
        where = self._row.base_offset if offset is None else offset
        self.problems.append(SliceProblem(object_name=self._object_name, offset=where, message=message, limit=limit))

    def add(self, batches: DescribedBatches) -> None:
        self._check_offsets(batches)
        self._check_records(batches)
        self._tally.add(batches)
        headers, dated = batches.headers, batches.facts.dated
        if dated.any():
            stated = np.where(headers.log_append, headers["max_timestamp"], headers["base_timestamp"])
            lowest = int(np.maximum(stated, batches.facts.lowest)[dated].min())
            known = self._first_timestamp
            self._first_timestamp = lowest if known is None else min(known, lowest)

    def _check_offsets(self, batches: DescribedBatches) -> None:
        facts = batches.facts
        before = np.concatenate([[max(self._tally.end_offset, self._row.base_offset) - 1], facts.last_offset[:-1]])
        wrong = np.flatnonzero((facts.first_offset <= before) | (facts.last_offset >= self._row.end_offset))
        if wrong.size:
            offset = int(facts.first_offset[wrong[0]])
            self.complain("a batch is outside the offsets of its slice, or does not follow the batch before it", offset)

    def _check_records(self, batches: DescribedBatches) -> None:
        """A batch may have the right checksum and digest, and still contain records that cannot be decoded."""
        headers = batches.headers
        counted = (headers["magic"] == NEWEST_MAGIC) & (headers["count"] > 0)
        wrong = counted & ~headers.log_append & ~batches.facts.exact
        unseen = np.flatnonzero(counted & headers.log_append)
        if unseen.size:
            from maxbrod.batch.decode import lowest_timestamps  # noqa: PLC0415 - compiled: loading it costs seconds

            wrong[unseen] = ~lowest_timestamps(batches.data, headers.take(unseen), look_into_all=True)[1]
        for row in np.flatnonzero(wrong).tolist():
            batch = headers.take(slice(row, row + 1))
            why, limit = _why(batches.data, batch)
            self.complain(why, int(headers["base_offset"][row]), limit=limit)

    def compare(self) -> None:
        row, tally = self._row, self._tally
        ends = tally.as_slice(path="", position=0, size=0, aborted=(), digest="")
        for name, there in (
            ("records", tally.records),
            ("control_records", None if row.control_records is None else tally.control_records),
            ("max_timestamp", tally.max_timestamp),
            ("first_leader_epoch", ends.first_leader_epoch),
            ("last_leader_epoch", ends.last_leader_epoch),
        ):
            said = getattr(row, name)
            if said != there:
                self.complain(f"its {name.replace('_', ' ')} is {there}, but the catalog says {said}")
        lowest, said, first = tally.min_timestamp, row.min_timestamp, self._first_timestamp
        if lowest is None or first is None or said is None:
            holds = lowest is None and said is None
        else:
            holds = lowest == said if row.min_timestamp_exact else lowest <= said <= first
        if not holds:
            self.complain(f"its min timestamp is {lowest}, but the catalog says {said}")


def _why(data: NDArray[np.uint8], batch: BatchHeaders) -> tuple[str, bool]:
    """The error that a reader of the batch gets, and whether it is no more than a limit."""
    from maxbrod.batch.decode import decode  # noqa: PLC0415 - compiled: loading it costs seconds

    try:
        decode(data, batch, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except BatchLimitError as error:
        return f"the records of a batch were not looked into: {error.message}", True
    except (CorruptDataError, UnsupportedFormatError) as error:
        return f"the records of a batch cannot be read: {error.message}", False
    return "the records of a batch do not add up to its bytes", False


def cut_slice(storage: Storage, row: Slice, end_offset: int, name: PartitionName, *, run_id: str = "") -> Slice | None:
    """Copy the batches that end before `end_offset` into a new, durable object; None if there are none.

    The slice itself does not change. A batch that reaches `end_offset` is left out entirely. CorruptDataError: the
    bytes are not those that were written; nothing becomes visible.
    """
    return _copy(storage, row, _below(storage, row, end_offset), name, run_id)


def salvage_slice(storage: Storage, row: Slice, name: PartitionName, *, run_id: str = "") -> Slice | None:
    """Copy the intact batches before the first damage of a slice into a new, durable object; None if there are none."""
    return _copy(storage, row, _sound(storage, row), name, run_id)


def copy_slices(
    storage: Storage,
    path: str,
    slices: Sequence[tuple[PartitionName, Slice]],
    *,
    run_id: str,
    read: Callable[[Storage, Slice], Iterator[tuple[NDArray[np.uint8], BatchHeaders]]] = read_logs,
) -> list[Slice]:
    """Copy slices of the object `path`, in this order, into a new, durable object; returns the new ones.

    `read` may change what is in a slice. CorruptDataError: the bytes are not those that were written; nothing becomes
    visible.
    """
    framed, name = is_framed(path), slices[0][0]
    alone = parse_segment_path(path) is not None
    new = (
        name.segment_path(slices[0][1].base_offset, framed=framed) if alone else pack_path(run_id=run_id, framed=framed)
    )
    found = []
    with storage.create(new) as writer:
        opened = OpenObject(new, writer, strong=storage.signing is not None)
        for name, row in slices:
            out = SliceWriter(name, opened, LEVEL_DEFAULT if framed else None)
            for data, headers in read(storage, row):
                if len(headers):
                    out.add(describe(data, headers, exact=True))
            found.append(out.finish(row.aborted, codec=row.codec))
        opened.finish(run_id)
    return found


def _copy(
    storage: Storage, row: Slice, described: Iterator[DescribedBatches], name: PartitionName, run_id: str
) -> Slice | None:
    framed = is_framed(row.path)
    first = next(described, None)
    if first is None:
        return None
    path = name.segment_path(int(first.facts.first_offset[0]), framed=framed)
    with storage.create(path) as writer:
        opened = OpenObject(path, writer, strong=storage.signing is not None)
        out = SliceWriter(name, opened, LEVEL_DEFAULT if framed else None)
        for batches in chain([first], described):
            out.add(batches)
        end_offset = out.tally.end_offset
        aborted = tuple(
            replace(transaction, last_offset=min(transaction.last_offset, end_offset - 1))
            for transaction in row.aborted
            if transaction.first_offset < end_offset
        )
        written = out.finish(aborted, codec=row.codec)
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
