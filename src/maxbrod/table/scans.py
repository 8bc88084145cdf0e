"""Finds the columns and filters of a query's scans before it runs, because Spark passes neither to a Python source.

The query is planned over empty Parquet tables with the same schemas. For these Spark prunes columns and shows the
filters of each scan, which are read from the plan in the JVM. Whatever is not understood makes a scan wider, up to all
columns and all rows: that costs time, never a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql.types import StructType

from maxbrod.table.read.options import SCOPES
from maxbrod.table.read.scope import Scope, decode_scopes, narrow
from maxbrod.table.sql_errors import plain_errors

Alternatives: TypeAlias = tuple[tuple[datasource.Filter, ...], ...]
"""A row must pass all filters of at least one of these."""
ANYTHING: Final[Alternatives] = ((),)
SCOPES_MAX: Final = 16
"""Each scope is one more query of the catalog."""
READER: Final = "maxbrod "
"""The name of a function that reads planned slices begins so, and ends with its scopes; see `views.plan_frame`."""
_VALUES_MAX: Final = 1000
_COLUMNS: Final = frozenset({"topic", "partition", "offset", "timestamp"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS: Final = {
    "EqualTo": (datasource.EqualTo, datasource.EqualTo),
    "EqualNullSafe": (datasource.EqualNullSafe, datasource.EqualNullSafe),
    "GreaterThan": (datasource.GreaterThan, datasource.LessThan),
    "GreaterThanOrEqual": (datasource.GreaterThanOrEqual, datasource.LessThanOrEqual),
    "LessThan": (datasource.LessThan, datasource.GreaterThan),
    "LessThanOrEqual": (datasource.LessThanOrEqual, datasource.GreaterThanOrEqual),
}
"""The filter if the column is on the left, and if it is on the right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The columns of each table that is read. A table that is missing here is not read, even if the query names it."""

    columns: Mapping[str, frozenset[str]]
    scopes: Mapping[str, tuple[Scope, ...]]
    """The scopes that the scans of a table need between them; none: everything."""


_UNKNOWN = Usage(columns={}, scopes={})
"""It could not be found out, and everything may be read."""


def checked(sql: str) -> str:
    """The query as a subquery, so that a command is a syntax error. Line breaks, because it may end in a comment."""
    return f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)"  # noqa: S608 - it is the user's own


def named_in(spark: SparkSession, sql: str, names: Iterable[str]) -> list[str]:
    """The tables that the query may read. Preparing a table takes time, so others are left out."""
    relations = _relations(spark, sql)
    found = mentioned_in(sql, names)
    return found if relations is None else [name for name in found if name.lower() in relations]


def mentioned_in(sql: str, names: Iterable[str]) -> list[str]:
    """The names that the text of the query has anywhere: whole ones, not parts of others. Names ignore case."""
    return [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?!\w)", sql, re.IGNORECASE)]


def query_frame(spark: SparkSession, sql: str, hints: dict[str, str] | None = None) -> DataFrame:
    """The frame of a query over the session's views, analyzed once. UsageError: not a valid query, or a command."""
    with plain_errors(hints):
        spark._jsparkSession.sessionState().sqlParser().parsePlan(checked(sql))  # noqa: SLF001 - commands are errors
        # On the line where it stands in the checked text, so that errors name the same place.
        return spark.sql(f"\n{sql.strip().rstrip(';')}")


