"""Rows of data become gaps `pruned`, and gaps become rows of data again. Pure, on tables of the catalog's schema.

A live row becomes a part of a live gap; adjacent gaps join. A row of kind replaced becomes a gap of kind replaced with
the same offsets and the same revision, so that queries as of an older run still find its offsets explained. Gaps are
not joined across a boundary of a replaced row: such a query drops live rows that overlap what was replaced later.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.archive.lifecycle import NO_ROWS
from maxbrod.catalog.schema import SCHEMA, SORT_ORDER, Kind
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from numpy.typing import NDArray

_PLACE: Final = ("topic_id", "partition")


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Rows to add and rows to remove, in one commit."""

    added: pa.Table
    removed: pa.Table
    left: pa.Table = field(default_factory=lambda: NO_ROWS)
    """Rows of an undo that cannot come back, because something else has taken their offsets since."""


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
    cuts = _cuts(replaced)
    for place, offsets in (borders or {}).items():
        cuts.setdefault(place, set()).update(offsets)
    live = going.filter(pc.equal(going["kind"], Kind.DATA))
    dead = going.filter(pc.equal(going["kind"], Kind.REPLACED))
    joined, absorbed = _join(live, live_gaps, cuts, run_id)
    return Swap(
        added=pa.concat_tables([joined, _replaced_gaps(dead, run_id)]), removed=pa.concat_tables([going, absorbed])
    )


def restore_rows(coming: pa.Table, live_gaps: pa.Table, replaced: pa.Table, *, run_id: str) -> Swap:
    """Put rows back where gaps `pruned` are now: the inverse of `prune_rows`, whatever was committed in between."""
    live = coming.filter(pc.equal(coming["kind"], Kind.DATA))
    dead = coming.filter(pc.equal(coming["kind"], Kind.REPLACED))
    back, rest, removed, left = _carve(live.sort_by(SORT_ORDER), live_gaps.sort_by(SORT_ORDER), run_id)
    return Swap(
        added=pa.concat_tables([back, rest, dead]),
        removed=pa.concat_tables([removed, _standing_for(dead, replaced)]),
        left=left,
    )


def is_pruned(rows: pa.Table) -> pa.ChunkedArray:
    """A mask of live gaps `pruned`."""
    return pc.and_(pc.equal(rows["kind"], Kind.GAP), pc.fill_null(pc.equal(rows["reason"], GapReason.PRUNED), False))


def places_of(rows: pa.Table) -> list[PartitionId]:
    pairs = zip(rows["topic_id"].to_pylist(), rows["partition"].to_pylist(), strict=True)
    return [PartitionId(topic_id=topic_id, partition=partition) for topic_id, partition in pairs]


def _cuts(replaced: pa.Table) -> dict[PartitionId, set[int]]:
    """The offsets at which replaced rows begin or end."""
    found: dict[PartitionId, set[int]] = {}
    ends = zip(
        places_of(replaced), replaced["base_offset"].to_pylist(), replaced["end_offset"].to_pylist(), strict=True
    )
    for place, base, end in ends:
        found.setdefault(place, set()).update((base, end))
    return found


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
        run_id=run_id,
    )
    return made, rows.filter(pa.array(touched[group] & ~new))


def _gaps(rows: pa.Table, *, end: NDArray[np.int64], written_at: NDArray[np.int64], run_id: str) -> pa.Table:
    count = rows.num_rows
    values: dict[str, Any] = {name: rows[name] for name in ("topic", *_PLACE, "base_offset")}
    values |= {
        "end_offset": pa.array(end, pa.int64()),
        "kind": pa.array([str(Kind.GAP)] * count, pa.string()),
        "reason": pa.array([str(GapReason.PRUNED)] * count, pa.string()),
        "run_id": pa.array([run_id] * count, pa.string()),
        "written_at": pa.array(written_at, pa.int64()),
    }
    columns = [values[field.name] if field.name in values else pa.nulls(count, field.type) for field in SCHEMA]
    return pa.table(columns, schema=SCHEMA)


def _replaced_gaps(rows: pa.Table, run_id: str) -> pa.Table:
    """The same rows of kind replaced, without data."""
    made = _gaps(rows, end=rows["end_offset"].to_numpy(), written_at=rows["written_at"].to_numpy(), run_id=run_id)
    details = [
        json.dumps({"kind": str(Kind.GAP), "revision": json.loads(each)["revision"]}, sort_keys=True)
        for each in rows["details"].to_pylist()
    ]
    for name, values in (("kind", [str(Kind.REPLACED)] * rows.num_rows), ("details", details)):
        made = made.set_column(made.schema.get_field_index(name), SCHEMA.field(name), pa.array(values, pa.string()))
    return made


def _carve(rows: pa.Table, gaps: pa.Table, run_id: str) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """Rows that fit into gaps, what is left of these gaps, the gaps themselves, and rows that fit into none."""
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
        _pieces(gaps, rest, run_id),
        gaps.take(pa.array(used, pa.int64())),
        rows.take(pa.array(left, pa.int64())),
    )


def _pieces(gaps: pa.Table, pieces: Iterable[tuple[int, int, int]], run_id: str) -> pa.Table:
    """Parts of gaps: the number of the gap, the first offset and the end of each."""
    found = list(pieces)
    whole = gaps.take(pa.array([number for number, _, _ in found], pa.int64()))
    at = whole["written_at"].to_numpy()
    whole = whole.set_column(
        whole.schema.get_field_index("base_offset"),
        SCHEMA.field("base_offset"),
        pa.array([first for _, first, _ in found], pa.int64()),
    )
    return _gaps(whole, end=np.array([end for _, _, end in found], np.int64), written_at=at, run_id=run_id)


def _by_partition(rows: pa.Table) -> dict[PartitionId, tuple[int, int]]:
    """Where the rows of each partition are, in sorted rows."""
    found: dict[PartitionId, tuple[int, int]] = {}
    for number, place in enumerate(places_of(rows)):
        found[place] = (found[place][0] if place in found else number, number + 1)
    return found


def _standing_for(rows: pa.Table, replaced: pa.Table) -> pa.Table:
    """The gaps of kind replaced that stand where these rows of kind replaced were."""
    wanted = set(_identities(rows))
    gap = pc.fill_null(pc.equal(replaced["reason"], GapReason.PRUNED), False)
    candidates = replaced.filter(pc.and_(gap, pc.is_null(replaced["path"])))
    return candidates.filter(pa.array([each in wanted for each in _identities(candidates)], pa.bool_()))


def _identities(rows: pa.Table) -> list[tuple[PartitionId, int, int, int]]:
    revisions = (json.loads(each)["revision"] for each in rows["details"].to_pylist())
    ends = (rows[name].to_pylist() for name in ("base_offset", "end_offset"))
    return list(zip(places_of(rows), *ends, revisions, strict=True))
