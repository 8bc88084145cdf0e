"""Rows that others have taken the place of: kept, so that `as of` an older run finds what that run left.

Each time that rows of a partition are replaced, because its log was truncated or a gap was mended, is a *revision* of
the partition, counted from 1. Replaced rows stay in the catalog with the revision that put them out of use, and a run's
snapshot says how many there had been by then. That is all it takes, whatever any clock says: see `as_it_was`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from maxbrod.catalog.schema import Kind
from maxbrod.errors import UnsupportedFormatError
from maxbrod.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

Revisions: TypeAlias = "Mapping[PartitionId, int]"
"""How often rows of a partition have been replaced; 0 of partitions that it does not name."""
REVISION_COLUMNS: Final = ("topic_id", "partition", "details")
_PLACE: Final = ("topic_id", "partition", "base_offset", "end_offset")


def retire(rows: pa.Table, revisions: Revisions) -> pa.Table:
    """Rows of kind data and gap as replaced ones; `revisions` are those before, and each gets the next."""
    details = [
        json.dumps({"kind": kind, "revision": revisions.get(place, 0) + 1}, sort_keys=True)
        for place, kind in zip(_places(rows), rows["kind"].to_pylist(), strict=True)
    ]
    changed = {"kind": [str(Kind.REPLACED)] * rows.num_rows, "details": details}
    for name, values in changed.items():
        column = rows.schema.get_field_index(name)
        rows = rows.set_column(column, rows.schema.field(column), pa.array(values, pa.string()))
    return rows


def count_revisions(replaced: pa.Table) -> dict[PartitionId, int]:
    """From rows of kind replaced, with `REVISION_COLUMNS`."""
    found: dict[PartitionId, int] = {}
    for place, revision in zip(_places(replaced), _numbers(replaced), strict=True):
        found[place] = max(found.get(place, 0), revision)
    return found


def after_replacing(revisions: Revisions, rows: Iterable[Any]) -> dict[PartitionId, int]:
    """What `revisions` become when these rows of kind data and gap are replaced in one commit."""
    touched = {PartitionId(topic_id=row.topic_id, partition=row.partition) for row in rows}
    return {**revisions, **{each: revisions.get(each, 0) + 1 for each in touched}}


def revive(replaced: pa.Table) -> pa.Table:
    """Rows of kind replaced as what they were."""
    kinds = [str(_told(text)["kind"]) for text in replaced["details"].to_pylist()]
    for name, values in (("kind", kinds), ("details", [None] * len(kinds))):
        column = replaced.schema.get_field_index(name)
        replaced = replaced.set_column(column, replaced.schema.field(column), pa.array(values, pa.string()))
    return replaced


def as_it_was(
    live: pa.Table, replaced: pa.Table, revisions: Revisions, *, chosen: ds.Expression | None = None
) -> pa.Table:
    """The rows that there were when rows had been replaced so often. `replaced` has all columns.

    `live` may be some of the rows only: `chosen` is what they were chosen by.
    What a later revision replaced was there then, unless something between the two had taken its offsets: that came
    and went later. Of what is there now, the same holds.
    """
    numbers = np.array(_numbers(replaced), np.int64)
    places = _places(replaced)
    known = np.array([revisions.get(place, 0) for place in places], np.int64)
    later = np.flatnonzero(numbers > known)
    if not later.size:
        return live
    spans = _spans(replaced, [places[row] for row in later], later, numbers)
    kept = [row for row in later.tolist() if not _is_taken(spans[places[row]], replaced, row, int(numbers[row]))]
    found = revive(replaced.take(pa.array(kept, pa.int64())))
    if chosen is not None:
        found = ds.dataset(found).to_table(filter=chosen)
    return pa.concat_tables([_without(live, spans), found.select(live.column_names)])


def _spans(
    replaced: pa.Table, places: Sequence[PartitionId], rows: NDArray[np.intp], numbers: NDArray[np.int64]
) -> dict[PartitionId, list[tuple[int, int, int]]]:
    """By partition: which revision replaced which offsets."""
    base, end = (replaced[name].to_pylist() for name in ("base_offset", "end_offset"))
    found: dict[PartitionId, list[tuple[int, int, int]]] = {}
    for place, row in zip(places, rows.tolist(), strict=True):
        found.setdefault(place, []).append((int(numbers[row]), base[row], end[row]))
    return found


def _is_taken(spans: Sequence[tuple[int, int, int]], rows: pa.Table, row: int, revision: int) -> bool:
    base, end = rows["base_offset"][row].as_py(), rows["end_offset"][row].as_py()
    return any(number < revision and first < end and base < last for number, first, last in spans)


def _without(live: pa.Table, spans: Mapping[PartitionId, Sequence[tuple[int, int, int]]]) -> pa.Table:
    topics = pa.array(sorted({each.topic_id for each in spans}), pa.string())
    rows = np.flatnonzero(pc.is_in(live["topic_id"], value_set=topics).to_numpy())
    near = live.select(_PLACE).take(pa.array(rows))
    gone = np.zeros(live.num_rows, np.bool_)
    for row, place, base, end in zip(
        rows.tolist(), _places(near), *(near[name].to_pylist() for name in ("base_offset", "end_offset")), strict=True
    ):
        gone[row] = any(first < end and base < last for _, first, last in spans.get(place, ()))
    return live.filter(pa.array(~gone))


def _places(rows: pa.Table) -> list[PartitionId]:
    pairs = zip(rows["topic_id"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    return [PartitionId(topic_id=topic_id, partition=partition) for topic_id, partition in pairs]


def _numbers(replaced: pa.Table) -> list[int]:
    return [_told(text)["revision"] for text in replaced["details"].to_pylist()]


def _told(text: str | None) -> dict[str, Any]:
    try:
        told = json.loads(text or "")
        if type(told["revision"]) is int and told["revision"] > 0 and told["kind"] in {Kind.DATA, Kind.GAP}:
            return dict(told)
    except (ValueError, KeyError, TypeError):
        pass
    raise UnsupportedFormatError(
        f"a replaced row of the catalog does not say what it was, or when it was replaced: {text!r}",
        operation="read the catalog",
        hint="the catalog was written by a newer release of maxbrod, or by another program",
    )