def _relations(spark: SparkSession, sql: str) -> frozenset[str] | None:
    """The relations of the query, from Spark's own parser; None: unknown."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(checked(sql)).toString()  # noqa: SLF001
    except Exception as error:
        # Spark reports the mistake when the query is planned.
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        return None
    found = frozenset(name.lower() for name in re.findall(r"UnresolvedRelation \[([^\]]*)\]", plan))
    return None if "UnresolvedIdentifier" in plan else found


def find_usage(
    spark: SparkSession, sql: str, schemas: Mapping[str, StructType], folder: Path, hints: dict[str, str] | None = None
) -> Usage:
    """Find what the query reads. UsageError: not a valid query. Leaves views of these names, of empty tables."""
    classic = hasattr(spark, "_jsparkSession")
    places = {f"{number}": name for number, name in enumerate(schemas)}
    for number, name in places.items():
        _empty(spark, schemas[name], folder / number, classic=classic).createOrReplaceTempView(quoted(name))
    with plain_errors(hints):
        frame = spark.sql(checked(sql))
        if not classic:
            # Spark Connect checks a query when its schema is requested, and shows no plan.
            _ = frame.schema
            return _UNKNOWN
        plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - there is no other way to a plan
    return _usage(plan, places)


def quoted(name: str) -> str:
    """A name quoted for SQL, whatever characters it has."""
    return f"`{name.replace('`', '``')}`"


def _empty(spark: SparkSession, schema: StructType, place: Path, *, classic: bool) -> Any:  # noqa: ANN401 - untyped
    if classic:
        place.mkdir()
        try:
            return spark.read.schema(schema).parquet(place.as_uri())
        except Exception as error:
            # Parquet cannot hold the schema, or the driver does not see the folders of this machine.
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
    return spark.createDataFrame([], schema)


def _usage(plan: Any, places: Mapping[str, str]) -> Usage:  # noqa: ANN401 - a plan of the JVM
    found: dict[str, frozenset[str]] = {}
    scans: dict[str, list[Alternatives]] = {}
    for leaf in _leaves(plan):
        kind = leaf.getClass().getSimpleName()
        if kind == "FileSourceScanExec":
            path = leaf.relation().location().rootPaths().apply(0).toString()
            name = places.get(path.rstrip("/").rsplit("/", 1)[-1])
            if name is None:
                return _UNKNOWN
            found[name] = found.get(name, frozenset()) | frozenset(leaf.requiredSchema().fieldNames())
            scans.setdefault(name, []).append(alternatives(sequence(leaf.dataFilters())))
        elif kind not in _HARMLESS:
            return _UNKNOWN
    return Usage(columns=found, scopes={name: scopes_of(conditions) for name, conditions in scans.items()})


# Leaves that read no table. A reused exchange or subquery is elsewhere in the plan in full.
_HARMLESS = frozenset(
    {
        "OneRowRelationExec",
        "LocalTableScanExec",
        "RangeExec",
        "ReusedExchangeExec",
        "ReusedSubqueryExec",
        "EmptyRelationExec",
    }
)


def _leaves(plan: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    """The leaves of the plan and of all its subqueries. An adaptive plan is a leaf that holds the real plan."""
    parts = [plan, *sequence(plan.subqueriesAll())]
    for part in parts:
        for leaf in sequence(part.collectLeaves()):
            if leaf.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
                yield from _leaves(leaf.inputPlan())
            else:
                yield leaf


def alternatives(conditions: Iterable[Any]) -> Alternatives:
    """The alternatives of several conditions, expressions of Spark in the JVM, all of which must hold."""
    found = ANYTHING
    for condition in conditions:
        found = _all(found, _alternatives(condition))
    return found


def scopes_of(scans: Iterable[Alternatives]) -> tuple[Scope, ...]:
    """The scopes that the scans of one source need together; empty: everything."""
    found = tuple({narrow(Scope(), filters): None for scan in scans for filters in scan})
    return () if Scope() in found or len(found) > SCOPES_MAX else found


def reads_enough(frame: Any) -> bool:  # noqa: ANN401 - a DataFrame
    """True if the scopes of a frame's sources cover what the scans of its own plan need.

    The frame's plan is the one that runs. The scopes come from an earlier plan of the same query over other tables:
    `now()` has moved on since, and the optimizer may have planned differently.
    """
    if not hasattr(frame, "_jdf"):
        # Spark Connect, where no source gets scopes.
        return True
    with plain_errors():
        plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - there is no other way to a plan
        return all(
            any(scope.covers(narrow(Scope(), filters)) for scope in scopes)
            for part in (plan, *sequence(plan.subqueriesAll()))
            for scopes, needed in _scans(part, ANYTHING)
            for filters in (needed if scopes else ())
        )


def asks_the_clock(frame: Any) -> bool:  # noqa: ANN401 - as above
    """True if the query depends on the current time."""
    if not hasattr(frame, "_jdf"):
        return False
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # noqa: SLF001
    return bool(plan.containsPattern(patterns.CURRENT_LIKE()))


def sequence(found: Any) -> list[Any]:  # noqa: ANN401 - of Scala
    return [found.apply(index) for index in range(found.size())]


def _scans(node: Any, needed: Alternatives) -> Iterator[tuple[tuple[Scope, ...], Alternatives]]:  # noqa: ANN401
    """The scopes of each scan's source, and what the filter directly above the scan needs."""
    kind = node.getClass().getSimpleName()
    if kind == "DataSourceV2ScanRelation":
        scopes = node.relation().options().get(SCOPES)
        yield () if scopes is None else decode_scopes(scopes), needed
    elif kind == "MapInArrow" and (name := str(node.functionExpr().name())).startswith(READER):
        yield decode_scopes(name.removeprefix(READER)), needed
    above = alternatives([node.condition()]) if kind == "Filter" else ANYTHING
    for child in sequence(node.children()):
        yield from _scans(child, above)


