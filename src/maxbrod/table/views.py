"""An archive's tables as views of a Spark session: `records`, one for each topic, and small ones made elsewhere.

A view always has all of its columns, but reads only those that a query uses. The others are null and are never built.

Reads are planned in the driver where they can be. For the format `maxbrod` Spark starts more Python processes: to look
the format up, to create the source and to plan. Here only tasks run Python, and if the rows of the catalog are enough,
none does.

Small tables are read whole by the driver, once, and Spark keeps them in memory. A Python task costs a query 1.9 s of
processor time the first time, and the plan over empty tables that finds columns and filters 0.7 s (docs/benchmarks.md).
Reading as much as one task would read takes less than that, while the JVM starts, and later queries of the same session
find the records in memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import DataType, IntegerType, StructField, StructType

from maxbrod.batch.columns import number_array, text_array
from maxbrod.errors import MaxbrodError
from maxbrod.storage.stores import open_storage
from maxbrod.table.read.columns import USUAL, are_in_rows, arrow_schema, frame_of, spark_schema
from maxbrod.table.read.counts import Count, count_slices
from maxbrod.table.read.options import SCOPES, SPLIT_BYTES, TableOptions, parse_options
from maxbrod.table.read.scope import Scope, SliceRead, encode_scopes
from maxbrod.table.read.splits import find_slices, group, open_table
from maxbrod.table.registration import register
from maxbrod.table.scans import READER, quoted

RECORDS: Final = "records"
CHEAPEST: Final = "partition"
"""Read for queries that need no column: it is constant in a slice, so no record is decoded."""

_PACKED_BYTES_MAX: Final = 1 << 20
"""Every task gets the splits of all tasks. Beyond this, Spark would have to broadcast them."""
_CHUNK_RECORDS: Final = 1 << 14
_COUNTED_MAX: Final = _CHUNK_RECORDS << 20

_STORED_BYTES_MAX: Final = SPLIT_BYTES
_LOCAL_SLICES_MAX: Final = 1000
_REMOTE_SLICES_MAX: Final = 32
"""Each costs a request. More are left to a plan that may need few of them."""
_DECODED_BYTES_MAX: Final = 64 << 20
"""The limit for all tables of one query or prompt. They are in the driver's heap, which has 1 GiB by default."""
_PARTITION_BYTES: Final = 16 << 20
"""One partition needs no exchange: that is worth more than a second core for so few bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A decoded key or value: its type, and the column made from columns of the record."""

    type: DataType
    make: Callable[[], Column]
    needs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """A view of records. `options` are those of the table."""

    name: str
    options: Mapping[str, str] = field(repr=False)
    topic: str | None = None
    """The only topic of the view; None: all topics that the options select."""
    decoded: Mapping[str, Decoded] = field(default_factory=dict)
    planned: bool = False
    """The driver plans the read when a frame is made, not Spark when it is run. For catalogs of few rows."""

    @property
    def own_options(self) -> dict[str, str]:
        return {**self.options, **({} if self.topic is None else {"topics": self.topic})}

    @property
    def schema(self) -> StructType:
        """The usual columns, with the types of decoded ones."""
        kinds = {name: decoded.type for name, decoded in self.decoded.items()}
        fields = spark_schema(USUAL).fields
        return StructType([StructField(column.name, kinds.get(column.name, column.dataType)) for column in fields])

    def load(self, spark: SparkSession, used: Collection[str] = USUAL, scopes: Sequence[Scope] = ()) -> DataFrame:
        """The columns `used`, and nulls in place of the others; if `scopes` are given, records in one of them.

        Every call creates a source of its own, because all scans of one source share one plan (see `table.source`).
        """
        needed = {column for name in used for column in (self.decoded[name].needs if name in self.decoded else {name})}
        columns = [name for name in USUAL if name in needed] or [CHEAPEST]
        options = {**self.own_options, **({} if not scopes else {SCOPES: encode_scopes(scopes)})}
        frame = plan_frame(spark, parse_options(options), columns) if self.planned else None
        if frame is None:
            register(spark)
            # With the schema given, Spark does not start a Python process to ask for it.
            frame = spark.read.format("maxbrod").schema(spark_schema(columns)).options(**options).load()
        return self.over(frame, used)

    def over(self, frame: DataFrame, used: Collection[str] = USUAL) -> DataFrame:
        """The view over a frame that has the columns it needs."""
        return frame.select([self._column(column, used) for column in self.schema.fields])

    def _column(self, column: StructField, used: Collection[str]) -> Column:
        if column.name not in used:
            return spark_functions.lit(None).cast(column.dataType).alias(column.name)
        if column.name in self.decoded:
            return self.decoded[column.name].make().alias(column.name)
        return spark_functions.col(column.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallView:
    """A view of a small table that is made when a query uses it."""

    name: str
    arrow_schema: pa.Schema
    make: Callable[[], pa.Table]

    @property
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - pandas, by its name at least

        found: StructType = from_arrow_schema(self.arrow_schema)
        return found

    def load(self, spark: SparkSession) -> DataFrame:
        """All columns, because the table is in memory already."""
        return frame_of(spark, self.make().cast(self.arrow_schema), self.schema)


View = RecordView | SmallView


@contextmanager
def own_session(spark: SparkSession) -> Iterator[Any]:
    """Another session of the same Spark, with its own views and with times in UTC."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    if not hasattr(spark, "_jsparkSession"):
        yield own
        return
    # Spark looks a format up in the active session, too. If another session were active, it would find its own there.
    _activate(own)
    try:
        yield own
    finally:
        # If the JVM has exited, the code inside the block reports it.
        with suppress(OSError, Py4JError):
            _activate(spark)


def _activate(spark: SparkSession) -> None:
    """Make a session the active one, as PySpark does before it creates a frame of local rows."""
    SparkSession._activeSession = spark  # noqa: SLF001 - there is no public way
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001


def create_views(
    spark: SparkSession, views: Iterable[View], load: Callable[[RecordView], DataFrame], prefix: str = ""
) -> None:
    """Register each view; `load` returns the frame of one of records, with what a query needs of it."""
    for view in views:
        frame = load(view) if isinstance(view, RecordView) else view.load(spark)
        frame.createOrReplaceTempView(quoted(prefix + view.name))


def plan_frame(spark: SparkSession, options: TableOptions, names: Sequence[str]) -> DataFrame | None:
    """The columns `names` of the records that the options select. None: too many slices to plan them here."""
    archive = open_table(options)
    if are_in_rows(names):
        # All parts of the scope: Spark applies filters to these few rows, so a narrower read would gain nothing.
        counts = count_slices(find_slices(archive, replace(options, parts=())), replace(options, parts=()))
        # What rows count may be any number; tasks make so many rows in pieces.
        if counts is not None and sum(count.records for count in counts) <= _COUNTED_MAX:
            return _counted(spark, counts, names)
    splits = [pickle.dumps(split) for split in group(find_slices(archive, options), options.split_bytes)]
    if sum(map(len, splits)) > _PACKED_BYTES_MAX:
        return None
    read: Any = partial(_read, options, tuple(names), tuple(splits))
    # `scans` finds the scopes in the plan by this name.
    read.__name__ = READER + encode_scopes(options.parts)
    tasks = spark.range(0, len(splits), 1, max(len(splits), 1))
    return tasks.mapInArrow(read, spark_schema(names))


def _counted(spark: SparkSession, counts: Sequence[Count], names: Sequence[str]) -> DataFrame:
    """A frame with as many rows as there are records, made by Spark from a small table."""
    chunks = [
        (count, min(_CHUNK_RECORDS, count.records - first))
        for count in counts
        for first in range(0, count.records, _CHUNK_RECORDS)
    ]
    values = {
        "topic": text_array([count.topic for count, _ in chunks]),
        "partition": number_array(np.array([count.partition for count, _ in chunks], np.int32)),
        "topicId": text_array([count.topic_id for count, _ in chunks]),
        "records": number_array(np.array([records for _, records in chunks], np.int32)),
    }
    schema = spark_schema(names).add("records", IntegerType())
    few = frame_of(spark, pa.table({name: values[name] for name in schema.names}), schema)
    rows = spark_functions.explode(spark_functions.array_repeat(spark_functions.lit(0), few["records"]))
    return few.select(*names, rows.alias("record")).select(*names)


def _read(
    options: TableOptions, names: Sequence[str], splits: Sequence[bytes], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    from maxbrod.table.read.rows import read_split  # noqa: PLC0415 - numba, which the driver does not need

    storage = open_storage(options.url, options.storage)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            reads = pickle.loads(splits[number])  # noqa: S301 - the driver has packed it
            yield from read_split(storage, reads, options.scopes, names, committed=options.committed)


@dataclass(slots=True, kw_only=True)
class _Held:
    """The records of some slices. None: too many, or not readable."""

    slices: list[SliceRead]
    table: pa.Table | None
    bytes: int = 0
    frame: DataFrame | None = None


class HeldTables:
    """The tables of records that one `Query` holds, by the name of the view."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def read(self, view: RecordView) -> _Held:
        """Read the records of a view, unless those of the same slices are held. Needs no Spark."""
        options = parse_options(view.own_options)
        slices = find_slices(open_table(options), options)
        held = self._held.get(view.name)
        if held is None or held.slices != slices:
            self._held.pop(view.name, None)
            room = _DECODED_BYTES_MAX - sum(held.bytes for held in self._held.values())
            table = _read_whole(options, slices, room)
            held = _Held(slices=slices, table=table, bytes=0 if table is None else table.nbytes)
            self._held[view.name] = held
        return held

    def frames(self, spark: SparkSession, views: Iterable[View]) -> dict[str, DataFrame] | None:
        """A frame of all records for each view of records. None: one of them is too large, or cannot be read."""
        found: dict[str, DataFrame] = {}
        for view in views:
            if isinstance(view, RecordView):
                frame = self.frame(spark, view)
                if frame is None:
                    return None
                found[view.name] = frame
        return found

    def frame(self, spark: SparkSession, view: RecordView) -> DataFrame | None:
        """All records of a view with the usual columns, not decoded."""
        held = self.read(view)
        if held.table is not None:
            # From here on the JVM has the records.
            held.frame, held.table = _held_frame(spark, held.table), None
        return held.frame


def _read_whole(options: TableOptions, slices: Sequence[SliceRead], bytes_max: int) -> pa.Table | None:
    storage = open_storage(options.url, options.storage)
    slices_max = _REMOTE_SLICES_MAX if storage.distant else _LOCAL_SLICES_MAX
    if len(slices) > slices_max or sum(read.stored.bytes for read in slices) > _STORED_BYTES_MAX:
        return None
    from maxbrod.table.read.rows import read_split  # noqa: PLC0415 - numba, which large tables leave to the tasks

    batches, size = [], 0
    try:
        for batch in read_split(storage, slices, options.scopes, USUAL, committed=options.committed):
            batches.append(batch)
            size += batch.nbytes
            if size > bytes_max:
                return None
    except MaxbrodError:
        # The query may not need what is damaged or missing; if it does, the task that reads it reports it.
        return None
    return pa.Table.from_batches(batches, arrow_schema(USUAL))


def _held_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    # A local relation would be evaluated without compiled code while the query is planned.
    spark.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    frame = frame_of(spark, table, spark_schema(USUAL))
    return frame.coalesce(max(1, min(table.nbytes // _PARTITION_BYTES, spark.sparkContext.defaultParallelism)))
