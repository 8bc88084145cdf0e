"""Writes the rows that passed the expressions as batches of a native archive: one task, item after item.

Each attempt gives its objects names of their own, and only objects that the driver commits are ever read.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.batch.columns import headers_array, number_array, number_column
from maxbrod.batch.fillers import emptied
from maxbrod.batch.headers import walk
from maxbrod.errors import MaxbrodError, UsageError, naming
from maxbrod.layouts.kafka.records import append_records
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import Codec, TopicPartition
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, open_partition, open_writer
from maxbrod.transform.plan import CARRIED, END, FAILED, FIELDS, PREFIX, RECORD, mixed


def write_task(
    settings: TransferSettings, payloads: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> list[Transferred]:
    """Write the items of one task. They share objects, so an error in one fails all: each of them returns it."""
    task = _Task(payloads)
    try:
        with open_writer(settings) as archive:
            for batch in batches:
                task.add(archive, batch)
            # Before the `with` ends, which completes the objects: an incomplete task must leave none.
            task.end()
        return task.outcome()
    except MaxbrodError as error:
        return task.failed(error)


class _Task:
    """The items of one task, while their rows arrive."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self._payloads = payloads
        self._number: int | None = None
        self._items: list[TransferItem] = []
        self._done: list[_Item] = []
        self._open: _Item | None = None

    def failed(self, error: MaxbrodError) -> list[Transferred]:
        """The failure for each item. Before the first row arrives, the task and its items are unknown."""
        unknown = TransferItem(where=TopicPartition(topic="", partition=-1), topic_id="", start=0, end=0)
        return [item.result(failure=error) for item in self._items or [unknown]]

    def add(self, archive: ArchiveWriter, batch: pa.RecordBatch) -> None:
        task, item, kind = (number_column(batch.column(f"{PREFIX}{name}")) for name in ("task", "item", "kind"))
        self._begin(task)
        edges = np.flatnonzero((np.diff(item) != 0) | (np.diff(kind) != 0)) + 1
        for first, end in zip([0, *edges.tolist()], [*edges.tolist(), batch.num_rows], strict=True):
            if end > first:
                self._add_run(archive, batch.slice(first, end - first), int(item[first]), int(kind[first]))

    def _begin(self, task: NDArray[np.int32]) -> None:
        if self._number is None and len(task):
            self._number = int(task[0])
            self._items = list(pickle.loads(self._payloads[self._number]))  # noqa: S301 - of the driver
        if (task != self._number).any():
            raise mixed("rows of several tasks arrived together")

    def _add_run(self, archive: ArchiveWriter, rows: pa.RecordBatch, number: int, kind: int) -> None:
        if number != len(self._done):
            raise mixed(f"a row of item {number} arrived where item {len(self._done)} was expected")
        if kind == FAILED:
            # The error of the reading task.
            raise pickle.loads(rows.column(f"{PREFIX}value")[0].as_py())  # noqa: S301 - of a task of ours
        if self._open is None:
            self._open = _Item(archive, self._items[number])
        if kind == RECORD:
            self._open.add(rows)
            return
        if kind != END or rows.num_rows != 1:
            raise mixed(f"{rows.num_rows} rows of kind {kind} arrived")
        self._open.end(rows.column(f"{PREFIX}offset")[0].as_py())
        self._done.append(self._open)
        self._open = None

    def end(self) -> None:
        if len(self._done) != len(self._items):
            raise mixed(f"rows of {len(self._done)} of {len(self._items)} items arrived")

    def outcome(self) -> list[Transferred]:
        """To be called when the archive's `with` has ended without an error."""
        return [item.outcome() for item in self._done]


class _Item:
    """One partition, or a part of it: counts the records that are kept, and those with changed fields."""

    def __init__(self, archive: ArchiveWriter, item: TransferItem) -> None:
        self._item = item
        self._ends = np.array([part.end_offset for part in item.slices], np.int64)
        self._reached = 0
        self._written = -1
        """The last offset."""
        self._counts: Counter[str] = Counter()
        self._part = open_partition(archive, item)

    def add(self, rows: pa.RecordBatch) -> None:
        keep = rows.column(f"{PREFIX}keep")
        self._counts["read"] += rows.num_rows
        kept = rows.filter(keep)
        self._counts["kept"] += kept.num_rows
        for name in FIELDS:
            self._counts[name] += int(np.count_nonzero(number_column(kept.column(f"{PREFIX}{name}_changed"))))
        if kept.num_rows:
            with naming(str(self._item.where)):
                self._append(_as_records(kept))

    def _append(self, records: pa.RecordBatch) -> None:
        """Append records slice by slice: each source slice has its codec, and a gap between two slices stays one."""
        offsets = number_column(records.column("offset"))
        self._written = int(offsets[-1])
        place = self._ends.searchsorted(offsets, side="right")
        edges = np.flatnonzero(np.diff(place)) + 1
        for first, end in zip([0, *edges.tolist()], [*edges.tolist(), records.num_rows], strict=True):
            number = int(place[first])
            if self._is_gap(self._reached, number):
                self._part.close()
            self._reached = number
            append_records(
                self._part, records.slice(first, end - first), codec=Codec[self._item.slices[number].codec.upper()]
            )

    def _is_gap(self, before: int, number: int) -> bool:
        slices = self._item.slices[before : number + 1]
        return any(one.end_offset < other.base_offset for one, other in pairwise(slices))

    def end(self, count: int) -> None:
        if count != self._counts["read"]:
            raise mixed(f"{self._counts['read']:,} of {count:,} records of {self._item.where} arrived")
        self._keep_epoch()
        self._part.close()

    def _keep_epoch(self) -> None:
        """Keep the leader epoch of the source's last offset if its record is dropped.

        A later backup into the archive detects by it whether the log was truncated.
        """
        last = self._item.slices[-1] if self._item.slices else None
        if last is None or last.last_leader_epoch < 0 or not self._written < last.end_offset - 1 < self._item.end:
            return
        if self._is_gap(self._reached, len(self._item.slices) - 1):
            self._part.close()
        data = emptied(last.end_offset - 1, leader_epoch=last.last_leader_epoch)
        self._part.append(data, walk(data, check_crc=False))

    def outcome(self) -> Transferred:
        return self._item.result(
            slices=tuple(self._part.slices),
            read=self._counts["read"],
            records=self._counts["kept"],
            changed={name: self._counts[name] for name in FIELDS if self._counts[name]},
        )


def _as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    columns = {name: rows.column(f"{PREFIX}{name}") for name in CARRIED}
    _refuse_null(columns["offset"], columns["timestamp_ms"].is_null(), "its timestamp became null")
    columns["headers"] = _headers(columns["offset"], columns["headers"])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _headers(offsets: pa.Array, column: pa.Array) -> pa.Array:
    counts = number_column(pc.list_value_length(column))
    entries = column.flatten()
    keys, values = entries.flatten()
    if entries.null_count or keys.null_count:
        wrong = np.repeat(np.arange(len(counts)), counts)[number_column(keys.is_null())]
        rows = np.zeros(len(counts), np.bool_)
        rows[wrong] = True
        _refuse_null(offsets, number_array(rows), "one of its headers has no key")
    return headers_array(np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)]), keys, values)


def _refuse_null(offsets: pa.Array, wrong: pa.Array, what: str) -> None:
    rows = np.flatnonzero(number_column(wrong))
    if rows.size:
        raise UsageError(
            f"{what} by --select",
            operation="transform",
            offset=int(number_column(offsets)[rows[0]]),
            hint="make the expression return a value for every record, with coalesce or case",
        )
