"""An archive's tables as views of a Spark session: `records`, one for each topic, and small ones made elsewhere.

A view always has all of its columns, but reads only those that a query uses. The others are null and are never built.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import DataType, StructField, StructType

from maxbrod.table.narrowing import Usage, quoted
from maxbrod.table.planned import plan_frame
from maxbrod.table.read.columns import USUAL, frame_of, spark_schema
from maxbrod.table.read.options import SCOPES, parse_options
from maxbrod.table.read.scope import Scope, encode_scopes
from maxbrod.table.registering import register

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa


RECORDS: Final = "records"
CHEAPEST: Final = "partition"
"""Read for queries that need no column: it is constant in a slice, so no record is decoded."""


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
        fields = spark_schema(USUAL).fields
        return StructType([StructField(each.name, self._type(each)) for each in fields])

    def load(self, spark: SparkSession, used: Collection[str] = USUAL, scopes: Sequence[Scope] = ()) -> DataFrame:
        """The columns `used`, and nulls in place of the others; if `scopes` are given, records in one of them.

        Every call creates a source of its own, because all scans of one source share one plan (see `table.source`).
        """
        needed = {each for name in used for each in (self.decoded[name].needs if name in self.decoded else {name})}
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
        return frame.select([self._column(each, used) for each in self.schema.fields])

    def _type(self, each: StructField) -> DataType:
        return self.decoded[each.name].type if each.name in self.decoded else each.dataType

    def _column(self, each: StructField, used: Collection[str]) -> Column:
        if each.name not in used:
            return spark_functions.lit(None).cast(each.dataType).alias(each.name)
        if each.name in self.decoded:
            return self.decoded[each.name].make().alias(each.name)
        return spark_functions.col(each.name)


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


def create_views(spark: SparkSession, views: Iterable[View], usage: Usage) -> None:
    """Register each view for one query, with the columns and records that the query needs."""
    for view in views:
        if isinstance(view, RecordView):
            frame = view.load(spark, usage.columns.get(view.name, USUAL), usage.scopes.get(view.name, ()))
        else:
            frame = view.load(spark)
        frame.createOrReplaceTempView(quoted(view.name))


def create_held_views(spark: SparkSession, views: Iterable[View], frames: Mapping[str, DataFrame]) -> None:
    """Register each view; those of records over their frames of all records."""
    for view in views:
        frame = view.over(frames[view.name]) if isinstance(view, RecordView) else view.load(spark)
        frame.createOrReplaceTempView(quoted(view.name))


def create_every_view(spark: SparkSession, views: Iterable[View], prefix: str) -> None:
    """Register each view with all of its columns and records."""
    for view in views:
        view.load(spark).createOrReplaceTempView(quoted(prefix + view.name))
