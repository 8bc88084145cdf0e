"""The columns of the catalog, and the version of the format.

A column is declared once, in `COLUMNS`: its type, the kinds of rows that have it, and the rules that its values obey.
The Arrow schema, the mapping of `rows` and the checks of `validity` follow from the declaration.

A release reads every archive of its own major version. A minor version may add columns, which older releases copy
without interpreting them. A change to the meaning of a row needs a new major version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.batch.columns import text_array
from maxbrod.bounds import PARTITIONS_MAX
from maxbrod.errors import CorruptDataError, UnsupportedFormatError
from maxbrod.model import GapReason

Holds = Callable[[Any, pa.Table], Any]
"""From a column and the table that it belongs to, a mask of the rows for which the rule holds."""

FORMAT_PROPERTY: Final = "maxbrod.format"
FORMAT_MAJOR: Final = 1
FORMAT_VERSION: Final = f"{FORMAT_MAJOR}.2"
_CHECKSUMS_SINCE: Final = 2
INT64_MAX: Final = 2**63 - 1


class Kind(StrEnum):
    """The statement of a row about its offsets. A run has no offsets."""

    DATA = "data"
    GAP = "gap"
    RUN = "run"
    REPLACED = "replaced"
    """Data or a gap that a later commit replaced. Only queries as of an older run return it. See `replaced`."""
    BUILDING = "building"
    """Data or a gap of a generation that is not active yet. No query of the archive returns it. See `generations`."""
    GENERATIONS = "generations"
    """The generations of a compacted topic and their states; it has no offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule for a column in rows of these kinds; None: in those that the column is declared for."""

    complaint: str
    holds: Holds
    kinds: Sequence[Kind] | None = None
    also: Sequence[str] = ()
    """The other columns that `holds` reads."""
    native: bool = False
    """Applies only to archives of our own layout."""


class Column:
    def __init__(self, name: str, kind: pa.DataType, rows: Sequence[Kind], *rules: Rule, added: bool = False) -> None:
        """`rows`: the kinds of rows that have the column. `added`: a minor version after 1.0 introduced it."""
        self.name: Final = name
        self.type: Final = kind
        self.rows: Final = rows
        self.rules: Final = rules
        self.added: Final = added


# Predicates of rules, all of them vectorised.


def _given(values: Any, _: pa.Table) -> Any:  # noqa: ANN401 - Arrow arrays
    return pc.is_valid(values)


def _partition(values: Any, _: pa.Table) -> Any:  # noqa: ANN401 - Arrow arrays
    return pc.and_(pc.greater_equal(values, 0), pc.less(values, PARTITIONS_MAX))


def _at_least(least: int) -> Holds:
    return lambda values, _: pc.greater_equal(values, least)


def _one_of(names: type[StrEnum]) -> Holds:
    known = text_array(map(str, names))
    return lambda values, _: pc.is_in(values, value_set=known)


def _or_null(holds: Holds) -> Holds:
    return lambda values, table: pc.or_kleene(pc.is_null(values), holds(values, table))


def _name(values: Any, _: pa.Table) -> Any:  # noqa: ANN401 - Arrow arrays
    """Printable and safe in a path. Many rows share a name, so each distinct one is checked once."""
    unique = pc.drop_null(pc.unique(values))
    size = pc.binary_length(unique)
    fits = pc.and_(pc.greater(size, 0), pc.less_equal(size, _NAME_BYTES_MAX))
    wrong = unique.filter(pc.invert(pc.and_(fits, pc.invert(pc.match_substring_regex(unique, _UNPRINTABLE)))))
    known = pc.is_valid(values)
    return pc.and_(known, pc.invert(pc.is_in(values, value_set=wrong))) if len(wrong) else known


def _inside(paths: Any, _: pa.Table) -> Any:  # noqa: ANN401 - Arrow arrays
    size = pc.binary_length(paths)
    holds = pc.and_(pc.less_equal(size, _NAME_BYTES_MAX), pc.invert(pc.match_substring_regex(paths, _OUTSIDE)))
    if (pc.max(size).as_py() or 0) > _PART_BYTES_MAX:
        holds = pc.and_(holds, pc.invert(pc.match_substring_regex(paths, f"[^/]{{{_PART_BYTES_MAX + 1}}}")))
    return holds


def _whole_transactions(values: Any, table: pa.Table) -> Any:  # noqa: ANN401 - Arrow arrays
    """No null inside. Rows are examined one by one only if some list has a null: lists are few and short."""
    column = values.combine_chunks()
    entries = pc.list_flatten(column)
    fields = [pc.struct_field(entries, name) for name in ("producer_id", "first_offset", "last_offset")]
    if not any(array.null_count for array in (entries, *fields)):
        return pa.chunked_array([pa.repeat(pa.scalar(True), table.num_rows)])
    whole = [
        spans is None or all(entry is not None and None not in entry.values() for entry in spans)
        for spans in column.to_pylist()
    ]
    return pa.chunked_array([pa.array(whole, pa.bool_())])


_NAME_BYTES_MAX: Final = 1024
_PART_BYTES_MAX: Final = 255
_OUTSIDE: Final = r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\\]|^\.maxbrod-tmp/"
"""The rule of `storage.urls`: no part of a name is empty, `.` or `..`."""
_UNPRINTABLE: Final = r"[\x00-\x1f\x7f-\x{9f}/\\\x{200b}-\x{200f}\x{2028}-\x{202e}\x{2060}-\x{2069}\x{feff}]"
"""Control characters, and those that hide in a text or turn its direction: a name looks as it is."""

ABORTED_TYPE: Final = pa.list_(
    pa.struct([("producer_id", pa.int64()), ("first_offset", pa.int64()), ("last_offset", pa.int64())])
)
_TEXT, _INT32, _INT64 = pa.string(), pa.int32(), pa.int64()
_ALL: Final = tuple(Kind)
_LIVE: Final = (Kind.DATA, Kind.GAP)
_PAST_OR_FUTURE: Final = (Kind.REPLACED, Kind.BUILDING)
_RANGED: Final = (*_LIVE, *_PAST_OR_FUTURE)
_NAMED: Final = (*_RANGED, Kind.GENERATIONS)
_DATA: Final = (Kind.DATA,)
_EPOCH: Final = Rule(complaint="is not an epoch", holds=_given)

COLUMNS: Final = (
    Column("topic", _TEXT, _NAMED, Rule(complaint="is not a topic name", holds=_name)),
    Column("topic_id", _TEXT, _NAMED, Rule(complaint="is not a topic id", holds=_name)),
    Column("partition", _INT32, _RANGED, Rule(complaint="is not a partition", holds=_partition)),
    Column("base_offset", _INT64, _RANGED, Rule(complaint="is not an offset", holds=_at_least(0))),
    Column(
        "end_offset",
        _INT64,
        _RANGED,
        Rule(
            complaint="is not above base_offset",
            holds=lambda ends, table: pc.greater(ends, table["base_offset"]),
            also=("base_offset",),
        ),
    ),
    Column("kind", _TEXT, _ALL, Rule(complaint="is unknown", holds=_one_of(Kind))),
    Column(
        "reason",
        _TEXT,
        _LIVE,
        Rule(complaint="is not a known reason", holds=_one_of(GapReason), kinds=(Kind.GAP,)),
        Rule(
            complaint="is not a known reason",
            holds=_or_null(_one_of(GapReason)),
            kinds=(Kind.DATA, *_PAST_OR_FUTURE),
        ),
    ),
    Column(
        "path",
        _TEXT,
        (Kind.DATA, Kind.RUN),
        Rule(complaint="names no object", holds=_given, kinds=_DATA),
        Rule(complaint="names no object of the archive", holds=_or_null(_inside), kinds=_ALL),
    ),
    Column(
        "position",
        _INT64,
        _DATA,
        Rule(complaint="is not a position in an object", holds=_at_least(0)),
        Rule(
            complaint="is beyond any object",
            holds=lambda starts, table: pc.less_equal(
                starts, pc.subtract(INT64_MAX, pc.max_element_wise(table["bytes"], 0))
            ),
            also=("bytes",),
        ),
    ),
    Column(
        "bytes",
        _INT64,
        _DATA,
        Rule(complaint="is not a size", holds=_at_least(1), native=True),
        Rule(complaint="is not a size", holds=_at_least(0)),
    ),
    Column("raw_bytes", _INT64, _DATA, Rule(complaint="is not a size", holds=_at_least(0))),
    Column("codec", _TEXT, _DATA, Rule(complaint="names no codec", holds=_given)),
    Column(
        "records",
        _INT64,
        _DATA,
        Rule(complaint="is not a count", holds=_at_least(0)),
        Rule(
            complaint="is more than its number of offsets",
            holds=lambda records, table: pc.less_equal(records, pc.subtract(table["end_offset"], table["base_offset"])),
            also=("base_offset", "end_offset"),
        ),
    ),
    Column("min_timestamp", _INT64, _DATA),
    Column("max_timestamp", _INT64, _DATA),
    Column("first_leader_epoch", _INT32, _DATA, _EPOCH),
    Column("last_leader_epoch", _INT32, _DATA, _EPOCH),
    Column(
        "aborted",
        ABORTED_TYPE,
        _DATA,
        Rule(complaint="has a transaction without its numbers", holds=_whole_transactions),
    ),
    Column("digest", _TEXT, _DATA, Rule(complaint="is not a digest", holds=_given)),
    Column("level", _INT32, _DATA, Rule(complaint="is not a level", holds=_given)),
    Column("run_id", _TEXT, _ALL, Rule(complaint="names no run", holds=_name)),
    Column("written_at", _INT64, _ALL, Rule(complaint="is not a time", holds=_given)),
    Column(
        "details",
        _TEXT,
        (Kind.DATA, Kind.RUN, *_PAST_OR_FUTURE, Kind.GENERATIONS),
        Rule(complaint="is missing", holds=_given, kinds=(Kind.RUN, *_PAST_OR_FUTURE, Kind.GENERATIONS)),
        Rule(
            complaint="is only for archives of other layouts",
            holds=lambda details, _: pc.is_null(details),
            kinds=_LIVE,
            native=True,
        ),
    ),
    Column("min_timestamp_exact", pa.bool_(), _DATA, added=True),
    Column(
        "control_records",
        _INT64,
        _DATA,
        Rule(
            complaint="is not a count, or is more than its records",
            holds=_or_null(
                lambda markers, table: pc.and_(pc.greater_equal(markers, 0), pc.less_equal(markers, table["records"]))
            ),
            also=("records",),
        ),
        added=True,
    ),
)

SCHEMA: Final = pa.schema([(column.name, column.type) for column in COLUMNS])
ADDED_COLUMNS: Final = frozenset(column.name for column in COLUMNS if column.added)
"""Null in every row of an archive that was created before the column was added."""

SORT_ORDER: Final = [("topic_id", "ascending"), ("partition", "ascending"), ("base_offset", "ascending")]
"""The order of rows in a data file: the rows of a partition are adjacent. Runs have no topic and come last."""

TABLE_PROPERTIES: Final = {
    FORMAT_PROPERTY: FORMAT_VERSION,
    "delta.checkpointInterval": "32",
    # Queries as of a run use its snapshot, never Delta's time travel. The log is kept only for readers in progress.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
}


def fields_of(kind: Kind) -> tuple[str, ...]:
    """The columns that a row of this kind has, besides `kind` itself."""
    return tuple(column.name for column in COLUMNS if kind in column.rows and column.name != "kind")


def check_format(properties: Mapping[str, str | None], schema: pa.Schema, *, name: str) -> None:
    """Refuse a table that this release may not understand."""
    version = properties.get(FORMAT_PROPERTY)
    parts = re.fullmatch(r"(\d+)\.(\d+)", version or "")
    if parts is None:
        raise UnsupportedFormatError(
            "the table is no catalog of maxbrod" if version is None else f"its format version is {version!r}",
            operation="open the catalog",
            object_name=name,
            hint=f"every catalog has the table property {FORMAT_PROPERTY}, such as {FORMAT_VERSION}",
        )
    if int(parts[1]) != FORMAT_MAJOR:
        raise UnsupportedFormatError(
            f"the archive has format {version}, this release reads {FORMAT_MAJOR}.x",
            operation="open the catalog",
            object_name=name,
            hint="use the release of maxbrod that wrote it, or a newer one",
        )
    missing = [column.name for column in COLUMNS if column.name not in schema.names and not column.added]
    if missing:
        raise UnsupportedFormatError(
            f"the catalog has no column {', '.join(missing)}", operation="open the catalog", object_name=name
        )
    for field in SCHEMA:
        if field.name in schema.names and not _is_same_type(schema.field(field.name).type, field.type):
            raise CorruptDataError(
                f"the catalog's column {field.name} is of type {schema.field(field.name).type}, not {field.type}",
                operation="open the catalog",
                object_name=name,
                hint="another program wrote it; 'maxbrod repair --rebuild' makes the catalog again from the objects",
            )


def has_checksums(properties: Mapping[str, str | None]) -> bool:
    """True if the archive was created in a format whose log entries have checksums; `check_format` has passed it."""
    return int((properties[FORMAT_PROPERTY] or "").split(".")[1]) >= _CHECKSUMS_SINCE


def _is_same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    """Ignores the names of list items, which differ between writers of Delta tables."""
    if pa.types.is_list(expected):
        return pa.types.is_list(found) and _is_same_type(found.value_type, expected.value_type)
    if pa.types.is_struct(expected):
        same = pa.types.is_struct(found) and [part.name for part in found] == [part.name for part in expected]
        return same and all(_is_same_type(one.type, other.type) for one, other in zip(found, expected, strict=True))
    return bool(found == expected)
