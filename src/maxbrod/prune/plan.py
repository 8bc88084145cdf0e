"""Which rows of data a policy takes away, and why each of the others stays. Pure and vectorised.

Segments go whole, and oldest first: a rule by age or size takes rows from the start of a partition's log, as Kafka's
retention does. The newest row of a partition stays, so that a backup can continue after it. A compacted topic loses
nothing by age or size: its oldest record may be the newest of its key, and a complete state must stay.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a field of a dataclass
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.schema import SORT_ORDER, Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

PLAN_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "details", "path", "position", "run_id"),
    *("bytes", "raw_bytes", "records", "min_timestamp", "max_timestamp", "min_timestamp_exact", "written_at"),
)
"""The columns that planning reads, those that holds and the identity of a row need included."""
_NEVER: Final = -(2**63)


class Reason(IntEnum):
    """Why a row stays (below `AGE`) or goes. The rule that is asked first decides."""

    NO_RULE = 0
    NOT_SELECTED = 1
    NEWEST = 2
    HELD = 3
    COMPACTED = 4
    POLICY_UNKNOWN = 5
    SOURCE_UNKNOWN = 6
    BEHIND = 7
    AGE = 10
    TOPIC_BYTES = 11
    ARCHIVE_BYTES = 12
    SOURCE_AGE = 13
    SOURCE_BYTES = 14
    DELETED = 15

    @property
    def goes(self) -> bool:
        return self >= Reason.AGE


WORDS: Final = {
    Reason.NO_RULE: "within every limit",
    Reason.NOT_SELECTED: "not among the selected topics",
    Reason.NEWEST: "the newest of its partition",
    Reason.HELD: "held",
    Reason.COMPACTED: "a compacted topic: any record may be the newest of its key",
    Reason.POLICY_UNKNOWN: "its cleanup policy is unknown, so it may be compacted",
    Reason.SOURCE_UNKNOWN: "the retention of its topic is unknown",
    Reason.BEHIND: "behind a segment that stays",
    Reason.AGE: "all its records are older",
    Reason.TOPIC_BYTES: "the topic is larger",
    Reason.ARCHIVE_BYTES: "the archive is larger",
    Reason.SOURCE_AGE: "older than the topic's retention.ms",
    Reason.SOURCE_BYTES: "beyond the topic's retention.bytes",
    Reason.DELETED: "the cluster lost the topic long enough ago",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPolicy:
    """Limits of data. None: no limit."""

    before_ms: int | None = None
    """Rows whose records are all older go."""
    topic_bytes_max: int | None = None
    archive_bytes_max: int | None = None
    as_source_at_ms: int | None = None
    """If set, each topic's own retention applies at this time."""
    lost_before_ms: int | None = None
    """Topics that the cluster lost before this go with all they have."""
    compacted_too: bool = False
    """Whether compacted topics, and those of unknown policy, lose data by age and size too."""

    @property
    def given(self) -> bool:
        limits = (self.before_ms, self.topic_bytes_max, self.archive_bytes_max, self.as_source_at_ms)
        return any(each is not None for each in (*limits, self.lost_before_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What the newest snapshot knows of a topic. None: unknown."""

    cleanup_policy: str | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    known: bool = False
    """Whether the retention is known; a negative one is no limit."""
    lost_at_ms: int | None = None
    """When the cluster was last seen with the topic, if it is gone."""

    @property
    def compacted(self) -> bool | None:
        """Whether its data has no end by age: with `compact,delete` Kafka itself deletes old segments."""
        if self.cleanup_policy is None:
            return None
        words = {word.strip() for word in self.cleanup_policy.split(",")}
        return "compact" in words and "delete" not in words


UNKNOWN: Final = TopicFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Neighbouring segments of one partition that stay or go for the same reason."""

    topic: str
    topic_id: str
    partition: int
    first_offset: int
    end_offset: int
    segments: int
    records: int
    bytes: int
    keep: bool
    reason: str
    replaced: bool
    """Whether later rows have replaced them: only queries as of an older run return them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPlan:
    rows: pa.Table
    """Every row of data, by partition and offset; those of kind replaced come after all others."""
    reasons: NDArray[np.int64]
    """The `Reason` of each."""
    holders: NDArray[np.int64]
    words: Sequence[str] = ()
    """The holds, by the numbers in `holders`."""

    @property
    def going(self) -> pa.Table:
        return self.rows.filter(pa.array(self.reasons >= Reason.AGE))

    def items(self) -> list[Item]:
        return _items(self)


@dataclass(slots=True)
class _Columns:
    """Rows as arrays. `partition` and `topic` number the distinct ones in the order of rows."""

    rows: pa.Table
    topic_ids: list[str]
    topic: NDArray[np.int64]
    partition: NDArray[np.int64]
    bytes: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    at: NDArray[np.int64]
    """The time of its newest record; without one, the time at which the row was written."""
    live: NDArray[np.bool_]
    reached: NDArray[np.int64] = field(init=False)
    """The newest record in the row and all rows before it in its partition; of replaced rows, in the row itself."""

    def __post_init__(self) -> None:
        self.reached = np.where(self.live, _running_max(self.partition, self.at), self.at)

    @property
    def newest(self) -> NDArray[np.bool_]:
        """The last live row of each partition."""
        last = np.zeros(len(self.at), np.bool_)
        live = np.flatnonzero(self.live)
        if live.size:
            ends = np.flatnonzero(np.append(np.diff(self.partition[live]) != 0, True))
            last[live[ends]] = True
        return last


def plan_segments(
    live: pa.Table,
    replaced: pa.Table,
    policy: SegmentPolicy,
    topics: Mapping[str, TopicFacts],
    *,
    selected: Collection[str],
    holders: NDArray[np.int64] | None = None,
    holds: Sequence[str] = (),
    in_order: bool = False,
) -> SegmentPlan:
    """Decide for every row of data. `live` are sorted; `replaced` are rows of kind replaced that hold data.

    `selected` are the topic ids that the policy is about. `holders` has for each row, live ones first, the number of
    the hold in `holds` that holds it, or -1. `in_order`: nothing may go behind a row that stays, because the layout
    could not say why.
    """
    live = live.filter(pc.equal(live["kind"], Kind.DATA))
    replaced = replaced.sort_by(SORT_ORDER)
    rows = pa.concat_tables([live, replaced])
    held = np.full(rows.num_rows, -1, np.int64) if holders is None else holders
    columns = _columns(rows, live.num_rows)
    reasons = np.full(rows.num_rows, int(Reason.NO_RULE), np.int64)
    if rows.num_rows:
        _decide(columns, policy, topics, selected, held >= 0, reasons)
        if in_order:
            _keep_behind(columns, reasons)
    return SegmentPlan(rows=rows, reasons=reasons, holders=held, words=holds)


def _decide(
    columns: _Columns,
    policy: SegmentPolicy,
    topics: Mapping[str, TopicFacts],
    selected: Collection[str],
    held: NDArray[np.bool_],
    reasons: NDArray[np.int64],
) -> None:
    facts = [topics.get(each, UNKNOWN) for each in columns.topic_ids]
    asked = _per_topic(columns, [each in selected for each in columns.topic_ids])
    lost_before = _NEVER if policy.lost_before_ms is None else policy.lost_before_ms
    deleted = asked & _per_topic(
        columns, [each.lost_at_ms is not None and each.lost_at_ms < lost_before for each in facts]
    )
    reasons[~asked] = Reason.NOT_SELECTED
    reasons[deleted & ~held] = Reason.DELETED
    by_size_or_age = any(
        each is not None
        for each in (policy.before_ms, policy.topic_bytes_max, policy.archive_bytes_max, policy.as_source_at_ms)
    )
    if by_size_or_age:
        compacted = [None if policy.compacted_too else each.compacted for each in facts]
        unknown = [each.cleanup_policy is None and not policy.compacted_too for each in facts]
        free = asked & ~deleted
        newest = columns.newest
        reasons[free & _per_topic(columns, unknown)] = Reason.POLICY_UNKNOWN
        reasons[free & _per_topic(columns, [bool(each) for each in compacted])] = Reason.COMPACTED
        reasons[free & newest & (reasons == Reason.NO_RULE)] = Reason.NEWEST
        _by_age(columns, policy, reasons, held)
        _by_source(columns, policy, facts, reasons, held)
        _by_bytes(columns, policy.topic_bytes_max, columns.topic, Reason.TOPIC_BYTES, reasons, held)
        everything = np.zeros(len(reasons), np.int64)
        _by_bytes(columns, policy.archive_bytes_max, everything, Reason.ARCHIVE_BYTES, reasons, held)
    reasons[held & asked & (reasons == Reason.NO_RULE)] = Reason.HELD
    reasons[held & deleted] = Reason.HELD


def _by_age(columns: _Columns, policy: SegmentPolicy, reasons: NDArray[np.int64], held: NDArray[np.bool_]) -> None:
    if policy.before_ms is None:
        return
    old = columns.reached < policy.before_ms
    # All its records are old, but a row before it has newer ones.
    reasons[(columns.at < policy.before_ms) & ~old & (reasons == Reason.NO_RULE) & ~held] = Reason.BEHIND
    reasons[old & (reasons == Reason.NO_RULE) & ~held] = Reason.AGE


def _by_source(
    columns: _Columns,
    policy: SegmentPolicy,
    facts: Sequence[TopicFacts],
    reasons: NDArray[np.int64],
    held: NDArray[np.bool_],
) -> None:
    """Kafka's own rules: `retention.ms` of a topic, and `retention.bytes` of each of its partitions."""
    at = policy.as_source_at_ms
    if at is None:
        return
    reasons[(reasons == Reason.NO_RULE) & ~_per_topic(columns, [each.known for each in facts])] = Reason.SOURCE_UNKNOWN
    limits = [
        _NEVER if each.retention_ms is None or each.retention_ms < 0 else at - each.retention_ms for each in facts
    ]
    old = columns.reached < np.array(limits, np.int64)[columns.topic]
    reasons[old & (reasons == Reason.NO_RULE) & ~held] = Reason.SOURCE_AGE
    sizes = np.array([-1 if each.retention_bytes is None else each.retention_bytes for each in facts], np.int64)
    limit = sizes[columns.topic]
    raw = np.where(columns.live, columns.raw_bytes, 0)
    total = np.bincount(columns.partition, weights=raw).astype(np.int64)[columns.partition]
    # A segment goes if what remains is still as large as the limit.
    beyond = columns.live & (limit >= 0) & (_running_sum(columns.partition, raw) <= total - limit)
    reasons[beyond & (reasons == Reason.NO_RULE) & ~held] = Reason.SOURCE_BYTES


def _by_bytes(
    columns: _Columns,
    limit: int | None,
    group: NDArray[np.int64],
    reason: Reason,
    reasons: NDArray[np.int64],
    held: NDArray[np.bool_],
) -> None:
    """Let the oldest rows of each group go until the rest fits; the order of offsets within a partition is kept."""
    if limit is None:
        return
    stays = reasons < Reason.AGE
    counted = reasons != Reason.NOT_SELECTED if reason is Reason.TOPIC_BYTES else np.ones(len(reasons), np.bool_)
    total = np.bincount(group, weights=np.where(stays & counted, columns.bytes, 0)).astype(np.int64)
    eligible = np.flatnonzero((reasons == Reason.NO_RULE) & ~held)
    order = eligible[np.lexsort((eligible, columns.reached[eligible], group[eligible]))]
    before = _running_sum(group[order], columns.bytes[order]) - columns.bytes[order]
    reasons[order[before < (total - limit)[group[order]]]] = reason


def _keep_behind(columns: _Columns, reasons: NDArray[np.int64]) -> None:
    stays = (reasons < Reason.AGE) & columns.live
    blocked = _running_max(columns.partition, stays.astype(np.int64)) > 0
    reasons[blocked & (reasons >= Reason.AGE) & columns.live] = Reason.BEHIND


def _columns(rows: pa.Table, live: int) -> _Columns:
    count = rows.num_rows
    encoded = (
        rows["topic_id"].combine_chunks().dictionary_encode()
        if count
        else pa.array([], pa.string()).dictionary_encode()
    )
    topic = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64) if count else np.zeros(0, np.int64)
    number = _numbers(rows, "partition")
    fresh = np.ones(count, np.bool_)
    fresh[1:] = (topic[1:] != topic[:-1]) | (number[1:] != number[:-1])
    if 0 < live < count:
        fresh[live] = True
    at = pc.coalesce(rows["max_timestamp"], rows["written_at"])
    return _Columns(
        rows=rows,
        topic_ids=encoded.dictionary.to_pylist(),
        topic=topic,
        partition=np.cumsum(fresh) - 1,
        bytes=_numbers(rows, "bytes"),
        raw_bytes=_numbers(rows, "raw_bytes"),
        at=at.to_numpy().astype(np.int64) if count else np.zeros(0, np.int64),
        live=np.arange(count) < live,
    )


def _numbers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = pc.fill_null(rows[name], 0).to_numpy().astype(np.int64)
    return numbers


def _per_topic(columns: _Columns, values: Sequence[bool]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.array(values, np.bool_)[columns.topic]
    return found


def _running_max(group: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The highest value of the group so far. Groups rise. Ranks, because values use all 64 bits."""
    count = len(values)
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_value] = np.arange(count)
    highest = np.maximum.accumulate(group * count + rank) - group * count
    found: NDArray[np.int64] = values[by_value[highest]]
    return found


def _running_sum(group: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the group so far, this value included. Equal groups are neighbours."""
    if not len(values):
        return values
    sums = np.cumsum(values)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    before = np.repeat(sums[first] - values[first], np.diff(np.append(first, len(values))))
    found: NDArray[np.int64] = sums - before
    return found


def _items(plan: SegmentPlan) -> list[Item]:
    rows = plan.rows
    if not rows.num_rows:
        return []
    live = int(pc.sum(pc.equal(rows["kind"], Kind.DATA)).as_py())
    columns = _columns(rows, live)
    holder = np.where(plan.reasons == Reason.HELD, plan.holders, -1)
    changes = (np.diff(columns.partition) != 0) | (np.diff(plan.reasons) != 0) | (np.diff(holder) != 0)
    first = np.flatnonzero(np.append(True, changes))
    last = np.append(first[1:], rows.num_rows) - 1
    heads = rows.select(["topic", "topic_id", "partition", "base_offset"]).take(pa.array(first)).to_pylist()
    ends = rows["end_offset"].to_numpy()[last].tolist()
    sums: dict[str, Any] = {
        name: np.add.reduceat(_numbers(rows, name), first).tolist() for name in ("records", "bytes")
    }
    return [
        Item(
            topic=head["topic"],
            topic_id=head["topic_id"],
            partition=head["partition"],
            first_offset=head["base_offset"],
            end_offset=ends[number],
            segments=int(last[number] - first[number] + 1),
            records=sums["records"][number],
            bytes=sums["bytes"][number],
            keep=not Reason(int(plan.reasons[first[number]])).goes,
            reason=_words(plan, int(first[number])),
            replaced=bool(first[number] >= live),
        )
        for number, head in enumerate(heads)
    ]


def _words(plan: SegmentPlan, row: int) -> str:
    reason = Reason(int(plan.reasons[row]))
    if reason is Reason.HELD and plan.holders[row] >= 0 and plan.words:
        return plan.words[int(plan.holders[row])]
    return WORDS[reason]
