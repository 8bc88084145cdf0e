"""Chooses the rows that are merged: each group of rows becomes one object, each part of a group becomes one row. Pure.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.rows import Segment, newest_time
from maxbrod.catalog.schema import Kind
from maxbrod.model import AbortedTransaction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from maxbrod.layouts.foreign import CompactionLimits

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
class MergeGroup:
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

    @property
    def row_count(self) -> int:
        return len(self.bases)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPlan:
    groups: tuple[MergeGroup, ...]
    left: Mapping[str, Counter[str]] = field(default_factory=dict)
    """For each topic the number of data rows that stay as they are, by reason."""


@dataclass(frozen=True, slots=True)
class _DataRows:
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
) -> GroupsPlan:
    """Return what to merge. `table` has live rows in the catalog's order, with `PLAN_COLUMNS`; `limits` is by name.

    `table` may be a portion of the rows, if it has all rows of its partitions. `replaced` are the rows that only
    queries as of older runs return, with `REPLACED_COLUMNS`. Topics without limits are left alone.
    """
    table = table.filter(pc.equal(table["kind"], Kind.DATA))
    if not table.num_rows:
        return GroupsPlan(groups=())
    rows = _rows(table)
    apart = _apart(table, rows, replaced)
    left: dict[str, Counter[str]] = {topic: Counter() for topic in rows.topic if topic in limits}
    chosen = _eligible(rows, limits, left, now_ms)
    groups = [
        group
        for first, stop in _stretches(rows, chosen)
        for group in _cut(rows, apart, first, stop, limits[rows.topic[rows.name[first]]], left, row_bytes_max)
    ]
    return GroupsPlan(groups=tuple(groups), left={topic: counts for topic, counts in left.items() if counts})


def _rows(table: pa.Table) -> _DataRows:
    topic = table["topic"].combine_chunks().dictionary_encode()
    ids = table["topic_id"].combine_chunks().dictionary_encode()
    partition = _numbers(table["partition"])
    id_number = _numbers(ids.indices)
    fresh = np.ones(len(partition), np.bool_)
    fresh[1:] = (id_number[1:] != id_number[:-1]) | (partition[1:] != partition[:-1])
    names = ("base_offset", "end_offset", "bytes", "raw_bytes", "level", "written_at")
    return _DataRows(
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


def _apart(table: pa.Table, rows: _DataRows, replaced: pa.Table) -> NDArray[np.bool_]:
    """Return the rows that must not be joined with the one before."""
    first_epoch, last_epoch = (_numbers(table[name]) for name in ("first_leader_epoch", "last_leader_epoch"))
    codec = _numbers(table["codec"].combine_chunks().dictionary_encode().indices)
    apart = np.ones(len(rows), np.bool_)
    apart[1:] = (rows.place[1:] != rows.place[:-1]) | (rows.end[:-1] != rows.base[1:]) | (codec[1:] != codec[:-1])
    # Epochs only rise along a log. A row that ends in a later epoch would lend it to the offsets before.
    apart[1:] |= (last_epoch[:-1] != first_epoch[1:]) | (last_epoch[:-1] != last_epoch[1:])
    apart |= _other_reasons(table["reason"], rows)
    return apart | _at_edges(rows, replaced)


def _other_reasons(reason: Any, rows: _DataRows) -> NDArray[np.bool_]:  # noqa: ANN401 - an Arrow array
    """Rows whose reason differs from the last one of the partition that has one."""
    found = np.zeros(len(rows), np.bool_)
    given = np.flatnonzero(pc.is_valid(reason).to_numpy(zero_copy_only=False))
    if given.size > 1:
        codes = _numbers(reason.take(pa.array(given)).combine_chunks().dictionary_encode().indices)
        found[given[1:][codes[1:] != codes[:-1]]] = True
    return found


def _at_edges(rows: _DataRows, replaced: pa.Table) -> NDArray[np.bool_]:
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
    rows: _DataRows, limits: Mapping[str, CompactionLimits], left: Mapping[str, Counter[str]], now_ms: int
) -> NDArray[np.bool_]:
    """Return the rows whose level and age the limits of their topic allow."""
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


def _stretches(rows: _DataRows, chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
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
    rows: _DataRows,
    apart: NDArray[np.bool_],
    first: int,
    stop: int,
    limits: CompactionLimits,
    left: Mapping[str, Counter[str]],
    row_bytes_max: int,
) -> Iterator[MergeGroup]:
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


def _group(rows: _DataRows, apart: NDArray[np.bool_], first: int, stop: int, row_bytes_max: int) -> MergeGroup:
    before = np.cumsum(rows.raw[first:stop]) - rows.raw[first:stop]
    full = np.diff(before // row_bytes_max, prepend=0) > 0
    begins = np.flatnonzero(apart[first:stop] | full)
    begins = begins if begins.size and begins[0] == 0 else np.concatenate([[0], begins])
    return MergeGroup(
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


# Rows that are joined to one


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The place where the joined rows of one part are stored."""

    path: str
    position: int
    bytes: int
    raw_bytes: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A group with the rows that it consists of."""

    group: MergeGroup
    rows: tuple[Segment, ...]

    @property
    def parts(self) -> list[tuple[Segment, ...]]:
        """The rows that each new row joins."""
        found, first = [], 0
        for count in self.group.parts:
            found.append(self.rows[first : first + count])
            first += count
        return found

    @property
    def joints(self) -> frozenset[int]:
        """The offsets at which rows are joined."""
        return frozenset(row.base_offset for part in self.parts for row in part[1:])

    def result(self, written: Sequence[Written], *, run_id: str, now_ms: int) -> list[Segment]:
        """The new rows."""
        return [
            join(part, stored, level=self.group.level, run_id=run_id, now_ms=now_ms)
            for part, stored in zip(self.parts, written, strict=True)
        ]


def join(rows: Sequence[Segment], written: Written, *, level: int, run_id: str, now_ms: int) -> Segment:
    """The row that says what these say together. They are adjacent, in order of offsets."""
    first, last = rows[0], rows[-1]
    counted = [row.control_records for row in rows if row.control_records is not None]
    return replace(
        first,
        end_offset=last.end_offset,
        **asdict(written),
        records=sum(row.records for row in rows),
        control_records=sum(counted) if len(counted) == len(rows) else None,
        min_timestamp=min((row.min_timestamp for row in rows if row.min_timestamp is not None), default=None),
        max_timestamp=_newest(rows),
        # A row without records has no timestamp, and none of it can be older.
        min_timestamp_exact=any(row.records for row in rows)
        and all(row.min_timestamp_exact or not row.records for row in rows),
        last_leader_epoch=last.last_leader_epoch,
        aborted=_aborted(transaction for row in rows for transaction in row.aborted),
        reason=next((row.reason for row in rows if row.reason is not None), None),
        level=level,
        run_id=run_id,
        written_at=now_ms,
    )


def _newest(rows: Sequence[Segment]) -> int | None:
    """None also if it is unknown of a row whose records have timestamps."""
    times = [
        newest_time(row.min_timestamp, row.max_timestamp)
        for row in rows
        if row.min_timestamp is not None or row.max_timestamp is not None
    ]
    return None if None in times else max((time for time in times if time is not None), default=None)


def _aborted(transactions: Iterable[AbortedTransaction]) -> tuple[AbortedTransaction, ...]:
    """Each transaction once. One that goes on beyond a row is recorded up to that row's end, so the last end counts."""
    found: dict[tuple[int, int], AbortedTransaction] = {}
    for transaction in transactions:
        key = transaction.first_offset, transaction.producer_id
        known = found.get(key)
        if known is None or known.last_offset < transaction.last_offset:
            found[key] = transaction
    return tuple(found[key] for key in sorted(found))
