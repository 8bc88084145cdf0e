"""Spark SQL expressions over records: checks them against the columns of the table, and applies them.

Errors in an expression are reported with the first line of Spark's message.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import UsageError
from maxbrod.table.sql_errors import quiet_spark
from maxbrod.transfer.task import ITEMS
from maxbrod.transform.plan import (
    CARRIED,
    FAILED,
    FIELDS,
    FLAGS,
    PLACES,
    PREFIX,
    RECORD,
    TABLE,
    Transform,
    mentioned,
    schema_of,
    table_schema,
)
from maxbrod.transform.task import ANSWERS, Transformed, TransformSettings, read_rows, write_rows
from maxbrod.work.jobs import collect
from maxbrod.work.settling import settled

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from maxbrod.transfer.task import TransferItem


_MISTAKES: Final = ("0A", "21", "22", "42")
"""SQLSTATE classes: not supported, wrong number of values, invalid data, wrong names or types."""
_MS: Final = "timestampMs"
_NEW: Final = f"{PREFIX}new"


def check_transform(session: SparkSession, transform: Transform) -> tuple[str, ...]:
    """The fields of records that it rewrites. UsageError: an expression is invalid, or uses unknown columns."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - workers load this module, too

    table = session.createDataFrame([], table_schema())
    if transform.where is not None:
        with mistakes("--where"):
            # In a filter Spark allows neither aggregates nor windows: each record is judged by itself.
            _ = table.where(sql.expr(transform.where)).schema
    if transform.select is None:
        return ()
    with mistakes("--select"):
        _ = table.where(_made(transform.select).isNotNull()).schema
        selected = table.select(_made(transform.select).alias("new")).schema["new"].dataType
    return _fields([(each.name, each.dataType) for each in selected], transform.select)


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
        raise UsageError(f"{what}: {_first_line(error)}", operation="transform", hint=_HINT) from None


def is_mistake(error: Exception) -> bool:
    """True if Spark says that an expression is invalid, or fails on a record."""
    state = getattr(error, "getSqlState", lambda: None)() if type(error).__module__.startswith("pyspark") else None
    return state is not None and state.startswith(_MISTAKES)


_HINT: Final = f"expressions are Spark SQL over the columns {', '.join(TABLE)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(";")


def _made(select: str) -> Column:
    """Everything that is selected, as one value. The line break ends a comment at the end of the expressions."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    return sql.expr(f"struct({select}\n)")


def _fresh(judged: DataFrame) -> dict[str, Column]:
    """The selected values by the field that they replace, cast to its type."""
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    found = {}
    for each in judged.schema[_NEW].dataType:
        name, new = _known(each.name), sql.col(_NEW).getField(each.name)
        if name == "timestamp":
            found["timestamp"] = sql.unix_millis(new)
        elif name == _MS:
            found["timestamp"] = new.cast("bigint")
        elif name == "headers":
            found["headers"] = _headers(new.cast(_headers_kind(each.dataType)))
        else:
            found[name or each.name] = new.cast("binary")
    return found


def _headers(new: Column) -> Column:
    from pyspark.sql import functions as sql  # noqa: PLC0415 - as above

    def header(each: Column) -> Column:
        return sql.struct(each["key"].cast("binary").alias("key"), each["value"].cast("binary").alias("value"))

    # A header that is null must not become a header with null fields.
    made = sql.transform(new, lambda each: sql.when(each.isNotNull(), header(each)))
    return sql.coalesce(made, sql.array().cast(CARRIED["headers"]))


def _headers_kind(kind: Any) -> Any:  # noqa: ANN401 - of Spark, which is not typed
    return TABLE["headers"].kind if kind.typeName() == "void" else kind


def _fields(selected: Sequence[tuple[str, Any]], select: str) -> tuple[str, ...]:
    fields = []
    for name, kind in selected:
        known = _known(name)
        if known is None:
            raise UsageError(
                f"--select: {_unknown(name)}",
                operation="transform",
                hint=f"name each expression after what it rewrites: … as value; there are {', '.join((*FIELDS, _MS))}",
            )
        _check_kind(known, kind)
        fields.append("timestamp" if known == _MS else known)
    if len(set(fields)) < len(fields) or not fields:
        raise UsageError(f"--select rewrites a field twice, or none: {select}", operation="transform")
    return tuple(name for name in FIELDS if name in fields)


def _known(name: str) -> str | None:
    return next((each for each in (*FIELDS, _MS) if each.lower() == name.lower()), None)


def _unknown(name: str) -> str:
    match name.lower():
        case "offset":
            return "offsets cannot be rewritten"
        case "topic":
            return "topics cannot be rewritten; give --rename"
        case "partition":
            return "partitions cannot be rewritten; give --partition-count"
        case _:
            return f"{name} is not a field that can be rewritten"


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
    settings: TransformSettings,
    transform: Transform,
    tasks: Sequence[Sequence[TransferItem]],
    *,
    on_done: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> list[Transformed]:
    """The outcome of every item of every task. UsageError: an expression fails on a record.

    Reading, expressions and writing are one stage: Spark neither shuffles nor stores records in between.
    """
    payloads = tuple(ITEMS.dump_json(tuple(task)).decode() for task in tasks)
    if not payloads:
        return []
    with mistakes("an expression fails"):
        rows = session.range(0, len(payloads), 1, len(payloads)).mapInArrow(
            partial(settled, partial(read_rows, settings, payloads)), schema_of(settings.shown)
        )
        answers = transformed(rows, transform).mapInArrow(
            partial(settled, partial(write_rows, settings, payloads)), "answer string"
        )
        table = collect(session, answers, name=settings.run_id, on_done=on_done, stop=stop, passed_on=is_mistake)
    return [each for answer in table["answer"].to_pylist() for each in ANSWERS.validate_json(answer)]
