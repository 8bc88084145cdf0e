"""The one gate for rows: whatever reads them from a catalog, or commits them to one, goes through it.

A catalog may come from anyone, so no row is believed before it could mean something: of a kind that is known, with the
columns that its kind has, names that stay inside the archive, and numbers that add up. Vectorised: a million rows take
less than reading them does. That rows tile their partitions is checked in `tiling`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import Kind
from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.model import GapReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Holds = Callable[[pa.Table], Any]

_INT64_MAX: Final = 2**63 - 1
_NAME_BYTES_MAX: Final = 1024
_PART_BYTES_MAX: Final = 255
_OUTSIDE: Final = r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f\\]|^\.maxbrod-tmp/"
"""As `storage.names` has it: no part of a name is empty, `.` or `..`."""
_UNPRINTABLE: Final = r"[\x00-\x1f\x7f/\\]"
_COUNTS: Final = ("records", "bytes", "raw_bytes", "control_records")
_DAMAGED_HINT: Final = (
    "the catalog is damaged, or another program or a newer release wrote it; bring back its folder 'catalog' from a "
    "copy or from older object versions"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The first row at fault, the column, and what is wrong with it."""

    row: int
    column: str
    complaint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """What must hold of a column in rows of these kinds. `also` are the columns that it is compared with."""

    column: str
    complaint: str
    holds: Holds
    kinds: Sequence[Kind] = tuple(Kind)
    also: Sequence[str] = ()
    native: bool = False
    """Only in archives of our own layout."""


def check_rows(table: pa.Table) -> None:
    """RefusedError: one of the rows, which are about to be committed, is one that no reader would admit."""
    fault = find_fault(table)
    if fault is not None:
        raise RefusedError(
            f"a row cannot be committed: {_told(fault, _values(table, fault.row))}",
            operation="commit to the catalog",
            **_place(_values(table, fault.row)),
            hint="nothing was changed; this is a mistake of the program that made the row",
        )


def refused_row(fault: Fault, whole: pa.Table, *, hint: str = _DAMAGED_HINT) -> CorruptDataError:
    """The error for a row that was read. `whole` has the same rows with as many columns as there are, to name it."""
    values = _values(whole, fault.row)
    return CorruptDataError(
        f"a row of the catalog makes no sense: {_told(fault, values)}",
        operation="read the catalog",
        **_place(values),
        hint=hint,
    )


def find_fault(table: pa.Table, *, native: bool = True) -> Fault | None:
    """The first fault of rows that were read, with whichever columns; `kind` must be among them."""
    kinds: dict[tuple[Kind, ...], Any] = {}
    for rule in _RULES:
        if (rule.native and not native) or not {rule.column, *rule.also} <= set(table.column_names):
            continue
        holds = pc.fill_null(rule.holds(table), False)
        if (wanted := tuple(rule.kinds)) != tuple(Kind):
            if wanted not in kinds:
                kinds[wanted] = pc.fill_null(pc.is_in(table["kind"], value_set=_strings(*wanted)), False)
            holds = pc.or_(pc.invert(kinds[wanted]), holds)
        row = pc.index(holds, False).as_py()
        if row >= 0:
            return Fault(row=row, column=rule.column, complaint=rule.complaint)
    return next(_overflows(table), None)


def _overflows(table: pa.Table) -> Iterator[Fault]:
    """Counts whose sum has no 64 bits would come out negative wherever they are added up."""
    counts = {column: table[column] for column in _COUNTS if column in table.column_names}
    if {"base_offset", "end_offset"} <= set(table.column_names):
        counts["end_offset"] = pc.subtract(table["end_offset"], table["base_offset"])
    for column, values in counts.items():
        if (pc.sum(pc.cast(values, pa.float64(), safe=False)).as_py() or 0) > _INT64_MAX:
            row = pc.index(values, pc.max(values)).as_py()
            yield Fault(row=row, column=column, complaint="is more, with those of the other rows, than 64 bits hold")


def _given(column: str) -> Holds:
    return lambda table: pc.is_valid(table[column])


