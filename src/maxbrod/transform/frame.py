"""Spark SQL expressions over records: checks them against the columns of the table, and applies them.

One task reads records of an archive as rows, and one writes rows into another archive (`transform.writer`). Between
them Spark applies the expressions, which must keep all rows in order. Anything else is detected: each row names its
task and item, and the last row of an item gives the number of its records. Errors in an expression are reported with
the first line of Spark's message.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from maxbrod.batch.columns import number_array, number_column
from maxbrod.batch.cuts import Cut
from maxbrod.errors import MaxbrodError, UsageError, naming
from maxbrod.layouts.reader import read_records
from maxbrod.storage.interface import Storage
from maxbrod.table.sql_errors import quiet_spark
from maxbrod.transfer.task import TransferItem, Transferred, TransferSettings, key_of, open_source
from maxbrod.transform.plan import (
    CARRIED,
    END,
    FAILED,
    FIELDS,
    FLAGS,
    PLACES,
    PREFIX,
    RECORD,
    TABLE,
    Changes,
    Transform,
    add_changes,
    mentioned,
    mixed,
    row_kinds,
    schema_of,
)
from maxbrod.work.jobs import board_of, collect, counted
from maxbrod.work.progress import Watcher
from maxbrod.work.worker_garbage import settled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


_MISTAKES: Final = ("0A", "21", "22", "42")
"""SQLSTATE classes: not supported, wrong number of values, invalid data, wrong names or types."""
_MS: Final = "timestampMs"
_NEW: Final = f"{PREFIX}new"
_UNKNOWN: Final = {
    "offset": "offsets cannot be rewritten",
    "topic": "topics cannot be rewritten; give --rename",
    "partition": "partitions cannot be rewritten; give --partition-count",
}


def check_transform(session: SparkSession, transform: Transform) -> tuple[str, ...]:
    """The fields of records that it rewrites. UsageError: an expression is invalid, or uses unknown columns."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - workers load this module, too

    table = session.createDataFrame([], ", ".join(f"`{name}` {column.kind}" for name, column in TABLE.items()))
    if transform.where is not None:
        with mistakes("--where"):
            # In a filter Spark allows neither aggregates nor windows: each record is judged by itself.
            _ = table.where(sql.expr(transform.where)).schema
    if transform.select is None:
        return ()
    with mistakes("--select"):
        _ = table.where(_made(transform.select).isNotNull()).schema
        selected = table.select(_made(transform.select).alias("new")).schema["new"].dataType
    return _fields([(field.name, field.dataType) for field in selected], transform.select)


def transformed(records: DataFrame, transform: Transform) -> DataFrame:
    """Turns the rows of the reading task into those of the writing task, with `FLAGS` that say what changed.

    Rows stay complete and in order: nothing here moves them between tasks.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    judged, fresh = _judged(records, transform)
    keep, kind = sql.col(f"{PREFIX}keep"), sql.col(f"{PREFIX}kind")
    values = {name: sql.col(f"{PREFIX}{name}") for name in CARRIED}
    flags = {"keep": keep}
    for name in FIELDS:
        column = "timestamp_ms" if name == "timestamp" else name
        changed = keep & ~fresh[name].eqNullSafe(values[column]) if name in fresh else sql.lit(False)
        flags[f"{name}_changed"] = changed
        values[column] = fresh.get(name, values[column])
    # A rewritten timestamp is not the time at which a broker appended the record.
    values["timestamp_type"] = sql.when(flags["timestamp_changed"], 0).otherwise(values["timestamp_type"])
    for name in ("key", "headers"):
        values[name] = sql.when(keep, values[name])
    error = sql.when(kind == FAILED, sql.col(f"{PREFIX}value"))
    values["value"] = sql.when(keep, values["value"]).otherwise(error)
    return judged.select(
        *(f"{PREFIX}{name}" for name in PLACES),
        *(values[name].alias(f"{PREFIX}{name}") for name in CARRIED),
        *(flags[name].alias(f"{PREFIX}{name}") for name in FLAGS),
    )


def _judged(records: DataFrame, transform: Transform) -> tuple[DataFrame, dict[str, Column]]:
    """Rows with a flag whether they are kept; and the new values of rewritten fields."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    named = records.select("*", *(sql.expr(TABLE[name].made).alias(name) for name in mentioned(transform.text)))
    condition = sql.lit(True) if transform.where is None else sql.expr(transform.where)
    # Null counts as false, as in any WHERE.
    keep = sql.coalesce(sql.when(sql.col(f"{PREFIX}kind") == RECORD, condition), sql.lit(False))
    judged = named.withColumn(f"{PREFIX}keep", keep)
    if transform.select is None:
        return judged, {}
    # Only for records that are kept: an expression may fail on others.
    judged = judged.withColumn(_NEW, sql.when(sql.col(f"{PREFIX}keep"), _made(transform.select)))
    return judged, _fresh(judged)


