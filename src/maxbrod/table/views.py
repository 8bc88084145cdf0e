"""An archive's tables as views of a Spark session: `records`, one for each topic, and small ones made elsewhere.

A view has all of its columns always, but reads only those that a query uses: the others are null, and never built.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql import functions as spark_functions
from pyspark.sql.types import StructField, StructType

from maxbrod.table.narrowing import quoted
from maxbrod.table.read.columns import USUAL, spark_schema
from maxbrod.table.read.options import SCOPES
from maxbrod.table.read.scope import encode_scopes
from maxbrod.table.registering import register

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from maxbrod.table.narrowing import Usage
    from maxbrod.table.read.scope import Scope

RECORDS: Final = "records"
CHEAPEST: Final = "partition"
"""The column for queries that need none: every record of a slice has the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What becomes of keys or values: a type, and the column that is made of the record's columns."""

    type: DataType
    make: Callable[[], Column]
    needs: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordView:
    """A view of records. `options` are those of the table."""

    name: str
    options: Mapping[str, str] = field(repr=False)
    topic: str | None = None
    """The one that it is of; None: all that the options have."""
    decoded: Mapping[str, Decoded] = field(default_factory=dict)

    @property
    def schema(self) -> StructType:
        """The usual columns; those that are decoded have another type."""
        fields = spark_schema(USUAL).fields
        return StructType([StructField(each.name, self._type(each)) for each in fields])

    def load(self, spark: SparkSession, used: Collection[str] = USUAL, scopes: Sequence[Scope] = ()) -> DataFrame:
        """The columns `used`, and nulls in place of the others; records within one of the scopes, if there are some.

        Every call makes a source of its own: what one is told to read is for the scans of this frame alone.
        """
        needed = {each for name in used for each in (self.decoded[name].needs if name in self.decoded else {name})}
        columns = [name for name in USUAL if name in needed] or [CHEAPEST]
        options = {
            **self.options,
            **({} if self.topic is None else {"topics": self.topic}),
            **({} if not scopes else {SCOPES: encode_scopes(scopes)}),
        }
        # With its schema told, Spark need not ask Python for it, which takes five times as long.
        reader = spark.read.format("maxbrod").schema(spark_schema(columns)).options(**options)
        return reader.load().select([self._column(each, used) for each in self.schema.fields])

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
    """A view of a table that is made when somebody asks for it."""

    name: str
    arrow_schema: pa.Schema
    make: Callable[[], pa.Table]

    @property
    def schema(self) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - pandas, by its name at least

        found: StructType = from_arrow_schema(self.arrow_schema)
        return found

    def load(self, spark: SparkSession) -> DataFrame:
        """All columns: the table is in memory already."""
        return spark.createDataFrame(self.make().cast(self.arrow_schema), schema=self.schema)


View = RecordView | SmallView


@contextmanager
def own_session(spark: SparkSession) -> Iterator[Any]:
    """Another session of the same Spark, whose views are nobody else's and whose times are in UTC."""
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    if not hasattr(spark, "_jsparkSession"):
        register(own)
        yield own
        return
    # Spark looks for a format of this name in the active session, too, and would take it for one of its own there.
    _activate(own)
    try:
        register(own)
        yield own
    finally:
        # A JVM that is gone has no active session; what it was gone in the middle of says so.
        with suppress(OSError, Py4JError):
            _activate(spark)


def _activate(spark: SparkSession) -> None:
    """What PySpark does itself before it makes a frame of local rows."""
    SparkSession._activeSession = spark  # noqa: SLF001 - there is no public way
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001


def create_views(spark: SparkSession, views: Iterable[View], usage: Usage) -> None:
    """Register each for one query, with what it needs of it."""
    for each in views:
        if isinstance(each, RecordView):
            frame = each.load(spark, usage.columns.get(each.name, USUAL), usage.scopes.get(each.name, ()))
        else:
            frame = each.load(spark)
        frame.createOrReplaceTempView(quoted(each.name))


def create_every_view(spark: SparkSession, views: Iterable[View], prefix: str) -> None:
    """Register each with all of its columns and records."""
    for each in views:
        each.load(spark).createOrReplaceTempView(quoted(prefix + each.name))
