"""Rows of data become gaps `pruned`, and gaps become rows of data again. Pure, on tables of the catalog's schema.

A live row becomes a part of a live gap; adjacent gaps join, and have the run of the newest part. A row of kind replaced
becomes a gap of kind replaced with the same offsets and the same revision, so that queries as of an older run still
find its offsets explained. Gaps are not joined across a boundary of a replaced row: such a query drops live rows that
overlap what was replaced later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.archive.upkeep import NO_ROWS
from maxbrod.catalog.replaced import as_replaced, places_of, revisions_of
from maxbrod.catalog.rows import Run, newest_times, time_of
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.model import GapReason, PartitionId

NEWEST: Final = "newest_ms"
"""In the statistics of a prune: no record that is missing in its gaps is newer."""
_PLACE: Final = ("topic_id", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Rows to add and rows to remove, in one commit."""

    added: pa.Table
    removed: pa.Table
    left: pa.Table = field(default_factory=lambda: NO_ROWS)
    """Rows of an undo that cannot come back, because something else has taken their offsets since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointInTime:
    """A moment in the past that a request chooses, of which it must get everything."""

    run_id: str | None = None
    """As of this run."""
    until_ms: int | None = None
    """At this time."""
    since_ms: int | None = None
    """Older records are not requested."""

    @property
    def chosen(self) -> bool:
        return self.run_id is not None or self.until_ms is not None


def prune_rows(
    going: pa.Table,
    live_gaps: pa.Table,
    replaced: pa.Table,
    *,
    run_id: str,
    borders: Mapping[PartitionId, Collection[int]] | None = None,
) -> Swap:
    """Replace rows of kind data, live or replaced, by gaps.

    `live_gaps` are all live gaps `pruned` of the same partitions, `replaced` their rows of kind replaced. `borders`
    are more offsets across which gaps are not joined.
    """
    cuts = {place: set(offsets) for place, offsets in (borders or {}).items()}
    ends = (replaced[name].to_pylist() for name in ("base_offset", "end_offset"))
    for place, *edges in zip(places_of(replaced), *ends, strict=True):
        cuts.setdefault(place, set()).update(edges)
    live = going.filter(pc.equal(going["kind"], Kind.DATA))
    dead = going.filter(pc.equal(going["kind"], Kind.REPLACED))
    joined, absorbed = _join(live, live_gaps, cuts, run_id)
    return Swap(
        added=pa.concat_tables([joined, _replaced_gaps(dead, run_id)]), removed=pa.concat_tables([going, absorbed])
    )


def restore_rows(
    coming: pa.Table,
    live_gaps: pa.Table,
    replaced: pa.Table,
    *,
    run_id: str,
    undone: str | None = None,
    older: pa.Table = NO_ROWS,
) -> Swap:
    """Put rows back where gaps `pruned` are now: the inverse of `prune_rows`, whatever was committed in between.

    `older` are the gaps that the prune `undone` joined with its own: what is left of them has their runs again.
    """
    live = coming.filter(pc.equal(coming["kind"], Kind.DATA))
    dead = coming.filter(pc.equal(coming["kind"], Kind.REPLACED))
    back, pieces, removed, left = _carve(live.sort_by(SORT_ORDER), live_gaps.sort_by(SORT_ORDER))
    rest = _pieces(live_gaps.sort_by(SORT_ORDER), pieces, older, {undone: run_id})
    return Swap(
        added=pa.concat_tables([back, rest, dead]),
        removed=pa.concat_tables([removed, _standing_for(dead, replaced)]),
        left=left,
    )


def is_pruned(rows: pa.Table) -> pa.ChunkedArray:
    """A mask of live gaps `pruned`."""
    return pc.and_(pc.equal(rows["kind"], Kind.GAP), pc.fill_null(pc.equal(rows["reason"], GapReason.PRUNED), False))


def had(rows: pa.Table, runs: Sequence[Run], point: PointInTime) -> pa.ChunkedArray:
    """A mask of the gaps `pruned` of which the archive still had records at this point in the past.

    A gap that was joined has the run of its newest part. That part is enough: the newest row of a partition always
    stays, so a prune after the point took records that were there.
    """
    places = {run.run_id: place for place, run in enumerate(runs)}
    known = {run.run_id: run for run in runs}
    mask = pc.and_(is_pruned(rows), pc.is_valid(rows["run_id"]))
    ids = [
        run_id
        for run_id in pc.unique(rows["run_id"].filter(mask)).to_pylist()
        if _is_after(run_id, point, places, known)
        # All records that the prune took, or that were pruned before, may be older than those that are requested.
        and (point.since_ms is None or run_id not in known or newest_ms(known[run_id]) >= point.since_ms)
    ]
    return pc.and_(mask, pc.is_in(rows["run_id"], value_set=pa.array(ids, pa.string())))


def _is_after(run_id: str, point: PointInTime, places: Mapping[str, int], known: Mapping[str, Run]) -> bool:
    """True if a prune came after the point. Ids of runs that were thinned out since still sort by time."""
    if point.run_id is not None and (
        places[run_id] > places[point.run_id] if run_id in places else run_id > point.run_id
    ):
        return True
    at = known[run_id].finished_at if run_id in known else time_of(run_id)
    return point.until_ms is not None and (at is None or at > point.until_ms)


def newest_ms(prune: Run) -> int:
    """An upper bound of the times of all records that are missing in the gaps of a prune."""
    found = prune.statistics.get(NEWEST)
    return found if isinstance(found, int) else prune.finished_at


def newest_pruned_ms(going: pa.Table, absorbed: pa.Table, runs: Sequence[Run]) -> int | None:
    """The same bound for a prune that takes these rows, and joins these gaps with its own."""
    # Records are hardly newer than the object that has them, unless one says so.
    times = pc.coalesce(newest_times(going), pc.max_element_wise(going["min_timestamp"], going["written_at"]))
    known = {run.run_id: newest_ms(run) for run in runs}
    older = [known.get(run_id, time_of(run_id) or 0) for run_id in pc.unique(absorbed["run_id"]).to_pylist()]
    return max((time for time in (pc.max(times).as_py(), *older) if time is not None), default=None)


def _join(
    live: pa.Table, gaps: pa.Table, cuts: Mapping[PartitionId, set[int]], run_id: str
) -> tuple[pa.Table, pa.Table]:
    """The gaps that cover these rows, and the older gaps that are parts of them now."""
    rows = pa.concat_tables([live, gaps]).sort_by(SORT_ORDER)
    if not live.num_rows:
        return NO_ROWS, NO_ROWS
    topic = rows["topic_id"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    partition, base, end, at = (
        rows[name].to_numpy() for name in ("partition", "base_offset", "end_offset", "written_at")
    )
    new = pc.equal(rows["kind"], Kind.DATA).to_numpy()
    starts = np.ones(rows.num_rows, np.bool_)
    starts[1:] = (topic[1:] != topic[:-1]) | (partition[1:] != partition[:-1]) | (base[1:] != end[:-1])
    if cuts:
        within = np.flatnonzero(~starts)
        places = places_of(rows.select(list(_PLACE)).take(pa.array(within)))
        offsets = base[within].tolist()
        cut = [offset in cuts.get(place, ()) for place, offset in zip(places, offsets, strict=True)]
        starts[within] = cut
    first = np.flatnonzero(starts)
    group = np.cumsum(starts) - 1
    touched = np.add.reduceat(new.astype(np.int64), first) > 0
    last = np.append(first[1:], rows.num_rows) - 1
    heads = rows.take(pa.array(first[touched]))
    made = _gaps(
        heads,
        end=end[last[touched]],
        # As old as the oldest row: of two topics of one name, the one that was archived first stays the older one.
        written_at=np.minimum.reduceat(at, first)[touched],
        run_ids=[run_id] * heads.num_rows,
    )
    return made, rows.filter(pa.array(touched[group] & ~new))


def _gaps(rows: pa.Table, *, end: NDArray[np.int64], written_at: NDArray[np.int64], run_ids: Sequence[str]) -> pa.Table:
    count = rows.num_rows
    values: dict[str, Any] = {name: rows[name] for name in ("topic", *_PLACE, "base_offset")}
    values |= {
        "end_offset": pa.array(end, pa.int64()),
        "kind": pa.array([str(Kind.GAP)] * count, pa.string()),
        "reason": pa.array([str(GapReason.PRUNED)] * count, pa.string()),
        "run_id": pa.array(run_ids, pa.string()),
        "written_at": pa.array(written_at, pa.int64()),
    }
    columns = [values[field.name] if field.name in values else pa.nulls(count, field.type) for field in SCHEMA]
    return pa.table(columns, schema=SCHEMA)


def _replaced_gaps(rows: pa.Table, run_id: str) -> pa.Table:
    """The same rows of kind replaced, without data."""
    made = _gaps(
        rows,
        end=rows["end_offset"].to_numpy(),
        written_at=rows["written_at"].to_numpy(),
        run_ids=[run_id] * rows.num_rows,
    )
    return as_replaced(made, revisions_of(rows))


def _carve(rows: pa.Table, gaps: pa.Table) -> tuple[pa.Table, list[tuple[int, int, int]], pa.Table, pa.Table]:
    """Rows that fit into gaps, what is left of these gaps, the gaps themselves, and rows that fit into none.

    Of what is left: the number of the gap, the first offset and the end of each piece.
    """
    wanted = _by_partition(rows)
    there = _by_partition(gaps)
    back: list[int] = []
    left: list[int] = []
    used: list[int] = []
    rest: list[tuple[int, int, int]] = []
    base, end = (rows[name].to_numpy() for name in ("base_offset", "end_offset"))
    gap_base, gap_end = (gaps[name].to_numpy() for name in ("base_offset", "end_offset"))
    for place, (low, high) in wanted.items():
        first, last = there.get(place, (0, 0))
        gap = first + np.searchsorted(gap_base[first:last], base[low:high], side="right") - 1
        fits = (gap >= first) & (last > first)
        fits[fits] &= end[low:high][fits] <= gap_end[gap[fits]]
        left += (low + np.flatnonzero(~fits)).tolist()
        placed = low + np.flatnonzero(fits)
        back += placed.tolist()
        for number in np.unique(gap[fits]).tolist():
            used.append(number)
            inside = placed[gap[fits] == number]
            reached = int(gap_base[number])
            for begin, stop in zip(base[inside].tolist(), end[inside].tolist(), strict=True):
                rest += [(number, reached, begin)] if reached < begin else []
                reached = stop
            rest += [(number, reached, int(gap_end[number]))] if reached < gap_end[number] else []
    return (
        rows.take(pa.array(back, pa.int64())),
        rest,
        gaps.take(pa.array(used, pa.int64())),
        rows.take(pa.array(left, pa.int64())),
    )


def _pieces(
    gaps: pa.Table, pieces: Sequence[tuple[int, int, int]], older: pa.Table, instead: Mapping[str | None, str]
) -> pa.Table:
    """Parts of gaps, each with the run of the older gap that it was a part of before the prune, if there is one.

    `instead`: the run of pieces that the prune itself would have, because their objects are gone.
    """
    whole = gaps.take(pa.array([number for number, _, _ in pieces], pa.int64()))
    at = whole["written_at"].to_numpy()
    before: dict[PartitionId, list[tuple[int, int, str]]] = {}
    ranges = (older[name].to_pylist() for name in ("base_offset", "end_offset", "run_id"))
    for place, *gap in zip(places_of(older), *ranges, strict=True):
        before.setdefault(place, []).append((gap[0], gap[1], gap[2]))
    run_ids = [
        next((run for base, end, run in before.get(place, ()) if base <= first and stop <= end), instead.get(own, own))
        for place, own, (_, first, stop) in zip(places_of(whole), whole["run_id"].to_pylist(), pieces, strict=True)
    ]
    whole = whole.set_column(
        whole.schema.get_field_index("base_offset"),
        SCHEMA.field("base_offset"),
        pa.array([first for _, first, _ in pieces], pa.int64()),
    )
    return _gaps(whole, end=np.array([end for _, _, end in pieces], np.int64), written_at=at, run_ids=run_ids)


def _by_partition(rows: pa.Table) -> dict[PartitionId, tuple[int, int]]:
    """The range of each partition's rows, in sorted rows."""
    found: dict[PartitionId, tuple[int, int]] = {}
    for number, place in enumerate(places_of(rows)):
        found[place] = (found[place][0] if place in found else number, number + 1)
    return found


def _standing_for(rows: pa.Table, replaced: pa.Table) -> pa.Table:
    """The gaps of kind replaced that stand where these rows of kind replaced were."""
    wanted = set(_identities(rows))
    gap = pc.fill_null(pc.equal(replaced["reason"], GapReason.PRUNED), False)
    candidates = replaced.filter(pc.and_(gap, pc.is_null(replaced["path"])))
    return candidates.filter(pa.array([identity in wanted for identity in _identities(candidates)], pa.bool_()))


def _identities(rows: pa.Table) -> list[tuple[PartitionId, int, int, int]]:
    ends = (rows[name].to_pylist() for name in ("base_offset", "end_offset"))
    return list(zip(places_of(rows), *ends, revisions_of(rows), strict=True))