@contextmanager
def mistakes(what: str) -> Iterator[None]:
    """Turns Spark's errors about an expression, or its failure on a record, into UsageError."""
    try:
        with quiet_spark():
            yield
    except Exception as error:
        if not is_mistake(error):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        raise UsageError(f"{what}: {lines[0].rstrip(';')}", operation="transform", hint=_HINT) from None


def is_mistake(error: Exception) -> bool:
    """True if Spark says that an expression is invalid, or fails on a record."""
    state = getattr(error, "getSqlState", lambda: None)() if type(error).__module__.startswith("pyspark") else None
    return state is not None and state.startswith(_MISTAKES)


_HINT: Final = f"expressions are Spark SQL over the columns {', '.join(TABLE)}"


def _made(select: str) -> Column:
    """Everything that is selected, as one value. The line break ends a comment at the end of the expressions."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    return sql.expr(f"struct({select}\n)")


def _fresh(judged: DataFrame) -> dict[str, Column]:
    """The selected values by the field that they replace, cast to its type."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    found = {}
    for field in judged.schema[_NEW].dataType:
        name, new = _known(field.name), sql.col(_NEW).getField(field.name)
        if name == "timestamp":
            found["timestamp"] = sql.unix_millis(new)
        elif name == _MS:
            found["timestamp"] = new.cast("bigint")
        elif name == "headers":
            kind = TABLE["headers"].kind if field.dataType.typeName() == "void" else field.dataType
            found["headers"] = _headers(new.cast(kind))
        else:
            found[name or field.name] = new.cast("binary")
    return found


def _headers(new: Column) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    def header(column: Column) -> Column:
        return sql.struct(column["key"].cast("binary").alias("key"), column["value"].cast("binary").alias("value"))

    # A header that is null must not become a header with null fields.
    made = sql.transform(new, lambda column: sql.when(column.isNotNull(), header(column)))
    return sql.coalesce(made, sql.array().cast(CARRIED["headers"]))


def _fields(selected: Sequence[tuple[str, Any]], select: str) -> tuple[str, ...]:
    fields = []
    for name, kind in selected:
        known = _known(name)
        if known is None:
            raise UsageError(
                f"--select: {_UNKNOWN.get(name.lower(), f'{name} is not a field that can be rewritten')}",
                operation="transform",
                hint=f"name each expression after what it rewrites: … as value; there are {', '.join((*FIELDS, _MS))}",
            )
        _check_kind(known, kind)
        fields.append("timestamp" if known == _MS else known)
    if len(set(fields)) < len(fields) or not fields:
        raise UsageError(f"--select rewrites a field twice, or none: {select}", operation="transform")
    return tuple(name for name in FIELDS if name in fields)


def _known(name: str) -> str | None:
    return next((field for field in (*FIELDS, _MS) if field.lower() == name.lower()), None)


def _check_kind(name: str, kind: Any) -> None:  # noqa: ANN401 - of Spark, which is not typed
    if name in {"key", "value"}:
        fits, expected = _is_bytes(kind), "binary or string"
    elif name == "timestamp":
        fits, expected = kind.typeName() == "timestamp", "timestamp"
    elif name == _MS:
        fits, expected = kind.typeName() in {"long", "integer"}, "bigint"
    else:
        fits, expected = _is_headers(kind), "array<struct<key:string,value:binary>>"
    if not fits:
        raise UsageError(
            f"--select: the expression for {name} is {kind.simpleString()}, not {expected}",
            operation="transform",
            hint="cast it, or use to_json, date_format and the like",
        )


def _is_bytes(kind: Any) -> bool:  # noqa: ANN401 - as above
    # The type name of a string includes its collation.
    return kind.typeName().split(" ")[0] in {"binary", "string", "void"}


def _is_headers(kind: Any) -> bool:  # noqa: ANN401 - as above
    if kind.typeName() != "array":
        return bool(kind.typeName() == "void")
    entry = kind.elementType
    return (
        entry.typeName() == "struct"
        and [fieldname.lower() for fieldname in entry.fieldNames()] == ["key", "value"]
        and all(_is_bytes(field.dataType) for field in entry.fields)
    )


