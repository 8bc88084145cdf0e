"""Replaced rows: kept, so that queries as of an older run return what that run left.

Each replacement of rows of a partition, because its log was truncated or a gap was filled, is a *revision* of the
partition, counted from 1. Replaced rows stay in the catalog with the revision that replaced them, and a run's snapshot
records how many revisions there were. No clock is needed: see `as_it_was`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from maxbrod.catalog.schema import Kind
from maxbrod.errors import UnsupportedFormatError
from maxbrod.model import PartitionId

Revisions: TypeAlias = "Mapping[PartitionId, int]"
"""The number of replacements in a partition; 0 for partitions that it does not name."""
REVISION_COLUMNS: Final = ("topic_id", "partition", "details")
Intervals: TypeAlias = "list[tuple[int, int]]"
_PLACE: Final = ("topic_id", "partition", "base_offset", "end_offset")
_NO_REVISION: Final = "a replaced row of the catalog lacks its former kind or its revision"


class _Details(BaseModel):
    """The kind that a row has had or will have, and the revision that replaced it or the generation that it is of."""

    model_config = ConfigDict(strict=True, extra="ignore")

    kind: Literal["data", "gap"]
    revision: PositiveInt = 0
    generation: PositiveInt = 0


def retire(rows: pa.Table, revisions: Revisions) -> pa.Table:
    """Rows of kind data and gap as rows of kind replaced; `revisions` are the current ones, each row gets the next."""
    return as_replaced(rows, [revisions.get(place, 0) + 1 for place in places_of(rows)])


def as_replaced(rows: pa.Table, numbers: Sequence[int]) -> pa.Table:
    """Rows of kind data and gap as rows of kind replaced, each by the revision of this number."""
    details = [
        json.dumps({"kind": kind, "revision": number}, sort_keys=True)
        for number, kind in zip(numbers, rows["kind"].to_pylist(), strict=True)
    ]
    return with_columns(rows, kind=[str(Kind.REPLACED)] * rows.num_rows, details=details)


def count_revisions(replaced: pa.Table) -> dict[PartitionId, int]:
    """The revisions of each partition, from rows of kind replaced with `REVISION_COLUMNS`."""
    found: dict[PartitionId, int] = {}
    for place, revision in zip(places_of(replaced), revisions_of(replaced), strict=True):
        found[place] = max(found.get(place, 0), revision)
    return found


def after_replacing(revisions: Revisions, rows: Iterable[Any]) -> dict[PartitionId, int]:
    """The revisions after one commit that replaces these rows of kind data and gap."""
    touched = {PartitionId(topic_id=row.topic_id, partition=row.partition) for row in rows}
    return {**revisions, **{place: revisions.get(place, 0) + 1 for place in touched}}


def revive(replaced: pa.Table) -> pa.Table:
    """Rows of kind replaced with their former kind."""
    return with_own_kind(replaced, "revision", _NO_REVISION)


def with_own_kind(rows: pa.Table, number: str, complaint: str) -> pa.Table:
    """Rows with the kind that their details tell. UnsupportedFormatError: they do not, or lack the number."""
    kinds = [_details(text, number, complaint).kind for text in rows["details"].to_pylist()]
    return with_columns(rows, kind=kinds, details=[None] * len(kinds))


def with_columns(rows: pa.Table, **columns: Sequence[str | None]) -> pa.Table:
    """The rows with these columns of text in place of their own."""
    for name, values in columns.items():
        column = rows.schema.get_field_index(name)
        rows = rows.set_column(column, rows.schema.field(column), pa.array(values, pa.string()))
    return rows


def as_it_was(
    live: pa.Table, replaced: pa.Table, revisions: Revisions, *, chosen: ds.Expression | None = None
) -> pa.Table:
    """The rows at the time of these revisions. `replaced` has all columns.

    `live` may be only some of the current rows: `chosen` is the condition that selected them. A row that a later
    revision replaced existed then, unless a revision in between had already replaced its offsets: then the row was both
    added and replaced later. The same holds for the current rows.
    """
    numbers = np.array(revisions_of(replaced), np.int64)
    places = places_of(replaced)
    known = np.array([revisions.get(place, 0) for place in places], np.int64)
    later = np.flatnonzero(numbers > known)
    if not later.size:
        return live
    spans = _spans(replaced, places, later, numbers)
    kept = [row for row in later.tolist() if not _came_later(spans[places[row]], replaced, row, int(numbers[row]))]
    found = revive(replaced.take(pa.array(kept, pa.int64())))
    if chosen is not None:
        found = ds.dataset(found).to_table(filter=chosen)
    return pa.concat_tables([_without(live, spans), found.select(live.column_names)])


def _spans(
    replaced: pa.Table, places: Sequence[PartitionId], rows: NDArray[np.intp], numbers: NDArray[np.int64]
) -> dict[PartitionId, dict[int, Intervals]]:
    """For each partition, which revision replaced which offsets. A revision may replace all rows of a partition."""
    base, end = (replaced[name].to_pylist() for name in ("base_offset", "end_offset"))
    found: dict[PartitionId, dict[int, list[tuple[int, int]]]] = {}
    for row in rows.tolist():
        found.setdefault(places[row], {}).setdefault(int(numbers[row]), []).append((base[row], end[row]))
    return {place: {revision: merge(spans) for revision, spans in spans.items()} for place, spans in found.items()}


def merge(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """Ascending and disjoint; neighbours become one."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted(intervals):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    return merged