def _alternatives(condition: Any) -> Alternatives:  # noqa: ANN401 - as above
    kind = condition.getClass().getSimpleName()
    if kind == "And":
        return _all(_alternatives(condition.left()), _alternatives(condition.right()))
    if kind == "Or":
        found = (*_alternatives(condition.left()), *_alternatives(condition.right()))
        return found if len(found) <= SCOPES_MAX else ANYTHING
    simple = _filter(kind, condition)
    return ANYTHING if simple is None else ((simple,),)


def _all(one: Alternatives, other: Alternatives) -> Alternatives:
    if len(one) * len(other) > SCOPES_MAX:
        return one
    return tuple((*left, *right) for left, right in product(one, other))


def _filter(kind: str, condition: Any) -> datasource.Filter | None:  # noqa: ANN401 - as above
    if kind in _COMPARISONS:
        straight, mirrored = _COMPARISONS[kind]
        left, right = condition.left(), condition.right()
        return _compared(straight, left, right) or _compared(mirrored, right, left)
    if kind == "StartsWith":
        return _compared(datasource.StringStartsWith, condition.left(), condition.right())
    if kind == "In":
        values = [_value(value) for value in _few(condition.list())]
        return _one_of(_column(condition.value()), values)
    if kind == "InSet":
        child = condition.child()
        type_name = child.dataType().simpleString()
        return _one_of(_column(child), [_plain(value, type_name) for value in _few(condition.hset().toSeq())])
    return None


def _compared(made: Any, column: Any, value: Any) -> datasource.Filter | None:  # noqa: ANN401 - as above
    name, found = _column(column), _value(value)
    return None if name is None or found is None else made((name,), found)


def _one_of(name: str | None, values: list[Any]) -> datasource.Filter | None:
    return None if name is None or not values or None in values else datasource.In((name,), tuple(values))


def _few(found: Any) -> list[Any]:  # noqa: ANN401 - as above
    """All values, or none if there are so many that fetching them from the JVM would take longer than reading."""
    return sequence(found) if found.size() <= _VALUES_MAX else []


def _column(expression: Any) -> str | None:  # noqa: ANN401 - as above
    name = expression.name() if expression.getClass().getSimpleName() == "AttributeReference" else None
    return name if name in _COLUMNS else None


def _value(expression: Any) -> Any:  # noqa: ANN401 - None: no value that a scope knows
    if expression.getClass().getSimpleName() != "Literal":
        return None
    return _plain(expression.value(), expression.dataType().simpleString())


def _plain(value: Any, type_name: str) -> Any:  # noqa: ANN401 - as above
    """A value of Spark as one of Python. Spark has times as microseconds, and text as an object of its own."""
    if value is None:
        return None
    match type_name:
        case "string":
            return value.toString()
        case "int" | "bigint":
            return value
        case "timestamp":
            try:
                return _EPOCH + timedelta(microseconds=value)
            except OverflowError:
                return None
        case _:
            return None
