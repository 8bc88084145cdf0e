"""The scope of a read: topics, partitions, offsets and times, from options and from Spark's filters. Pure.

A filter narrows the scope to records that may pass it, and Spark still applies the filter itself. So a filter that is
not understood here costs time, never records. A query that reads a table in several places has a scope for each, and
everything in one of the scopes is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from pyspark.sql import datasource as spark

from maxbrod.batch.cuts import Cut

if TYPE_CHECKING:
    from maxbrod.layouts.kafka.format import Slice

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US_PER_MS: Final = 1000
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """None: no limit. Offsets and times are [first, end), times in milliseconds."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    partitions: frozenset[int] | None = None
    first_offset: int = 0
    end_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def has_topic(self, name: str) -> bool:
        return name.startswith(self.topic_prefix) and (self.topics is None or name in self.topics)

    def has_partition(self, number: int) -> bool:
        return self.partitions is None or number in self.partitions

    def covers(self, other: Scope) -> bool:
        """True if this scope contains the other one."""
        return (
            _holds(self.topics, other.topics)
            and (other.topic_prefix.startswith(self.topic_prefix) or _all_start(other.topics, self.topic_prefix))
            and _holds(self.partitions, other.partitions)
            and self.first_offset <= other.first_offset
            and _reaches(self.end_offset, other.end_offset)
            and (self.since_ms is None or (other.since_ms is not None and self.since_ms <= other.since_ms))
            and _reaches(self.until_ms, other.until_ms)
        )


