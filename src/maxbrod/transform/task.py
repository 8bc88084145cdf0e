"""The two tasks of a transformation: one reads records of an archive as rows, one writes rows into another archive.

Between them Spark applies the expressions, which must keep all rows in order. Anything else is detected: each row names
its task and item, and the last row of an item gives the number of its records.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.cuts import Cut
from maxbrod.errors import MaxbrodError, naming
from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of what travels
from maxbrod.layouts.reader import read_records
from maxbrod.storage.stores import open_storage
from maxbrod.transfer.task import ITEMS
from maxbrod.transform.plan import CARRIED, END, FAILED, PLACES, PREFIX, RECORD, SHOWN, Changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from maxbrod.config import StorageConfig
    from maxbrod.storage.interface import Storage
    from maxbrod.transfer.task import TransferItem

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.binary()), ("value", pa.binary())])))
_ARROW: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "smallint": pa.int16(),
    "boolean": pa.bool_(),
    CARRIED["headers"]: HEADERS,
}
_OF_THE_ITEM: Final = frozenset({"topic", "topic_id", "partition"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings:
    """The settings that all tasks share. Holds secrets."""

    run_id: str
    source_url: str
    source: StorageConfig = field(repr=False)
    target_url: str
    target: StorageConfig = field(repr=False)
    shown: tuple[str, ...] = ()
    """Columns that expressions use, besides those that are written."""
    since_ms: int | None = None
    until_ms: int | None = None
    compression: str = "auto"
    segment_bytes_max: int | None = None
    segment_records_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformed:
    """The outcome of an item: segments and changes. With a failure nothing of its task was written."""

    topic: str
    topic_id: str
    partition: int
    start: int
    """The start of the item."""
    slices: tuple[Slice, ...] = ()
    read: int = 0
    kept: int = 0
    changed: dict[str, int] = field(default_factory=dict)
    failure: dict[str, Any] | None = None

    @property
    def changes(self) -> Changes:
        return Changes(
            topic=self.topic, read=self.read, kept=self.kept, dropped=self.read - self.kept, changed=self.changed
        )


ANSWERS: Final = TypeAdapter(list[Transformed])


def read_rows(
    settings: TransformSettings, payloads: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The records of each task, item after item, in the order of offsets. Each item ends with a row of its own."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            items = ITEMS.validate_json(payloads[task])
            yield from _read_task(settings, task, items)


def _read_task(settings: TransformSettings, task: int, items: Sequence[TransferItem]) -> Iterator[pa.RecordBatch]:
    rows = _Rows(settings, task)
    item = 0
    try:
        storage = open_storage(settings.source_url, settings.source)
        for item, each in enumerate(items):
            count = 0
            with naming(str(each.where)):
                for records in _records(settings, storage, each):
                    count += records.num_rows
                    yield rows.records(records, item, each)
            yield rows.one(item, END, offset=count)
    except MaxbrodError as error:
        # Passed on as a row, not raised: Spark would run the task again, and the user would not see the message.
        yield rows.one(item, FAILED, value=json.dumps(error.as_dict()).encode())


def _records(settings: TransformSettings, storage: Storage, item: TransferItem) -> Iterator[pa.RecordBatch]:
    cut = Cut(first_offset=item.start, end_offset=item.end, since_ms=settings.since_ms, until_ms=settings.until_ms)
    columns = [*CARRIED, *(name for name in settings.shown if name not in _OF_THE_ITEM)]
    for stored in item.slices:
        for records in read_records(storage, stored, columns=columns):
            kept = cut.keeps(number_column(records.column("offset")), number_column(records.column("timestamp_ms")))
            chosen = records if kept.all() else records.filter(number_array(kept))
            if chosen.num_rows:
                yield chosen


class _Rows:
    """Records as rows of one task."""

    def __init__(self, settings: TransformSettings, task: int) -> None:
        kinds = {**PLACES, **CARRIED, **{name: SHOWN[name] for name in settings.shown}}
        self._names = tuple(kinds)
        self._schema = pa.schema([pa.field(f"{PREFIX}{name}", _ARROW[kind]) for name, kind in kinds.items()])
        self._task = task

    def records(self, records: pa.RecordBatch, item: int, of: TransferItem) -> pa.RecordBatch:
        count = records.num_rows
        known = {
            "task": lambda: _repeated(self._task, count),
            "item": lambda: _repeated(item, count),
            "kind": lambda: _repeated(RECORD, count),
            "partition": lambda: _repeated(of.where.partition, count),
            "topic": lambda: _repeated_text(of.where.topic, count),
            "topic_id": lambda: _repeated_text(of.topic_id, count),
        }
        columns = [
            known[name]() if name in known else records.column(name).cast(kind)
            for name, kind in zip(self._names, self._schema.types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def one(self, item: int, kind: int, *, offset: int = 0, value: bytes | None = None) -> pa.RecordBatch:
        """A row that is not a record."""
        values = {"task": self._task, "item": item, "kind": kind, "offset": offset, "value": value}
        return pa.RecordBatch.from_pylist(
            [{f"{PREFIX}{name}": values.get(name) for name in self._names}], schema=self._schema
        )


def _repeated(number: int, count: int) -> pa.Array:
    return number_array(np.full(count, number, np.int32))


def _repeated_text(text: str, count: int) -> pa.Array:
    data = np.frombuffer(text.encode(), np.uint8)
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(data.size)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(np.tile(data, count))])


def write_rows(
    settings: TransformSettings, payloads: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The outcome of one task, as one row of JSON: a `Transformed` for each of its items."""
    from maxbrod.transform.writer import write_task  # noqa: PLC0415 - numba, which readers load by themselves

    answer = ANSWERS.dump_json(list(write_task(settings, payloads, batches))).decode()
    yield pa.RecordBatch.from_pylist([{"answer": answer}], schema=pa.schema([("answer", pa.string())]))
