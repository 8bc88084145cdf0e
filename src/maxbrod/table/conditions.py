"""What the scans of a plan filter by, as values: Spark's own expressions, read out of the JVM.

A condition that is not understood is left out, which makes a scan wider and never narrower.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql import datasource as spark

from maxbrod.table.read.options import SCOPES
from maxbrod.table.read.scope import Scope, decode_scopes, narrow
from maxbrod.table.sql_errors import plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Alternatives: TypeAlias = tuple[tuple[spark.Filter, ...], ...]
"""What a row must pass: all filters of one of these."""

ANYTHING: Final[Alternatives] = ((),)
SCOPES_MAX: Final = 16
"""Each costs a look at the catalog."""
_VALUES_MAX: Final = 1000
_COLUMNS: Final = frozenset({"topic", "partition", "offset", "timestamp"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COMPARISONS: Final = {
    "EqualTo": (spark.EqualTo, spark.EqualTo),
    "EqualNullSafe": (spark.EqualNullSafe, spark.EqualNullSafe),
    "GreaterThan": (spark.GreaterThan, spark.LessThan),
    "GreaterThanOrEqual": (spark.GreaterThanOrEqual, spark.LessThanOrEqual),
    "LessThan": (spark.LessThan, spark.GreaterThan),
    "LessThanOrEqual": (spark.LessThanOrEqual, spark.GreaterThanOrEqual),
}
"""With the column on the left, and on the right."""


def alternatives(conditions: Iterable[Any]) -> Alternatives:
    """What passes all of these conditions, which are expressions of Spark's."""
    found = ANYTHING
    for each in conditions:
        found = _all(found, _alternatives(each))
    return found


def scopes_of(scans: Iterable[Alternatives]) -> tuple[Scope, ...]:
    """What the scans of one source need between them; none: everything."""
    found = tuple({narrow(Scope(), filters): None for scan in scans for filters in scan})
    return () if Scope() in found or len(found) > SCOPES_MAX else found


def reads_enough(frame: Any) -> bool:  # noqa: ANN401 - a DataFrame
    """Whether the sources of a frame were told to read all that the scans of its own plan ask for.

    The plan that is looked at is the one that runs. What sources were told comes from another one, of the same query
    but made earlier and over other tables: `now()` has moved on since, and the optimizer may do something else.
    """
    if not hasattr(frame, "_jdf"):
        # Spark Connect, where no source is told anything.
        return True
    with plain_errors():
        plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001 - there is no other way to a plan
        return all(_covered(told, asked) for told, asked in _scans(plan))


def asks_the_clock(frame: Any) -> bool:  # noqa: ANN401 - as above
    """Whether the same query means something else a moment later."""
    if not hasattr(frame, "_jdf"):
        return False
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
    patterns = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # noqa: SLF001
    return bool(plan.containsPattern(patterns.CURRENT_LIKE()))


def sequence(found: Any) -> list[Any]:  # noqa: ANN401 - of Scala
    return [found.apply(index) for index in range(found.size())]


def _covered(told: tuple[Scope, ...], asked: Alternatives) -> bool:
    return not told or all(any(each.covers(narrow(Scope(), filters)) for each in told) for filters in asked)


def _scans(plan: Any) -> Iterator[tuple[tuple[Scope, ...], Alternatives]]:  # noqa: ANN401 - of the JVM
    """What the source of each scan was told, and what the filter right above the scan asks for."""
    for part in (plan, *sequence(plan.subqueriesAll())):
        yield from _scans_below(part, ANYTHING)


def _scans_below(node: Any, asked: Alternatives) -> Iterator[tuple[tuple[Scope, ...], Alternatives]]:  # noqa: ANN401
    kind = node.getClass().getSimpleName()
    if kind == "DataSourceV2ScanRelation":
        told = node.relation().options().get(SCOPES)
        yield () if told is None else decode_scopes(told), asked
    above = alternatives([node.condition()]) if kind == "Filter" else ANYTHING
    for child in sequence(node.children()):
        yield from _scans_below(child, above)


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


def _filter(kind: str, condition: Any) -> spark.Filter | None:  # noqa: ANN401 - as above
    if kind in _COMPARISONS:
        straight, mirrored = _COMPARISONS[kind]
        left, right = condition.left(), condition.right()
        return _compared(straight, left, right) or _compared(mirrored, right, left)
    if kind == "StartsWith":
        return _compared(spark.StringStartsWith, condition.left(), condition.right())
    if kind == "In":
        values = [_value(each) for each in _few(condition.list())]
        return _one_of(_column(condition.value()), values)
    if kind == "InSet":
        child = condition.child()
        type_name = child.dataType().simpleString()
        return _one_of(_column(child), [_plain(each, type_name) for each in _few(condition.hset().toSeq())])
    return None


def _compared(made: Any, column: Any, value: Any) -> spark.Filter | None:  # noqa: ANN401 - as above
    name, found = _column(column), _value(value)
    return None if name is None or found is None else made((name,), found)


def _one_of(name: str | None, values: list[Any]) -> spark.Filter | None:
    return None if name is None or not values or None in values else spark.In((name,), tuple(values))


def _few(found: Any) -> list[Any]:  # noqa: ANN401 - as above
    """None of them, where there are so many that looking at them would take longer than reading."""
    return sequence(found) if found.size() <= _VALUES_MAX else []


def _column(expression: Any) -> str | None:  # noqa: ANN401 - as above
    name = expression.name() if expression.getClass().getSimpleName() == "AttributeReference" else None
    return name if name in _COLUMNS else None


def _value(expression: Any) -> Any:  # noqa: ANN401 - None: no value that a scope knows
    if expression.getClass().getSimpleName() != "Literal":
        return None
    return _plain(expression.value(), expression.dataType().simpleString())


def _plain(value: Any, type_name: str) -> Any:  # noqa: ANN401 - as above
    """Spark holds times as microseconds, and text as an object of its own."""
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