def _at_least(column: str, least: int) -> Holds:
    return lambda table: pc.greater_equal(table[column], least)


def _one_of(column: str, values: Sequence[str]) -> Holds:
    return lambda table: pc.is_in(table[column], value_set=_strings(*values))


def _or_null(column: str, holds: Holds) -> Holds:
    return lambda table: pc.or_kleene(pc.is_null(table[column]), holds(table))


def _each(column: str, holds: Callable[[Any], Any]) -> Holds:
    """Of names that many rows share, each is looked at once."""

    def check(table: pa.Table) -> Any:  # noqa: ANN401 - an Arrow array
        unique = pc.drop_null(pc.unique(table[column]))
        wrong = unique.filter(pc.invert(pc.fill_null(holds(unique), False)))
        known = pc.is_valid(table[column])
        return pc.and_(known, pc.invert(pc.is_in(table[column], value_set=wrong))) if len(wrong) else known

    return check


def _printable(names: Any) -> Any:  # noqa: ANN401 - Arrow arrays
    size = pc.binary_length(names)
    fits = pc.and_(pc.greater(size, 0), pc.less_equal(size, _NAME_BYTES_MAX))
    return pc.and_(fits, pc.invert(pc.match_substring_regex(names, _UNPRINTABLE)))


def _inside(table: pa.Table) -> Any:  # noqa: ANN401 - Arrow arrays
    names, size = table["path"], pc.binary_length(table["path"])
    holds = pc.and_(pc.less_equal(size, _NAME_BYTES_MAX), pc.invert(pc.match_substring_regex(names, _OUTSIDE)))
    if (pc.max(size).as_py() or 0) > _PART_BYTES_MAX:
        holds = pc.and_(holds, pc.invert(pc.match_substring_regex(names, f"[^/]{{{_PART_BYTES_MAX + 1}}}")))
    return holds


def _ends(table: pa.Table) -> Any:  # noqa: ANN401 - an Arrow array
    return pc.less_equal(table["position"], pc.subtract(_INT64_MAX, pc.max_element_wise(table["bytes"], 0)))


def _no_more_than_offsets(column: str) -> Holds:
    return lambda table: pc.less_equal(table[column], pc.subtract(table["end_offset"], table["base_offset"]))


def _transactions_are_whole(table: pa.Table) -> Any:  # noqa: ANN401 - an Arrow array
    """Lists are few and short, so that only where one has a hole the rows are looked at one by one."""
    column = table["aborted"].combine_chunks()
    entries = pc.list_flatten(column)
    fields = [pc.struct_field(entries, name) for name in ("producer_id", "first_offset", "last_offset")]
    if not any(each.null_count for each in (entries, *fields)):
        return pa.chunked_array([pa.repeat(pa.scalar(True), table.num_rows)])
    whole = [
        each is None or all(entry is not None and None not in entry.values() for entry in each)
        for each in column.to_pylist()
    ]
    return pa.chunked_array([pa.array(whole, pa.bool_())])


