"""The one gate for rows: every row that is read from a catalog or committed to one passes it.

A catalog may come from anyone. A row is used only if its kind is known, it has the columns of its kind, its names stay
inside the archive, and its numbers add up: the rules of `schema.COLUMNS`. The checks are vectorised: for a million rows
they take less time than reading them. `tiling` checks that rows tile their partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import COLUMNS, INT64_MAX, Kind
from maxbrod.errors import CorruptDataError, RefusedError

_EVERY_KIND: Final = tuple(Kind)
_COUNTS: Final = ("records", "bytes", "raw_bytes", "control_records")
_DAMAGED_HINT: Final = (
    "the catalog is damaged, or another program or a newer release wrote it; 'maxbrod repair' rebuilds it from the "
    "objects, or restore its folder 'catalog' from a copy or from older object versions"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """The first row at fault, the column, and what is wrong with it."""

    row: int
    column: str
    complaint: str


def check_rows(table: pa.Table) -> None:
    """RefusedError: no reader would accept one of the rows that are about to be committed."""
    fault = find_fault(table)
    if fault is not None:
        values = _values(table, fault.row)
        raise RefusedError(
            f"a row cannot be committed: {_describe(fault, values)}",
            operation="commit to the catalog",
            **_place(values),
            hint="nothing was changed; this is a bug in the program that made the row",
        )


def refused_row(fault: RowFault, whole: pa.Table, *, hint: str = _DAMAGED_HINT) -> CorruptDataError:
    """The error for a row that was read. `whole` has the same rows with all available columns, to identify the row."""
    values = _values(whole, fault.row)
    return CorruptDataError(
        f"a row of the catalog is invalid: {_describe(fault, values)}",
        operation="read the catalog",
        **_place(values),
        hint=hint,
    )


def find_fault(table: pa.Table, *, native: bool = True, totals: Totals | None = None) -> RowFault | None:
    """The first fault in the columns that the table has; `kind` must be among them.

    `totals` are the sums of the pieces before this one. A commit checks a handful of rows, so that what counts is the
    number of calls: where a rule holds for every row, nothing more is computed.
    """
    present = set(table.column_names)
    exempt: dict[tuple[Kind, ...], Any] = {}
    for column in COLUMNS:
        for rule in column.rules:
            if (rule.native and not native) or column.name not in present or not present.issuperset(rule.also):
                continue
            holds = rule.holds(table[column.name], table)
            kinds = tuple(rule.kinds or column.rows)
            if kinds != _EVERY_KIND:
                if kinds not in exempt:
                    exempt[kinds] = _is_none_of(table["kind"], kinds)
                holds = pc.or_kleene(exempt[kinds], holds)
            # A null is a value that the rule cannot be sure of, so it is a fault too.
            if pc.all(holds, skip_nulls=False, min_count=0).as_py() is not True:
                row = pc.index(pc.fill_null(holds, False), False).as_py()
                return RowFault(row=row, column=column.name, complaint=rule.complaint)
    return (Totals() if totals is None else totals).add(table)


def _is_none_of(found: Any, kinds: tuple[Kind, ...]) -> Any:  # noqa: ANN401 - Arrow arrays
    return pc.invert(pc.is_in(found, value_set=pa.array([str(kind) for kind in kinds], pa.string())))


class Totals:
    """The sums of counts over the pieces of a table. A sum beyond 64 bits would turn negative wherever it is used."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, piece: pa.Table) -> RowFault | None:
        """Count these rows too; the fault if a sum exceeds 64 bits with them."""
        counts = {column: piece[column] for column in _COUNTS if column in piece.column_names}
        if {"base_offset", "end_offset"} <= set(piece.column_names):
            counts["end_offset"] = pc.subtract(piece["end_offset"], piece["base_offset"])
        for column, values in counts.items():
            total = pc.sum(pc.cast(values, pa.float64(), safe=False)).as_py() or 0
            self._sums[column] = self._sums.get(column, 0.0) + total
            if self._sums[column] > INT64_MAX:
                row = pc.index(values, pc.max(values)).as_py()
                return RowFault(
                    row=row, column=column, complaint="and those of the other rows add up to more than 64 bits"
                )
        return None


def _values(table: pa.Table, row: int) -> dict[str, Any]:
    values: dict[str, Any] = table.slice(row, 1).to_pylist()[0]
    return values


def _describe(fault: RowFault, values: dict[str, Any]) -> str:
    owner = f"(kind {_short(values.get('kind'))}, run {_short(values.get('run_id'))})"
    return f"its {fault.column} {_short(values.get(fault.column))} {fault.complaint} {owner}"


def _place(values: dict[str, Any]) -> dict[str, Any]:
    """The object and the offset of an error about the row."""
    topic, partition = values.get("topic"), values.get("partition")
    if topic is None:
        return {"object_name": f"run {_short(values.get('run_id'))}"}
    return {"object_name": f"{_short(topic)[1:-1]}-{partition}", "offset": values.get("base_offset")}


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
