"""What a query reads of which tables, before anything is read: Spark does not tell a source in Python.

The query is planned over empty Parquet tables of the same schemas, for which Spark does prune columns and tells the
filters of each scan, and the scans are looked at. Any doubt means all columns and all rows: that costs time, never a
wrong answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxbrod.table.conditions import alternatives, scopes_of, sequence
from maxbrod.table.sql_errors import plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from maxbrod.table.conditions import Alternatives
    from maxbrod.table.read.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """`columns` of each table that is read; a table that is not there may be named, but is not read."""

    columns: Mapping[str, frozenset[str]]
    scopes: Mapping[str, tuple[Scope, ...]]
    """What the scans of a table need between them; none: everything."""
    known: bool
    """False where nobody could tell: everything may be read."""


_UNKNOWN = Usage(columns={}, scopes={}, known=False)


def checked(sql: str) -> str:
    """The query as a part of another, so that a command is no query. Line breaks, because of comments at the end."""
    return f"SELECT * FROM (\n{sql.strip().rstrip(';')}\n)"  # noqa: S608 - it is the user's own


def named_in(spark: SparkSession, sql: str, names: Iterable[str]) -> list[str]:
    """Those that the query may read, of the tables that there are: each one that is made ready costs time."""
    relations = _relations(spark, sql)
    # A name that stands for itself, not within another; names know no case.
    found = [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?!\w)", sql, re.IGNORECASE)]
    return found if relations is None else [name for name in found if name.lower() in relations]


def _relations(spark: SparkSession, sql: str) -> frozenset[str] | None:
    """What stands behind FROM, as Spark's own parser sees it; None: nobody can tell."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(checked(sql)).toString()  # noqa: SLF001
    except Exception as error:
        # Spark will say what is wrong with it, in its own words, when the query is planned.
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        return None
    found = frozenset(name.lower() for name in re.findall(r"UnresolvedRelation \[([^\]]*)\]", plan))
    return None if "UnresolvedIdentifier" in plan else found


def find_usage(
    spark: SparkSession, sql: str, schemas: Mapping[str, StructType], folder: Path, hints: dict[str, str] | None = None
) -> Usage:
    """UsageError: it is no query that Spark understands. Leaves empty tables behind as views of these names."""
    classic = hasattr(spark, "_jsparkSession")
    places = {f"{number}": name for number, name in enumerate(schemas)}
    for number, name in places.items():
        _empty(spark, schemas[name], folder / number, classic=classic).createOrReplaceTempView(quoted(name))
    with plain_errors(hints):
        frame = spark.sql(checked(sql))
        if not classic:
            # Spark Connect looks at a query when its schema is asked for, and has no plan to look at.
            _ = frame.schema
            return _UNKNOWN
        plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - there is no other way to a plan
    return _usage(plan, places)


def quoted(name: str) -> str:
    """A name as SQL has it, whatever characters it is made of."""
    return f"`{name.replace('`', '``')}`"


def _empty(spark: SparkSession, schema: StructType, place: Path, *, classic: bool) -> Any:  # noqa: ANN401 - untyped
    if classic:
        place.mkdir()
        try:
            return spark.read.schema(schema).parquet(place.as_uri())
        except Exception as error:
            # A schema that Parquet cannot have, or a driver that does not see this machine's folders.
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
    return Usage(columns=found, scopes={name: scopes_of(each) for name, each in scans.items()}, known=True)


# Leaves that read nothing of a table. Exchanges and subqueries that are used again stand elsewhere in full.
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
    """Of the plan and of all its subqueries. An adaptive plan is a leaf that holds the true one."""
    parts = [plan, *sequence(plan.subqueriesAll())]
    for part in parts:
        for leaf in sequence(part.collectLeaves()):
            if leaf.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
                yield from _leaves(leaf.inputPlan())
            else:
                yield leaf
