"""Formats results for people and machines, by Spark expressions over whole columns.

Bytes are shown as text if they are UTF-8, otherwise as hexadecimal digits after 0x. Text that is not UTF-8 has � in it.
Nested values become JSON text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as spark_functions
from pyspark.sql import types as spark

from maxbrod.table.sql_errors import plain_errors

if TYPE_CHECKING:
    import pyarrow as pa

_NESTED: Final = (spark.ArrayType, spark.MapType, spark.StructType)
_PLAIN: Final = (spark.NumericType, spark.BooleanType)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """A result in memory. `more`: there are more rows than the limit."""

    types: dict[str, str]
    table: pa.Table
    more: bool = False


def show(frame: DataFrame, *, limit: int | None, form: str) -> DataFrame:
    """The first rows, or all. `form`: arrow unchanged, text all as text, csv with numbers kept, json one text a row."""
    with plain_errors():
        shown: DataFrame = _FORMS[form](frame)
        # One row beyond the limit shows whether there are more.
        return shown if limit is None else shown.limit(limit + 1)


def collect(shown: DataFrame, frame: DataFrame, limit: int | None) -> Collected:
    """Run what `show` has made of the frame: the plan that was looked at is exactly the one that runs."""
    with plain_errors():
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        found = shown.toArrow()
    more = limit is not None and found.num_rows > limit
    return Collected(types=types, table=found.slice(0, limit) if more else found, more=more)


def as_written(frame: DataFrame, form: str) -> DataFrame:
    """The frame that `write` writes, before it is run."""
    with plain_errors():
        return _FORMS["arrow" if form == "parquet" else "nested" if form == "json" else form](frame)


def write(shown: DataFrame, form: str, folder: str) -> None:
    """Write a folder of files, from the tasks. UsageError: the folder exists."""
    with plain_errors({"PATH_ALREADY_EXISTS": "name a folder that does not exist"}):
        shown.write.save(folder, format=form, mode="error", **({"header": "true"} if form == "csv" else {}))


def _by_column(frame: DataFrame, convert: Callable[[Column, spark.DataType], Column]) -> DataFrame:
    columns = [convert(column, field.dataType).alias(field.name) for column, field in _columns(frame)]
    return _positional(frame).select(columns)


def _csv(column: Column, kind: spark.DataType) -> Column:
    return column if isinstance(kind, _PLAIN) else _text(column, kind)


def _as_json(frame: DataFrame) -> DataFrame:
    names = _columns(frame)
    whole = spark_functions.struct(*[_shown(column, field.dataType).alias(field.name) for column, field in names])
    return _positional(frame).select(_json(whole).alias("json"))


def _positional(frame: DataFrame) -> DataFrame:
    """Columns named by number, because a result may have two of one name."""
    return frame.toDF(*(f"_{number}" for number in range(len(frame.columns))))


def _columns(frame: DataFrame) -> list[tuple[Column, Any]]:
    return [(spark_functions.col(f"_{number}"), field) for number, field in enumerate(frame.schema.fields)]


def _text(column: Column, kind: spark.DataType) -> Column:
    if isinstance(kind, _NESTED):
        return _json(_shown(column, kind))
    return _shown(column, kind).cast("string")


def _json(column: Column) -> Column:
    return spark_functions.to_json(column, {"ignoreNullFields": "false"})


def _shown(column: Column, kind: spark.DataType) -> Column:
    """The column with text in place of bytes, at any depth. Nulls stay nulls."""
    if isinstance(kind, spark.StringType):
        # A cast makes text of any bytes, also of bytes that are not UTF-8.
        return spark_functions.make_valid_utf8(column)
    if not _has_text(kind):
        return column
    if isinstance(kind, spark.ArrayType):
        return spark_functions.transform(column, lambda item: _shown(item, kind.elementType))
    if isinstance(kind, spark.MapType):
        values = spark_functions.transform_values(column, lambda _, value: _shown(value, kind.valueType))
        return spark_functions.transform_keys(values, lambda key, _: _shown(key, kind.keyType))
    if isinstance(kind, spark.StructType):
        parts = [_shown(column[field.name], field.dataType).alias(field.name) for field in kind.fields]
        return spark_functions.when(column.isNotNull(), spark_functions.struct(*parts))
    text = spark_functions.try_validate_utf8(column.cast("string"))
    return spark_functions.coalesce(
        text, spark_functions.concat(spark_functions.lit("0x"), spark_functions.lower(spark_functions.hex(column)))
    )


def _has_text(kind: spark.DataType) -> bool:
    match kind:
        case spark.ArrayType():
            return _has_text(kind.elementType)
        case spark.MapType():
            return _has_text(kind.keyType) or _has_text(kind.valueType)
        case spark.StructType():
            return any(_has_text(field.dataType) for field in kind.fields)
        case _:
            return isinstance(kind, spark.BinaryType | spark.StringType)


_FORMS: Final = {
    "arrow": lambda frame: frame,
    "text": lambda frame: _by_column(frame, _text),
    "csv": lambda frame: _by_column(frame, _csv),
    "nested": lambda frame: _by_column(frame, _shown),
    "json": _as_json,
}