def run_transform_job(
    session: SparkSession,
    settings: TransferSettings,
    transform: Transform,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    meter: Watcher | None = None,
    stop: threading.Event | None = None,
) -> list[Transferred]:
    """Return the outcome of every item of every task. UsageError: an expression fails on a record.

    Reading, expressions and writing are one stage: Spark neither shuffles nor stores records in between.
    """
    payloads = tuple(pickle.dumps(tuple(task)) for task in tasks)
    if not payloads:
        return []
    with mistakes("an expression fails"), board_of(session, len(payloads)) as board:
        rows = session.range(0, len(payloads), 1, len(payloads)).mapInArrow(
            counted(partial(read_rows, settings, payloads), board), schema_of(settings.shown)
        )
        answers = transformed(rows, transform).mapInArrow(
            partial(settled, partial(write_rows, settings, payloads)), "answer binary"
        )
        table = collect(
            session, answers, name=settings.run_id, meter=meter, stop=stop, board=board, passed_on=is_mistake
        )
    done = [outcome for answer in table["answer"].to_pylist() for outcome in pickle.loads(answer)]  # noqa: S301 - of our tasks
    found = {key_of(outcome): outcome for outcome in done}
    # A task that failed before its first row does not know its items, and answers with a failure only.
    lost = next((outcome.failure for outcome in done if outcome.failure is not None), None)
    return [
        found.get(key_of(item)) or item.result(failure=lost or mixed("no row of an item arrived"))
        for task in tasks
        for item in task
    ]


def changes_in(answers: Iterable[Transferred]) -> tuple[Changes, ...]:
    """Return the changes of each topic."""
    return add_changes(
        Changes(
            topic=outcome.where.topic,
            read=outcome.read,
            kept=outcome.records,
            dropped=outcome.read - outcome.records,
            changed=outcome.changed,
        )
        for outcome in answers
        if outcome.failure is None
    )


# In workers


_ARROW_HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.binary()), ("value", pa.binary())])))
_ARROW: Final = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "smallint": pa.int16(),
    "boolean": pa.bool_(),
    CARRIED["headers"]: _ARROW_HEADERS,
}
_OF_THE_ITEM: Final = frozenset({"topic", "topic_id", "partition"})


def read_rows(
    settings: TransferSettings, payloads: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The records of each task, item after item, in the order of offsets. Each item ends with a row of its own."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield from _read_task(settings, task, pickle.loads(payloads[task]))  # noqa: S301 - the driver has pickled it


def _read_task(settings: TransferSettings, task: int, items: Sequence[TransferItem]) -> Iterator[pa.RecordBatch]:
    rows = _TaskRows(settings, task)
    item = 0
    try:
        storage = open_source(settings)
        for item, transfer in enumerate(items):
            count = 0
            with naming(str(transfer.where)):
                for records in _records(settings, storage, transfer):
                    count += records.num_rows
                    yield rows.records(records, item, transfer)
            yield rows.one(item, END, offset=count)
    except MaxbrodError as error:
        # Passed on as a row, not raised: Spark would run the task again, and the user would not see the message.
        yield rows.one(item, FAILED, value=pickle.dumps(error))


def _records(settings: TransferSettings, storage: Storage, item: TransferItem) -> Iterator[pa.RecordBatch]:
    cut = Cut(first_offset=item.start, end_offset=item.end, since_ms=settings.since_ms, until_ms=settings.until_ms)
    columns = [*CARRIED, *(name for name in settings.shown if name not in _OF_THE_ITEM)]
    for stored in item.slices:
        for records in read_records(storage, stored, columns=columns):
            kept = cut.keeps(number_column(records.column("offset")), number_column(records.column("timestamp_ms")))
            chosen = records if kept.all() else records.filter(number_array(kept))
            if chosen.num_rows:
                yield chosen


class _TaskRows:
    """Records as rows of one task."""

    def __init__(self, settings: TransferSettings, task: int) -> None:
        kinds = row_kinds(settings.shown)
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
    settings: TransferSettings, payloads: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The outcome of one task, as one row."""
    from maxbrod.transform.writer import write_task  # noqa: PLC0415 - numba, which readers load by themselves

    answer = pickle.dumps(write_task(settings, payloads, batches))
    yield pa.RecordBatch.from_pylist([{"answer": answer}], schema=pa.schema([("answer", pa.binary())]))