_LIVE: Final = (Kind.DATA, Kind.GAP)
_RANGED: Final = (*_LIVE, Kind.REPLACED)
_DATA: Final = (Kind.DATA,)
_RULES: Final = (
    _Rule(column="kind", complaint="is unknown", holds=_one_of("kind", tuple(Kind))),
    _Rule(column="run_id", complaint="names no run", holds=_each("run_id", _printable)),
    _Rule(column="written_at", complaint="is no time", holds=_given("written_at")),
    _Rule(column="topic", complaint="is no name of a topic", holds=_each("topic", _printable), kinds=_RANGED),
    _Rule(column="topic_id", complaint="is no topic's id", holds=_each("topic_id", _printable), kinds=_RANGED),
    _Rule(column="partition", complaint="is no partition", holds=_at_least("partition", 0), kinds=_RANGED),
    _Rule(column="base_offset", complaint="is no offset", holds=_at_least("base_offset", 0), kinds=_RANGED),
    _Rule(
        column="end_offset",
        complaint="is not above base_offset",
        holds=lambda table: pc.greater(table["end_offset"], table["base_offset"]),
        kinds=_RANGED,
        also=("base_offset",),
    ),
    _Rule(
        column="reason",
        complaint="is no reason that is known",
        holds=_one_of("reason", tuple(GapReason)),
        kinds=(Kind.GAP,),
    ),
    _Rule(
        column="reason",
        complaint="is no reason that is known",
        holds=_or_null("reason", _one_of("reason", tuple(GapReason))),
        kinds=(Kind.DATA, Kind.REPLACED),
    ),
    _Rule(column="path", complaint="names no object", holds=_given("path"), kinds=_DATA),
    _Rule(column="path", complaint="names no object of the archive", holds=_or_null("path", _inside)),
    _Rule(column="position", complaint="is no position in an object", holds=_at_least("position", 0), kinds=_DATA),
    _Rule(column="bytes", complaint="is no size", holds=_at_least("bytes", 1), kinds=_DATA, native=True),
    _Rule(column="bytes", complaint="is no size", holds=_at_least("bytes", 0), kinds=_DATA),
    _Rule(column="position", complaint="is beyond any object", holds=_ends, kinds=_DATA, also=("bytes",)),
    _Rule(column="raw_bytes", complaint="is no size", holds=_at_least("raw_bytes", 0), kinds=_DATA),
    _Rule(column="codec", complaint="names no codec", holds=_given("codec"), kinds=_DATA),
    _Rule(column="records", complaint="is no count", holds=_at_least("records", 0), kinds=_DATA),
    _Rule(
        column="records",
        complaint="is more than the offsets that it has",
        holds=_no_more_than_offsets("records"),
        kinds=_DATA,
        also=("base_offset", "end_offset"),
    ),
    _Rule(
        column="control_records",
        complaint="is no count, or more than its records",
        holds=_or_null(
            "control_records",
            lambda table: pc.and_(
                pc.greater_equal(table["control_records"], 0), pc.less_equal(table["control_records"], table["records"])
            ),
        ),
        kinds=_DATA,
        also=("records",),
    ),
    _Rule(column="first_leader_epoch", complaint="is no epoch", holds=_given("first_leader_epoch"), kinds=_DATA),
    _Rule(column="last_leader_epoch", complaint="is no epoch", holds=_given("last_leader_epoch"), kinds=_DATA),
    _Rule(
        column="aborted", complaint="has a transaction without its numbers", holds=_transactions_are_whole, kinds=_DATA
    ),
    _Rule(column="digest", complaint="is no digest", holds=_given("digest"), kinds=_DATA),
    _Rule(column="level", complaint="is no level", holds=_given("level"), kinds=_DATA),
    _Rule(column="details", complaint="has no details", holds=_given("details"), kinds=(Kind.RUN, Kind.REPLACED)),
    _Rule(
        column="details",
        complaint="is for archives of other layouts",
        holds=lambda table: pc.is_null(table["details"]),
        kinds=_LIVE,
        native=True,
    ),
)
"""In the order in which they are told. A new column wants a rule here, and nothing else."""


def _values(table: pa.Table, row: int) -> dict[str, Any]:
    values: dict[str, Any] = table.slice(row, 1).to_pylist()[0]
    return values


def _told(fault: Fault, values: dict[str, Any]) -> str:
    whose = f"(kind {_short(values.get('kind'))}, run {_short(values.get('run_id'))})"
    return f"its {fault.column} {_short(values.get(fault.column))} {fault.complaint} {whose}"


def _place(values: dict[str, Any]) -> dict[str, Any]:
    """Where the row stands, for an error."""
    topic, partition = values.get("topic"), values.get("partition")
    if topic is None:
        return {"object_name": f"run {_short(values.get('run_id'))}"}
    return {"object_name": f"{_short(topic)[1:-1]}-{partition}", "offset": values.get("base_offset")}


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _strings(*values: str) -> pa.Array:
    return pa.array([str(value) for value in values], pa.string())
