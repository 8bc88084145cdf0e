"""Chooses the rows that are merged: each group of rows becomes one object, each part of a group becomes one row.

A group is a stretch of data rows of one partition in order of offsets, all of levels and ages that may be merged. Gaps
between them do not end it. Within a group rows are joined unless something depends on the boundary between them:

- a gap, because a row must cover its offsets alone;
- the leader epoch, because a truncated log is recognised by it;
- the codec, because a restore compresses with the one that the row records;
- the reason why records are missing, because a row has one;
- an edge of rows that were replaced, because queries as of an older run put those back exactly;
- the size, because one task reads a row.

Everything but the cutting of long stretches is vectorised: a catalog may have millions of rows.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence  # noqa: TC003 - a field of a dataclass
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from maxbrod.layouts.compaction_limits import CompactionLimits

PLAN_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "reason", "bytes", "raw_bytes"),
    *("codec", "first_leader_epoch", "last_leader_epoch", "level", "written_at"),
)
"""The columns of live rows that planning reads."""
REPLACED_COLUMNS: Final = ("topic_id", "partition", "base_offset", "end_offset")
ROW_BYTES_MAX: Final = 256 << 20
"""A row takes no further one beyond this size of its log: what a backup writes at most, so that reads stay parallel."""

LEVEL: Final = "of another level"
YOUNG: Final = "too young"
FEW: Final = "too few together"
SMALL: Final = "too small together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows of one partition that become one object."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    end_offset: int
    bases: Sequence[int]
    """The base offsets of its rows. In 8 bytes for each: a plan may have millions."""
    parts: tuple[int, ...]
    """The number of rows that each new row joins."""
    bytes: int
    level: int
    """That of the new rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    groups: tuple[Group, ...]
    left: Mapping[str, Counter[str]] = field(default_factory=dict)
    """For each topic the number of data rows that stay as they are, by reason."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The data rows, by topic id, partition and offset, as arrays."""

    topic: list[str]
    """The names of topics, to which `name` refers."""
    name: NDArray[np.int64]
    place: NDArray[np.int64]
    """Numbers the partitions in order."""
    topic_id: Any
    partition: NDArray[np.int64]
    base: NDArray[np.int64]
    end: NDArray[np.int64]
    bytes: NDArray[np.int64]
    raw: NDArray[np.int64]
    level: NDArray[np.int64]
    written_at: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.base)


def plan_groups(
    table: pa.Table,
    replaced: pa.Table,
    limits: Mapping[str, CompactionLimits],
    *,
    now_ms: int,
    row_bytes_max: int = ROW_BYTES_MAX,
) -> Plan:
    """What to merge. `table` has live rows in the order of the catalog, with `PLAN_COLUMNS`; `limits` is by topic name.

    `table` may be a portion of the rows, if it has all rows of its partitions. `replaced` are the rows that only
    queries as of older runs return, with `REPLACED_COLUMNS`. Topics without limits are left alone.
    """
    table = table.filter(pc.equal(table["kind"], Kind.DATA))
    if not table.num_rows:
        return Plan(groups=())
    rows = _rows(table)
    apart = _apart(table, rows, replaced)
    left: dict[str, Counter[str]] = {topic: Counter() for topic in rows.topic if topic in limits}
    chosen = _eligible(rows, limits, left, now_ms)
    groups = [
        group
        for first, stop in _stretches(rows, chosen)
        for group in _cut(rows, apart, first, stop, limits[rows.topic[rows.name[first]]], left, row_bytes_max)
    ]
    return Plan(groups=tuple(groups), left={topic: counts for topic, counts in left.items() if counts})


def join_plans(plans: Iterable[Plan]) -> Plan:
    """One plan of plans of different partitions."""
    groups: list[Group] = []
    left: dict[str, Counter[str]] = {}
    for plan in plans:
        groups += plan.groups
        for topic, counts in plan.left.items():
            left.setdefault(topic, Counter()).update(counts)
    return Plan(groups=tuple(groups), left=left)


def _rows(table: pa.Table) -> _Rows:
    topic = table["topic"].combine_chunks().dictionary_encode()
    ids = table["topic_id"].combine_chunks().dictionary_encode()
    partition = _numbers(table["partition"])
    id_number = _numbers(ids.indices)
    fresh = np.ones(len(partition), np.bool_)
    fresh[1:] = (id_number[1:] != id_number[:-1]) | (partition[1:] != partition[:-1])
    names = ("base_offset", "end_offset", "bytes", "raw_bytes", "level", "written_at")
    return _Rows(
        topic.dictionary.to_pylist(),
        _numbers(topic.indices),
        np.cumsum(fresh) - 1,
        table["topic_id"],
        partition,
        *(_numbers(table[name]) for name in names),
    )


def _numbers(column: Any) -> NDArray[np.int64]:  # noqa: ANN401 - an Arrow array
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(whole.to_numpy(zero_copy_only=False)).astype(np.int64)


