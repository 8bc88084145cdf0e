"""Refuses rows that no reader could use, before anything is written. Vectorised; tiling is checked in `tiling`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import GapReason, Kind
from maxbrod.errors import RefusedError


def check_rows(table: pa.Table) -> None:
    """RefusedError names the first row at fault."""
    kind = table["kind"]
    ranged = pc.not_equal(kind, Kind.RUN)
    data = pc.equal(kind, Kind.DATA)
    _demand(table, pc.is_in(kind, value_set=_strings(*Kind)), "its kind is unknown")
    _demand(table, pc.and_(pc.is_valid(table["run_id"]), pc.is_valid(table["written_at"])), "it names no run or time")
    _demand(table, _implies(ranged, _range_holds(table)), "its offsets are no range of a partition")
    _demand(table, _implies(data, _slice_holds(table)), "it names no slice of an object")
    reasons = pc.is_in(table["reason"], value_set=_strings(*GapReason))
    _demand(table, _implies(pc.equal(kind, Kind.GAP), reasons), "it gives no known reason")
    _demand(table, _implies(pc.is_valid(table["reason"]), reasons), "its reason is unknown")
    told = pc.is_in(kind, value_set=_strings(Kind.RUN, Kind.REPLACED))
    _demand(table, _implies(told, pc.is_valid(table["details"])), "it has no details")


def _range_holds(table: pa.Table) -> Any:  # noqa: ANN401 - an Arrow array
    named = pc.and_(pc.is_valid(table["topic"]), pc.is_valid(table["topic_id"]))
    numbered = pc.and_(pc.greater_equal(table["partition"], 0), pc.greater_equal(table["base_offset"], 0))
    return pc.and_(pc.and_(named, numbered), pc.less(table["base_offset"], table["end_offset"]))


def _slice_holds(table: pa.Table) -> Any:  # noqa: ANN401 - an Arrow array
    sized = pc.and_(pc.greater_equal(table["position"], 0), pc.greater(table["bytes"], 0))
    return pc.and_(pc.and_(pc.is_valid(table["path"]), pc.is_valid(table["digest"])), sized)


def _implies(condition: Any, consequence: Any) -> Any:  # noqa: ANN401 - Arrow arrays
    return pc.or_(pc.invert(condition), pc.fill_null(consequence, False))


def _demand(table: pa.Table, holds: Any, complaint: str) -> None:  # noqa: ANN401 - an Arrow array
    row = pc.index(holds, False).as_py()
    if row < 0:
        return
    values = table.slice(row, 1).to_pylist()[0]
    raise RefusedError(
        f"a row cannot be committed: {complaint} (kind {values['kind']!r}, run {values['run_id']!r})",
        operation="commit to the catalog",
        object_name=f"{values['topic']}-{values['partition']}",
        offset=values["base_offset"],
        hint="nothing was changed; this is a mistake of the program that made the row",
    )


def _strings(*values: str) -> pa.Array:
    return pa.array([str(value) for value in values], pa.string())
