"""The rows of data that a policy takes away, and why each of the others stays. Pure and vectorised.

Segments go whole, and oldest first: a rule by age or size takes rows from the start of a partition's log, as Kafka's
retention does. The newest row of a partition stays, so that a backup can continue after it. A compacted topic loses
nothing by age or size: its oldest record may be the newest of its key, and a complete state must stay.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a field of a dataclass
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.portions import hash_paths
from maxbrod.catalog.rows import newest_times
from maxbrod.prune.sizes import ARCHIVE_BYTES, TOPIC_BYTES, Oversize, SizedRows, running_sum

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray


PLAN_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "path"),
    *("bytes", "raw_bytes", "records", "min_timestamp", "max_timestamp", "written_at"),
)
"""The columns that planning reads. Holds need more."""
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
    TOPIC_BYTES = TOPIC_BYTES
    ARCHIVE_BYTES = ARCHIVE_BYTES
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
    def sized(self) -> bool:
        """True if a limit is about the size of more than one partition."""
        return self.topic_bytes_max is not None or self.archive_bytes_max is not None

    @property
    def given(self) -> bool:
        limits = (self.before_ms, self.topic_bytes_max, self.archive_bytes_max, self.as_source_at_ms)
        return any(each is not None for each in (*limits, self.lost_before_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the newest snapshot knows it. None: unknown."""

    cleanup_policy: str | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    known: bool = False
    """Whether the retention is known; a negative one is no limit."""
    lost_at_ms: int | None = None
    """When the cluster was last seen with the topic, if it is gone."""

    @property
    def compacted(self) -> bool | None:
        """True if its data has no end by age: with `compact,delete` Kafka itself deletes old segments."""
        if self.cleanup_policy is None:
            return None
        words = {word.strip() for word in self.cleanup_policy.split(",")}
        return "compact" in words and "delete" not in words


UNKNOWN: Final = TopicFacts()


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

    @property
    def kept(self) -> pa.Table:
        return self.rows.filter(pa.array(self.reasons < Reason.AGE))


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
    selected: Collection[str] | None = None,
    holders: NDArray[np.int64] | None = None,
    holds: Sequence[str] = (),
    in_order: bool = False,
    sizes: Oversize | None = None,
) -> SegmentPlan:
    """Decide for every row. `live` are rows of data, `replaced` rows of kind replaced that hold data; both are sorted.

    The rows may be a portion of all rows, if it has all rows of its partitions. Limits by size are about more than one
    partition: then `sizes` has been given all portions by `weigh_segments`, and tells which rows of this one go.
    `selected` are the topic ids that the policy is about, or None: all. `holders` has for each row, live ones first,
    the number of the hold in `holds` that holds it, or -1. `in_order`: nothing may go behind a row that stays, because
    the layout could not say why.
    """
    weighed = _Weighed.of(live, replaced, policy, topics, selected, holders)
    columns, reasons, held = weighed.columns, weighed.reasons, weighed.held
    if policy.sized:
        if sizes is None:
            sizes = Oversize(policy.topic_bytes_max, policy.archive_bytes_max)
            sizes.add(weighed.sized())
        too_much = sizes.take(len(reasons))
        reasons[too_much > 0] = too_much[too_much > 0]
    if len(reasons):
        reasons[held & weighed.asked & (reasons == Reason.NO_RULE)] = Reason.HELD
        reasons[held & weighed.deleted] = Reason.HELD
        if in_order:
            _keep_behind(columns, reasons)
    return SegmentPlan(rows=columns.rows, reasons=reasons, holders=weighed.holders, words=holds)


def weigh_segments(
    live: pa.Table,
    replaced: pa.Table,
    policy: SegmentPolicy,
    topics: Mapping[str, TopicFacts],
    *,
    selected: Collection[str] | None = None,
    holders: NDArray[np.int64] | None = None,
) -> SizedRows:
    """Return what limits by size need to know of these rows. The arguments are those of `plan_segments`."""
    return _Weighed.of(live, replaced, policy, topics, selected, holders).sized()


