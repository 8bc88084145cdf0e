"""The rows of data that a policy takes away, and why each of the others stays. Pure and vectorised.

Segments go whole, and oldest first: a rule by age or size takes rows from the start of a partition's log, as Kafka's
retention does. The newest row of a partition stays, so that a backup can continue after it. A compacted topic loses
nothing by age or size: its oldest record may be the newest of its key, and a complete state must stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maxbrod.catalog.queries import hash_paths
from maxbrod.catalog.rows import newest_times

if TYPE_CHECKING:
    from numpy.typing import NDArray


PLAN_COLUMNS: Final = (
    *("topic", "topic_id", "partition", "base_offset", "end_offset", "kind", "path"),
    *("bytes", "raw_bytes", "records", "min_timestamp", "max_timestamp", "written_at"),
)
"""The columns that planning reads. Holds need more."""
_NEVER: Final = -(2**63)
_ELIGIBLE, _STAYS, _ASKED = 1, 2, 4


class Reason(IntEnum):
    """The reason why a row stays (below `AGE`) or goes. The rule that is asked first decides."""

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
    """True if compacted topics, and those of unknown policy, lose data by age and size too."""

    @property
    def sized(self) -> bool:
        """True if a limit is about the size of more than one partition."""
        return self.topic_bytes_max is not None or self.archive_bytes_max is not None

    @property
    def given(self) -> bool:
        limits = (self.before_ms, self.topic_bytes_max, self.archive_bytes_max, self.as_source_at_ms)
        return any(limit is not None for limit in (*limits, self.lost_before_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the newest snapshot knows it. None: unknown."""

    cleanup_policy: str | None = None
    retention_ms: int | None = None
    retention_bytes: int | None = None
    known: bool = False
    """True if the retention is known; a negative one is no limit."""
    lost_at_ms: int | None = None
    """The time at which the cluster was last seen with the topic, if it is gone."""

    @property
    def compacted(self) -> bool | None:
        """True if its data has no end by age: with `compact,delete` Kafka itself deletes old segments."""
        if self.cleanup_policy is None:
            return None
        words = {word.strip() for word in self.cleanup_policy.split(",")}
        return "compact" in words and "delete" not in words


UNKNOWN: Final = TopicFacts()