def both(one: Scope, other: Scope) -> Scope:
    """The intersection."""
    return Scope(
        topics=one.topics if other.topics is None else _common(one.topics, other.topics),
        topic_prefix=max(one.topic_prefix, other.topic_prefix, key=len),
        partitions=one.partitions if other.partitions is None else _common(one.partitions, other.partitions),
        first_offset=max(one.first_offset, other.first_offset),
        end_offset=_lower(one.end_offset, other.end_offset),
        since_ms=_higher(one.since_ms, other.since_ms),
        until_ms=_lower(one.until_ms, other.until_ms),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartition:
    """The partition that every record of a slice comes from."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRead:
    """One slice of one partition, to be read from `first_offset` up to but not `end_offset`.

    Defined here because it travels to the tasks, which then need not load what plans a read (Delta).
    """

    source: SourcePartition
    stored: Slice
    first_offset: int = 0
    end_offset: int

    def cut(self, scopes: Sequence[Scope]) -> Cut:
        """The part of it that may be in one of the scopes."""
        found = cut_of(scopes, self.source.topic, self.source.partition, self.end_offset)
        return replace(found, first_offset=max(found.first_offset, self.first_offset))


def cut_of(scopes: Sequence[Scope], topic: str, partition: int, end_offset: int | None = None) -> Cut:
    """One range of offsets and one of times that contain everything of a partition in one of the scopes."""
    touching = [scope for scope in scopes if scope.has_topic(topic) and scope.has_partition(partition)]
    ends, untils = [touched.end_offset for touched in touching], [touched.until_ms for touched in touching]
    sinces = [touched.since_ms for touched in touching]
    return Cut(
        first_offset=min(touched.first_offset for touched in touching),
        end_offset=_lower(None if None in ends else max(end for end in ends if end is not None), end_offset),
        since_ms=None if None in sinces else min(since for since in sinces if since is not None),
        until_ms=None if None in untils else max(until for until in untils if until is not None),
    )


_SCOPES: Final = TypeAdapter(tuple[Scope, ...])


def encode_scopes(scopes: Iterable[Scope]) -> str:
    """JSON, for an option of the table."""
    return _SCOPES.dump_json(tuple(scopes)).decode()


def decode_scopes(text: str) -> tuple[Scope, ...]:
    """The inverse of `encode_scopes`."""
    return _SCOPES.validate_json(text, strict=True)


def narrow(scope: Scope, filters: Iterable[spark.Filter]) -> Scope:
    """The scope of records that may pass all filters."""
    for condition in filters:
        scope = _narrowed(scope, condition)
    return scope


def _narrowed(scope: Scope, condition: spark.Filter) -> Scope:
    match condition:
        case spark.StringStartsWith(attribute=("topic",), value=str(prefix)):
            # The longer of two prefixes decides. If they contradict each other, Spark's own filter drops everything.
            return replace(scope, topic_prefix=max(scope.topic_prefix, prefix, key=len))
        case spark.EqualTo(attribute=(column,), value=value) | spark.EqualNullSafe(attribute=(column,), value=value):
            return _one_of(scope, column, (value,))
        case spark.In(attribute=(column,), value=values):
            # No value equals null.
            return _one_of(scope, column, tuple(value for value in values if value is not None))
        case spark.GreaterThanOrEqual(attribute=(column,), value=value):
            return _between(scope, column, value, None)
        case spark.GreaterThan(attribute=(column,), value=value):
            return _between(scope, column, value, None, beyond=True)
        case spark.LessThanOrEqual(attribute=(column,), value=value):
            return _between(scope, column, None, value, beyond=True)
        case spark.LessThan(attribute=(column,), value=value):
            return _between(scope, column, None, value)
        case _:
            return scope


def _one_of(scope: Scope, column: str, values: tuple[Any, ...]) -> Scope:
    if not values:
        return scope
    if column == "topic" and all(isinstance(value, str) for value in values):
        return replace(scope, topics=_common(scope.topics, frozenset(values)))
    if column == "partition" and all(map(_is_number, values)):
        return replace(scope, partitions=_common(scope.partitions, frozenset(values)))
    if _step(column, values) is None:
        return scope
    return _between(_between(scope, column, min(values), None), column, None, max(values), beyond=True)


def _between(scope: Scope, column: str, first: Any, end: Any, *, beyond: bool = False) -> Scope:  # noqa: ANN401
    """Limit offsets or times to [first, end), one of which is given; `beyond`: the limit is just above the value."""
    step = _step(column, tuple(value for value in (first, end) if value is not None))
    if step is None:
        return scope
    low = None if first is None else min(step(first, beyond), _INT64_MAX)
    high = None if end is None else step(end, beyond)
    if high is not None and high > _INT64_MAX:
        # Above the highest value there can be: no limit.
        high = None
    if column == "offset":
        return replace(scope, first_offset=max(scope.first_offset, low or 0), end_offset=_lower(scope.end_offset, high))
    return replace(scope, since_ms=_higher(scope.since_ms, low), until_ms=_lower(scope.until_ms, high))


def _step(column: str, values: tuple[Any, ...]) -> Callable[[Any, bool], int] | None:
    """The function from a value to the first offset or millisecond at, or if `beyond` above, it. None: unknown."""
    if column in {"offset", "timestampMs"} and all(map(_is_number, values)):
        return lambda value, beyond: int(value) + beyond
    if column == "timestamp" and all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return _millisecond
    return None


def _millisecond(time: datetime, beyond: bool) -> int:  # noqa: FBT001 - as the other one
    microseconds = (time - _EPOCH) // timedelta(microseconds=1)
    return microseconds // _US_PER_MS + 1 if beyond else -(-microseconds // _US_PER_MS)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _common(known: frozenset[Any] | None, wanted: frozenset[Any]) -> frozenset[Any]:
    return wanted if known is None else known & wanted


def _holds(known: frozenset[Any] | None, wanted: frozenset[Any] | None) -> bool:
    return known is None or (wanted is not None and wanted <= known)


def _all_start(topics: frozenset[str] | None, prefix: str) -> bool:
    return topics is not None and all(topic.startswith(prefix) for topic in topics)


def _reaches(end: int | None, wanted: int | None) -> bool:
    return end is None or (wanted is not None and wanted <= end)


def _lower(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


def _higher(one: int | None, other: int | None) -> int | None:
    return max((limit for limit in (one, other) if limit is not None), default=None)