@dataclass(slots=True, kw_only=True)
class _Weighed:
    """Rows with the reasons of all rules but those by size."""

    columns: _Columns
    reasons: NDArray[np.int64]
    holders: NDArray[np.int64]
    asked: NDArray[np.bool_]
    deleted: NDArray[np.bool_]

    @property
    def held(self) -> NDArray[np.bool_]:
        held: NDArray[np.bool_] = self.holders >= 0
        return held

    @classmethod
    def of(
        cls,
        live: pa.Table,
        replaced: pa.Table,
        policy: SegmentPolicy,
        topics: Mapping[str, TopicFacts],
        selected: Collection[str] | None,
        holders: NDArray[np.int64] | None,
    ) -> _Weighed:
        rows = pa.concat_tables([live, replaced]) if replaced.num_rows else live
        columns = _columns(rows, live.num_rows)
        facts = [topics.get(each, UNKNOWN) for each in columns.topic_ids]
        asked = _per_topic(columns, [selected is None or each in selected for each in columns.topic_ids])
        lost_before = _NEVER if policy.lost_before_ms is None else policy.lost_before_ms
        lost = [fact.lost_at_ms is not None and fact.lost_at_ms < lost_before for fact in facts]
        found = cls(
            columns=columns,
            reasons=np.full(rows.num_rows, int(Reason.NO_RULE), np.int64),
            holders=np.full(rows.num_rows, -1, np.int64) if holders is None else holders,
            asked=asked,
            deleted=asked & _per_topic(columns, lost),
        )
        if rows.num_rows:
            _decide(found, policy, facts)
        return found

    def sized(self) -> SizedRows:
        return SizedRows(
            topic_ids=self.columns.topic_ids,
            topic=self.columns.topic,
            reached=self.columns.reached,
            bytes=self.columns.bytes,
            eligible=(self.reasons == Reason.NO_RULE) & ~self.held,
            stays=self.reasons < Reason.AGE,
            asked=self.asked,
        )


def _decide(weighed: _Weighed, policy: SegmentPolicy, facts: Sequence[TopicFacts]) -> None:
    """Apply all rules but those by size."""
    columns, reasons, held = weighed.columns, weighed.reasons, weighed.held
    reasons[~weighed.asked] = Reason.NOT_SELECTED
    reasons[weighed.deleted & ~held] = Reason.DELETED
    if policy.before_ms is None and policy.as_source_at_ms is None and not policy.sized:
        return
    compacted = [None if policy.compacted_too else fact.compacted for fact in facts]
    unknown = [fact.cleanup_policy is None and not policy.compacted_too for fact in facts]
    free = weighed.asked & ~weighed.deleted
    reasons[free & _per_topic(columns, unknown)] = Reason.POLICY_UNKNOWN
    reasons[free & _per_topic(columns, [bool(each) for each in compacted])] = Reason.COMPACTED
    reasons[free & columns.newest & (reasons == Reason.NO_RULE)] = Reason.NEWEST
    _by_age(columns, policy, reasons, held)
    _by_source(columns, policy, facts, reasons, held)


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
    reasons[(reasons == Reason.NO_RULE) & ~_per_topic(columns, [fact.known for fact in facts])] = Reason.SOURCE_UNKNOWN
    limits = [
        _NEVER if fact.retention_ms is None or fact.retention_ms < 0 else at - fact.retention_ms for fact in facts
    ]
    old = columns.reached < np.array(limits, np.int64)[columns.topic]
    reasons[old & (reasons == Reason.NO_RULE) & ~held] = Reason.SOURCE_AGE
    sizes = np.array([-1 if fact.retention_bytes is None else fact.retention_bytes for fact in facts], np.int64)
    limit = sizes[columns.topic]
    raw = np.where(columns.live, columns.raw_bytes, 0)
    total = np.bincount(columns.partition, weights=raw).astype(np.int64)[columns.partition]
    # A segment goes if what remains is still as large as the limit.
    beyond = columns.live & (limit >= 0) & (running_sum(columns.partition, raw) <= total - limit)
    reasons[beyond & (reasons == Reason.NO_RULE) & ~held] = Reason.SOURCE_BYTES