def _apart(table: pa.Table, rows: _Rows, replaced: pa.Table) -> NDArray[np.bool_]:
    """Which rows must not be joined with the one before."""
    first_epoch, last_epoch = (_numbers(table[name]) for name in ("first_leader_epoch", "last_leader_epoch"))
    codec = _numbers(table["codec"].combine_chunks().dictionary_encode().indices)
    apart = np.ones(len(rows), np.bool_)
    apart[1:] = (rows.place[1:] != rows.place[:-1]) | (rows.end[:-1] != rows.base[1:]) | (codec[1:] != codec[:-1])
    # Epochs only rise along a log. A row that ends in a later epoch would lend it to the offsets before.
    apart[1:] |= (last_epoch[:-1] != first_epoch[1:]) | (last_epoch[:-1] != last_epoch[1:])
    apart |= _other_reasons(table["reason"], rows)
    return apart | _at_edges(rows, replaced)


def _other_reasons(reason: Any, rows: _Rows) -> NDArray[np.bool_]:  # noqa: ANN401 - an Arrow array
    """Rows whose reason differs from the last one of the partition that has one."""
    found = np.zeros(len(rows), np.bool_)
    given = np.flatnonzero(pc.is_valid(reason).to_numpy(zero_copy_only=False))
    if given.size > 1:
        codes = _numbers(reason.take(pa.array(given)).combine_chunks().dictionary_encode().indices)
        found[given[1:][codes[1:] != codes[:-1]]] = True
    return found


def _at_edges(rows: _Rows, replaced: pa.Table) -> NDArray[np.bool_]:
    """Rows that begin where a replaced row begins or ends. Few partitions have any."""
    found = np.zeros(len(rows), np.bool_)
    if not replaced.num_rows:
        return found
    edges: dict[tuple[str, int], set[int]] = {}
    for topic_id, partition, base, end in zip(*(replaced[name].to_pylist() for name in REPLACED_COLUMNS), strict=True):
        edges.setdefault((topic_id, partition), set()).update((base, end))
    starts = np.flatnonzero(np.diff(rows.place, prepend=-1))
    stops = np.append(starts[1:], len(rows))
    for topic_id, partition, start, stop in zip(
        rows.topic_id.take(pa.array(starts)).to_pylist(),
        rows.partition[starts].tolist(),
        starts.tolist(),
        stops.tolist(),
        strict=True,
    ):
        mine = edges.get((topic_id, partition))
        if mine is not None:
            found[start:stop] = np.isin(rows.base[start:stop], np.array(sorted(mine), np.int64))
    return found


def _eligible(
    rows: _Rows, limits: Mapping[str, CompactionLimits], left: Mapping[str, Counter[str]], now_ms: int
) -> NDArray[np.bool_]:
    """Which rows have a level and an age that their topic's limits allow."""
    chosen = np.zeros(len(rows), np.bool_)
    order = np.argsort(rows.name, kind="stable")
    edges = np.searchsorted(rows.name[order], np.arange(len(rows.topic) + 1))
    for number, topic in enumerate(rows.topic):
        known = limits.get(topic)
        if known is None:
            continue
        mine = order[edges[number] : edges[number + 1]]
        level = (rows.level[mine] >= known.level_min) & (rows.level[mine] <= known.level_max)
        old = rows.written_at[mine] <= now_ms - known.age_ms_min
        chosen[mine] = level & old
        left[topic].update({LEVEL: int((~level).sum()), YOUNG: int((level & ~old).sum())})
        left[topic] += Counter()
    return chosen


def _stretches(rows: _Rows, chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and last + 1 of the rows of one partition that follow each other and are all chosen."""
    mine = np.flatnonzero(chosen)
    if not mine.size:
        return []
    fresh = np.ones(mine.size, np.bool_)
    fresh[1:] = (np.diff(mine) > 1) | (np.diff(rows.place[mine]) > 0)
    starts = mine[fresh]
    stops = np.append(mine[np.flatnonzero(fresh)[1:] - 1], mine[-1]) + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _cut(
    rows: _Rows,
    apart: NDArray[np.bool_],
    first: int,
    stop: int,
    limits: CompactionLimits,
    left: Mapping[str, Counter[str]],
    row_bytes_max: int,
) -> Iterator[Group]:
    """Groups within the limits: each ends with the row that reaches one."""
    while first < stop:
        size = np.cumsum(rows.bytes[first : min(stop, first + limits.segments_max)])
        count = min(int(np.searchsorted(size, limits.bytes_max)) + 1, size.size)
        if count < limits.segments_min:
            left[rows.topic[rows.name[first]]][FEW] += count
        elif size[count - 1] < limits.bytes_min:
            left[rows.topic[rows.name[first]]][SMALL] += count
        else:
            yield _group(rows, apart, first, first + count, row_bytes_max)
        first += count


def _group(rows: _Rows, apart: NDArray[np.bool_], first: int, stop: int, row_bytes_max: int) -> Group:
    before = np.cumsum(rows.raw[first:stop]) - rows.raw[first:stop]
    full = np.diff(before // row_bytes_max, prepend=0) > 0
    begins = np.flatnonzero(apart[first:stop] | full)
    begins = begins if begins.size and begins[0] == 0 else np.concatenate([[0], begins])
    return Group(
        topic=rows.topic[rows.name[first]],
        topic_id=rows.topic_id[first].as_py(),
        partition=int(rows.partition[first]),
        base_offset=int(rows.base[first]),
        end_offset=int(rows.end[stop - 1]),
        bases=array("q", rows.base[first:stop].tobytes()),
        parts=tuple(np.diff(np.append(begins, stop - first)).tolist()),
        bytes=int(rows.bytes[first:stop].sum()),
        level=int(rows.level[first:stop].max()) + 1,
    )