class JudgedRows:
    """Rows of data, and the reason why each stays or goes. Rules by size come last: see `Oversize`."""

    def __init__(
        self,
        live: pa.Table,
        replaced: pa.Table,
        policy: SegmentPolicy,
        topics: Mapping[str, TopicFacts],
        *,
        selected: Collection[str] | None = None,
        holders: NDArray[np.int64] | None = None,
    ) -> None:
        """Apply all rules but those by size.

        `live` are rows of data, `replaced` rows of kind replaced that hold data; both are sorted. They may be a portion
        of all rows, if it has all rows of its partitions. `selected` are the topic ids that the policy is about, or
        None: all. `holders` has for each row, live ones first, the number of the hold that holds it, or -1.
        """
        rows = self.rows = pa.concat_tables([live, replaced]) if replaced.num_rows else live
        count = rows.num_rows
        self.live: NDArray[np.bool_] = np.arange(count) < live.num_rows
        self.topic_ids, self.topic, self.partition = _places(rows, live.num_rows)
        # Records are hardly newer than the object that has them, unless one says so.
        at = pc.coalesce(newest_times(rows), pc.max_element_wise(rows["min_timestamp"], rows["written_at"]))
        self.at: NDArray[np.int64] = at.to_numpy().astype(np.int64) if count else np.zeros(0, np.int64)
        # The newest record in the row and all rows before it in its partition; of replaced rows, in the row itself.
        self.reached = np.where(self.live, _running_max(self.partition, self.at), self.at)
        self.reasons = np.full(count, int(Reason.NO_RULE), np.int64)
        self.holders = np.full(count, -1, np.int64) if holders is None else holders
        self.held: NDArray[np.bool_] = self.holders >= 0
        facts = [topics.get(topic_id, UNKNOWN) for topic_id in self.topic_ids]
        self.asked = self._per_topic([selected is None or topic_id in selected for topic_id in self.topic_ids])
        lost_before = _NEVER if policy.lost_before_ms is None else policy.lost_before_ms
        lost = [fact.lost_at_ms is not None and fact.lost_at_ms < lost_before for fact in facts]
        self.deleted = self.asked & self._per_topic(lost)
        if count:
            self._decide(policy, facts)

    @property
    def going(self) -> pa.Table:
        return self.rows.filter(pa.array(self.reasons >= Reason.AGE))

    @property
    def kept(self) -> pa.Table:
        return self.rows.filter(pa.array(self.reasons < Reason.AGE))

    def finish(self, sizes: Oversize | None = None, *, in_order: bool = False) -> None:
        """Apply the rules by size, for which `sizes` has been given all portions, and say which rows only a hold keeps.

        `in_order`: nothing may go behind a row that stays, because the layout could not say why.
        """
        reasons = self.reasons
        if sizes is not None:
            too_much = sizes.take(len(reasons))
            reasons[too_much > 0] = too_much[too_much > 0]
        if not len(reasons):
            return
        reasons[self.held & self.asked & (reasons == Reason.NO_RULE)] = Reason.HELD
        reasons[self.held & self.deleted] = Reason.HELD
        if in_order:
            stays = (reasons < Reason.AGE) & self.live
            blocked = _running_max(self.partition, stays.astype(np.int64)) > 0
            reasons[blocked & (reasons >= Reason.AGE) & self.live] = Reason.BEHIND

    def _decide(self, policy: SegmentPolicy, facts: Sequence[TopicFacts]) -> None:
        reasons = self.reasons
        reasons[~self.asked] = Reason.NOT_SELECTED
        reasons[self.deleted & ~self.held] = Reason.DELETED
        if policy.before_ms is None and policy.as_source_at_ms is None and not policy.sized:
            return
        compacted = [not policy.compacted_too and bool(fact.compacted) for fact in facts]
        unknown = [not policy.compacted_too and fact.cleanup_policy is None for fact in facts]
        free = self.asked & ~self.deleted
        reasons[free & self._per_topic(unknown)] = Reason.POLICY_UNKNOWN
        reasons[free & self._per_topic(compacted)] = Reason.COMPACTED
        # The last live row of each partition.
        live = np.flatnonzero(self.live)
        newest = np.zeros(len(reasons), np.bool_)
        newest[live[np.append(np.diff(self.partition[live]) != 0, True)] if live.size else live] = True
        reasons[free & newest & (reasons == Reason.NO_RULE)] = Reason.NEWEST
        if policy.before_ms is not None:
            old = self.reached < policy.before_ms
            # All its records are old, but a row before it has newer ones.
            self._take((self.at < policy.before_ms) & ~old, Reason.BEHIND)
            self._take(old, Reason.AGE)
        if policy.as_source_at_ms is not None:
            self._decide_as_source(policy.as_source_at_ms, facts)

    def _decide_as_source(self, at_ms: int, facts: Sequence[TopicFacts]) -> None:
        """Apply Kafka's own rules: `retention.ms` of a topic, and `retention.bytes` of each of its partitions."""
        unknown = ~self._per_topic([fact.known for fact in facts])
        self.reasons[(self.reasons == Reason.NO_RULE) & unknown] = Reason.SOURCE_UNKNOWN
        limits = [
            _NEVER if fact.retention_ms is None or fact.retention_ms < 0 else at_ms - fact.retention_ms
            for fact in facts
        ]
        self._take(self.reached < np.array(limits, np.int64)[self.topic], Reason.SOURCE_AGE)
        sizes = [-1 if fact.retention_bytes is None else fact.retention_bytes for fact in facts]
        limit = np.array(sizes, np.int64)[self.topic]
        raw = np.where(self.live, numbers_of(self.rows, "raw_bytes"), 0)
        total = np.bincount(self.partition, weights=raw).astype(np.int64)[self.partition]
        # A segment goes if what remains is still as large as the limit.
        self._take(self.live & (limit >= 0) & (_running_sum(self.partition, raw) <= total - limit), Reason.SOURCE_BYTES)

    def _take(self, rows: NDArray[np.bool_], reason: Reason) -> None:
        """Give this reason to rows that have none yet, and that nothing holds."""
        self.reasons[rows & (self.reasons == Reason.NO_RULE) & ~self.held] = reason

    def _per_topic(self, values: Sequence[bool]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = np.array(values, np.bool_)[self.topic]
        return found


def _places(rows: pa.Table, live: int) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
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


def numbers_of(rows: pa.Table, name: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = pc.fill_null(rows[name], 0).to_numpy().astype(np.int64)
    return numbers


def _running_max(group: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The highest value of the group so far. Groups rise. Ranks, because values use all 64 bits."""
    count = len(values)
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(count, np.int64)
    rank[by_value] = np.arange(count)
    highest = np.maximum.accumulate(group * count + rank) - group * count
    found: NDArray[np.int64] = values[by_value[highest]]
    return found


class Oversize:
    """The rows that go so that topics, and the archive, fit their limits of size: the oldest first.

    Such a limit is about rows of many partitions, but rows are read in portions of some. So of every row only a few
    numbers are kept, 20 bytes in all, until all portions are known. Give it all rows by `add`, then `take` the
    decisions for them in the same order.
    """

    def __init__(self, policy: SegmentPolicy) -> None:
        self._topic_max, self._archive_max = policy.topic_bytes_max, policy.archive_bytes_max
        self._numbers: dict[str, int] = {}
        self._topic: list[NDArray[np.int32]] = []
        self._reached: list[NDArray[np.int64]] = []
        self._bytes: list[NDArray[np.int64]] = []
        self._flags: list[NDArray[np.int8]] = []
        self._reasons: NDArray[np.int8] | None = None
        self._taken = 0

    def add(self, rows: JudgedRows) -> None:
        numbers = [self._numbers.setdefault(topic_id, len(self._numbers)) for topic_id in rows.topic_ids]
        self._topic.append(np.array(numbers, np.int32)[rows.topic])
        self._reached.append(rows.reached)
        self._bytes.append(numbers_of(rows.rows, "bytes"))
        eligible = (rows.reasons == Reason.NO_RULE) & ~rows.held
        flags = eligible * _ELIGIBLE + (rows.reasons < Reason.AGE) * _STAYS + rows.asked * _ASKED
        self._flags.append(flags.astype(np.int8))

    def take(self, count: int) -> NDArray[np.int8]:
        """The reason why each of the next rows goes, or 0."""
        if self._reasons is None:
            self._reasons = self._decide()
        self._taken += count
        return self._reasons[self._taken - count : self._taken]

    def _decide(self) -> NDArray[np.int8]:
        topic, flags = _joined(self._topic, np.int32), _joined(self._flags, np.int8)
        reached, size = _joined(self._reached, np.int64), _joined(self._bytes, np.int64)
        for gathered in (self._topic, self._flags, self._reached, self._bytes):
            gathered.clear()
        reasons = np.zeros(len(topic), np.int8)
        if self._topic_max is not None:
            counted = (flags & _STAYS > 0) & (flags & _ASKED > 0)
            total = np.bincount(topic, weights=np.where(counted, size, 0), minlength=1).astype(np.int64)
            eligible = np.flatnonzero(flags & _ELIGIBLE)
            gone = _oldest(eligible, topic, reached, size, total - self._topic_max)
            reasons[gone] = Reason.TOPIC_BYTES
            flags[gone] = 0
        if self._archive_max is not None:
            total = np.array([size[flags & _STAYS > 0].sum()], np.int64)
            eligible = np.flatnonzero(flags & _ELIGIBLE)
            nowhere = np.zeros(len(topic), np.int8)
            reasons[_oldest(eligible, nowhere, reached, size, total - self._archive_max)] = Reason.ARCHIVE_BYTES
        return reasons


def _oldest(
    eligible: NDArray[np.int64],
    group: NDArray[np.signedinteger],
    reached: NDArray[np.int64],
    size: NDArray[np.int64],
    excess: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The oldest rows of each group, until they are as large as its excess. Rows of one age keep their order."""
    order = eligible[np.lexsort((eligible, reached[eligible], group[eligible]))]
    before = _running_sum(group[order], size[order]) - size[order]
    gone: NDArray[np.int64] = order[before < excess[group[order]]]
    return gone


def _running_sum(group: NDArray[np.signedinteger], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the group so far, this value included. Equal groups are neighbours."""
    if not len(values):
        return values
    sums = np.cumsum(values)
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    before = np.repeat(sums[first] - values[first], np.diff(np.append(first, len(values))))
    found: NDArray[np.int64] = sums - before
    return found


def _joined(pieces: Sequence[NDArray[np.signedinteger]], kind: type[np.signedinteger]) -> NDArray[np.signedinteger]:
    return np.concatenate([np.empty(0, kind), *pieces])


class FreedObjects:
    """Counts the objects that a prune leaves without a slice that stays.

    A pack has slices of many partitions, and partitions are read in portions: so objects are remembered over all
    portions, by 64-bit hashes of their names, in 17 bytes for each.
    """

    def __init__(self) -> None:
        self._hashes: list[NDArray[np.int64]] = []
        self._going: list[NDArray[np.int64]] = []
        self._kept: list[NDArray[np.bool_]] = []

    def add(self, judged: JudgedRows) -> None:
        goes = pa.array(judged.reasons >= Reason.AGE)
        size = pc.if_else(goes, judged.rows["bytes"].combine_chunks(), 0)
        rows = pa.table({"path": judged.rows["path"], "going": size, "kept": pc.invert(goes).cast(pa.int8())})
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