def _keep_behind(columns: _Columns, reasons: NDArray[np.int64]) -> None:
    stays = (reasons < Reason.AGE) & columns.live
    blocked = _running_max(columns.partition, stays.astype(np.int64)) > 0
    reasons[blocked & (reasons >= Reason.AGE) & columns.live] = Reason.BEHIND


def places_of(rows: pa.Table, live: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """The topic ids of the rows, and for each row the number of its topic among them, and that of its partition.

    The first `live` rows, and the others, are sorted each: a partition has one number among the former and another
    among the latter.
    """
    ids = rows["topic_id"].combine_chunks() if rows.num_rows else pa.array([], pa.string())
    encoded = ids.dictionary_encode()
    topic = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    number = numbers_of(rows, "partition")
    fresh = np.ones(rows.num_rows, np.bool_)
    fresh[1:] = (topic[1:] != topic[:-1]) | (number[1:] != number[:-1])
    if 0 < live < rows.num_rows:
        fresh[live] = True
    return encoded.dictionary.to_pylist(), topic, np.cumsum(fresh) - 1


def _columns(rows: pa.Table, live: int) -> _Columns:
    count = rows.num_rows
    topic_ids, topic, partition = places_of(rows, live)
    # Records are hardly newer than the object that has them, unless one says so.
    at = pc.coalesce(newest_times(rows), pc.max_element_wise(rows["min_timestamp"], rows["written_at"]))
    return _Columns(
        rows=rows,
        topic_ids=topic_ids,
        topic=topic,
        partition=partition,
        bytes=numbers_of(rows, "bytes"),
        raw_bytes=numbers_of(rows, "raw_bytes"),
        at=at.to_numpy().astype(np.int64) if count else np.zeros(0, np.int64),
        live=np.arange(count) < live,
    )


def numbers_of(rows: pa.Table, name: str) -> NDArray[np.int64]:
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


class FreedObjects:
    """Counts the objects that a prune leaves without a slice that stays.

    A pack has slices of many partitions, and partitions are read in portions: so objects are remembered over all
    portions, by 64-bit hashes of their names, in 17 bytes for each.
    """

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.int64]] = []
        self._going: list[NDArray[np.int64]] = []
        self._kept: list[NDArray[np.bool_]] = []

    def add(self, plan: SegmentPlan) -> None:
        goes = pa.array(plan.reasons >= Reason.AGE)
        size = pc.if_else(goes, plan.rows["bytes"].combine_chunks(), 0)
        rows = pa.table({"path": plan.rows["path"], "going": size, "kept": pc.invert(goes).cast(pa.int8())})
        found = rows.group_by("path").aggregate([("going", "sum"), ("kept", "max")])
        self._hashes.append(hash_paths(found["path"].to_pylist()))
        self._going.append(found["going_sum"].to_numpy())
        self._kept.append(found["kept_max"].to_numpy().astype(np.bool_))

    def total(self) -> tuple[int, int]:
        """Return how many objects lose all their slices, and the size of those slices."""
        hashes = np.concatenate([np.empty(0, np.int64), *self._hashes])
        if not len(hashes):
            return 0, 0
        order = np.argsort(hashes)
        hashes = hashes[order]
        first = np.flatnonzero(np.append(True, hashes[1:] != hashes[:-1]))
        kept = np.logical_or.reduceat(np.concatenate(self._kept)[order], first)
        going = np.add.reduceat(np.concatenate(self._going)[order], first)
        return int((~kept).sum()), int(going[~kept].sum())
