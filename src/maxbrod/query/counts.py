"""Counts of whole tables by topic and partition, from the catalog: without Spark, in the time of opening an archive.

Only the plainest form is understood here. Everything else is left to Spark, and so are counts that the catalog does not
know exactly.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maxbrod.table.read.counts import Count

_QUERY: Final = re.compile(
    r"""\s* SELECT \s+ (?P<items>[\w\s,*()]+?) \s+ FROM \s+ (?P<table>`[^`]+`|[A-Za-z_]\w*)
        (?: \s+ GROUP \s+ BY \s+ (?P<by>[\w\s,]+?) )? (?: \s+ ORDER \s+ BY \s+ (?P<order>[\w\s,]+?) )? \s* ;? \s*""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_ITEM: Final = re.compile(
    r"(?P<what>topic|partition|(?i:count)\s*\(\s*[*1]\s*\))(?:\s+(?i:AS)\s+(?P<alias>[A-Za-z_]\w*))?", re.ASCII
)
_TYPES: Final = {"topic": pa.string(), "partition": pa.int32(), "count": pa.int64()}
SPARK_TYPES: Final = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuery:
    """`SELECT topic, partition, count(*) FROM table GROUP BY topic, partition`, or with fewer columns."""

    table: str
    columns: tuple[tuple[str, str], ...]
    """The kind of each column, `topic`, `partition` or `count`, and its name."""
    order: tuple[str, ...] = ()
    """The columns that the rows are sorted by, of the same three."""

    def table_of(self, counts: Iterable[Count]) -> pa.Table:
        """The answer."""
        by = [what for what, _ in self.columns if what != "count"]
        found: Counter[tuple[Any, ...]] = Counter()
        for each in counts:
            found[tuple(getattr(each, name) for name in by)] += each.records
        if not by:
            # Without groups there is a row even if there are no records.
            found[()] += 0
        rows = [{**dict(zip(by, group, strict=True)), "count": count} for group, count in found.items()]
        rows.sort(key=lambda row: tuple(row[what] for what in self.order or by))
        columns = [pa.array([row[what] for row in rows], _TYPES[what]) for what, _ in self.columns]
        return pa.table(columns, [name for _, name in self.columns])


def parse_count(sql: str) -> CountQuery | None:
    """None: Spark must answer it."""
    found = _QUERY.fullmatch(sql)
    items = [_ITEM.fullmatch(word.strip()) for word in found["items"].split(",")] if found else []
    columns: list[tuple[str, str]] = []
    for item in items:
        if item is None:
            return None
        what = item["what"] if item["what"] in _TYPES else "count"
        columns.append((what, item["alias"] or ("count(1)" if what == "count" else what)))
    kinds = [what for what, _ in columns]
    by = _names(found["by"] if found else None, [kind for kind in kinds if kind != "count"])
    order = _names(found["order"] if found else None, kinds)
    wanted = sorted(kind for kind in kinds if kind != "count")
    # Names that occur twice, and columns that take the name of another one, are Spark's business.
    plain = len({name.lower() for _, name in columns}) == len(columns) and len(set(kinds)) == len(kinds)
    plain = plain and not any(name.lower() in _TYPES and name != what for what, name in columns)
    ordered = set(order) <= set(wanted) or bool(found and found["order"].strip().lower() == "all")
    if found is None or kinds.count("count") != 1 or not plain or sorted(by) != wanted or not ordered:
        return None
    return CountQuery(table=found["table"].strip("`"), columns=tuple(columns), order=tuple(order))


def _names(text: str | None, every: list[str]) -> list[str]:
    """The names in a list; `ALL` means every column."""
    if text is not None and text.strip().lower() == "all":
        return every
    return [word.strip() for word in (text or "").split(",")] if text else []


def shown(rows: pa.Table, form: str) -> pa.Table:
    """The rows in a form of `maxbrod.table.results`."""
    return _FORMS[form](rows)


def _as_text(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([(name, pa.string()) for name in rows.column_names]))


def _as_json(rows: pa.Table) -> pa.Table:
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows.to_pylist()]
    return pa.table({"json": pa.array(lines, pa.string())})


_FORMS: Final[dict[str, Callable[[pa.Table], pa.Table]]] = {
    "arrow": lambda rows: rows,
    "csv": lambda rows: rows,
    "text": _as_text,
    "json": _as_json,
}


def view_of(name: str, topics: Sequence[str], records: str) -> tuple[bool, str | None]:
    """True if there is such a table of records, and its topic if it is one of a topic. Names ignore case."""
    if name.lower() == records:
        return True, None
    topic = next((each for each in topics if each.lower() == name.lower()), None)
    return topic is not None, topic