def meets(intervals: Intervals, base: int, end: int) -> bool:
    """True if [base, end) shares an offset with one of these intervals, which `merge` has made."""
    place = bisect_right(intervals, base, key=lambda interval: interval[1])
    return place < len(intervals) and intervals[place][0] < end


def _came_later(spans: Mapping[int, Intervals], rows: pa.Table, row: int, revision: int) -> bool:
    base, end = rows["base_offset"][row].as_py(), rows["end_offset"][row].as_py()
    return any(number < revision and meets(intervals, base, end) for number, intervals in spans.items())


def _without(live: pa.Table, spans: Mapping[PartitionId, Mapping[int, Intervals]]) -> pa.Table:
    topics = pa.array(sorted({span.topic_id for span in spans}), pa.string())
    rows = np.flatnonzero(pc.is_in(live["topic_id"], value_set=topics).to_numpy())
    near = live.select(_PLACE).take(pa.array(rows))
    everything = {
        place: merge(interval for intervals in revisions.values() for interval in intervals)
        for place, revisions in spans.items()
    }
    gone = np.zeros(live.num_rows, np.bool_)
    for row, place, base, end in zip(
        rows.tolist(), places_of(near), *(near[name].to_pylist() for name in ("base_offset", "end_offset")), strict=True
    ):
        gone[row] = meets(everything.get(place, []), base, end)
    return live.filter(pa.array(~gone))


def places_of(rows: pa.Table) -> list[PartitionId]:
    """The partition of each row."""
    pairs = zip(rows["topic_id"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    return [PartitionId(topic_id=topic_id, partition=partition) for topic_id, partition in pairs]


def revisions_of(replaced: pa.Table) -> list[int]:
    """The revision that replaced each of these rows of kind replaced."""
    return [_details(text, "revision", _NO_REVISION).revision for text in replaced["details"].to_pylist()]


def _details(text: str | None, number: str, complaint: str) -> _Details:
    with suppress(ValidationError):
        found = _Details.model_validate_json(text or "")
        if getattr(found, number):
            return found
    raise not_understood(complaint, text)


def not_understood(complaint: str, text: str | None) -> UnsupportedFormatError:
    """The error for details of a row that this release does not understand."""
    return UnsupportedFormatError(
        f"{complaint}: {text!r}",
        operation="read the catalog",
        hint="the catalog was written by a newer release of maxbrod, or by another program",
    )
