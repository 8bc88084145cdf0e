"""Filters narrow a query to what may pass them: never less, and to the very record where they can."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from maxbrod.table.read.options import SCOPES, parse_options
from maxbrod.table.read.scope import Scope, both, cut_of, decode_scopes, encode_scopes, narrow

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPARISONS = {
    GreaterThan: int.__gt__,
    GreaterThanOrEqual: int.__ge__,
    LessThan: int.__lt__,
    LessThanOrEqual: int.__le__,
    EqualTo: int.__eq__,
}


def passes(scope: Scope, *, offset: int = 0, timestamp_ms: int = 0) -> bool:
    return (
        offset >= scope.first_offset
        and (scope.end_offset is None or offset < scope.end_offset)
        and (scope.since_ms is None or timestamp_ms >= scope.since_ms)
        and (scope.until_ms is None or timestamp_ms < scope.until_ms)
    )


@given(st.sampled_from(list(COMPARISONS)), st.integers(-5000, 5000), st.integers(-7, 7))
def test_a_filter_on_microseconds_keeps_exactly_the_milliseconds_that_pass_it(
    kind: type[Filter], microseconds: int, timestamp_ms: int
) -> None:
    scope = narrow(Scope(), [kind(("timestamp",), EPOCH + timedelta(microseconds=microseconds))])
    assert passes(scope, timestamp_ms=timestamp_ms) == COMPARISONS[kind](timestamp_ms * 1000, microseconds)


@given(st.sampled_from(list(COMPARISONS)), st.integers(-3, 9), st.integers(0, 9))
def test_a_filter_on_offsets_keeps_exactly_what_passes_it(kind: type[Filter], limit: int, offset: int) -> None:
    assert passes(narrow(Scope(), [kind(("offset",), limit)]), offset=offset) == COMPARISONS[kind](offset, limit)


def test_filters_narrow_together() -> None:
    filters = [
        In(("topic",), ("orders", "payments")),
        EqualTo(("topic",), "orders"),
        In(("partition",), (1, 2, None)),
        GreaterThan(("offset",), 4),
        GreaterThanOrEqual(("offset",), 3),
        LessThan(("offset",), 90),
        LessThanOrEqual(("offset",), 70),
    ]
    assert narrow(Scope(), filters) == Scope(
        topics=frozenset({"orders"}), partitions=frozenset({1, 2}), first_offset=5, end_offset=71
    )


def test_a_filter_never_widens_what_options_say() -> None:
    scope = Scope(first_offset=10, end_offset=20, since_ms=5, until_ms=9, partitions=frozenset({1}))
    filters = [GreaterThan(("offset",), 1), LessThan(("offset",), 99), In(("partition",), (1, 2))]
    assert narrow(scope, filters) == scope


@pytest.mark.parametrize(
    "condition",
    [
        Not(EqualTo(("offset",), 4)),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "offset"), 4),
        EqualNullSafe(("offset",), None),
        IsNotNull(("offset",)),
        StringContains(("topic",), "x"),
        In(("offset",), (None,)),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - of a session that says no zone
        EqualTo(("offset",), True),
        EqualTo(("partition",), "4"),
    ],
)
def test_what_is_not_understood_never_costs_a_record(condition: Filter) -> None:
    assert narrow(Scope(), [condition]) == Scope()


def test_a_prefix_of_names_is_understood() -> None:
    scope = narrow(Scope(), [StringStartsWith(("topic",), "or"), StringStartsWith(("topic",), "orders-")])
    assert [scope.has_topic(name) for name in ("orders-1", "orders", "xorders-")] == [True, False, False]


BOUNDS = st.none() | st.integers(0, 6)
SCOPES_ANY = st.builds(
    Scope,
    topics=st.none() | st.frozensets(st.sampled_from(["a", "ab", "b"])),
    topic_prefix=st.sampled_from(["", "a", "ab"]),
    partitions=st.none() | st.frozensets(st.integers(0, 2)),
    first_offset=st.integers(0, 5),
    end_offset=BOUNDS,
    since_ms=BOUNDS,
    until_ms=BOUNDS,
)
PLACES = st.tuples(st.sampled_from(["a", "ab", "b"]), st.integers(0, 2), st.integers(0, 6), st.integers(0, 6))


def holds(scope: Scope, place: tuple[str, int, int, int]) -> bool:
    topic, partition, offset, at = place
    return scope.has_topic(topic) and scope.has_partition(partition) and passes(scope, offset=offset, timestamp_ms=at)


@given(SCOPES_ANY, SCOPES_ANY, PLACES)
def test_a_scope_that_covers_another_has_all_of_it(one: Scope, other: Scope, place: tuple[str, int, int, int]) -> None:
    assert one.covers(one)
    assert not (one.covers(other) and holds(other, place)) or holds(one, place)


@given(SCOPES_ANY, SCOPES_ANY, PLACES)
def test_what_is_in_both_scopes_is_never_lost(one: Scope, other: Scope, place: tuple[str, int, int, int]) -> None:
    joined = both(one, other)
    assert not (holds(one, place) and holds(other, place)) or holds(joined, place)
    # The bounds of options are promises: nothing beyond them is read. They name no topics.
    options = Scope(partitions=one.partitions, first_offset=one.first_offset, end_offset=one.end_offset)
    assert holds(options, place) or not holds(both(options, other), place)


@given(st.lists(SCOPES_ANY, min_size=1, max_size=3), PLACES)
def test_a_cut_keeps_what_is_in_one_of_the_scopes(scopes: list[Scope], place: tuple[str, int, int, int]) -> None:
    topic, partition, offset, at = place
    if any(holds(each, place) for each in scopes):
        cut = cut_of(scopes, topic, partition)
        offsets, times = np.array([offset], np.int64), np.array([at], np.int64)
        assert cut.keeps(offsets, times).all()


@given(st.lists(SCOPES_ANY, max_size=3))
def test_scopes_pass_through_an_option(scopes: list[Scope]) -> None:
    assert decode_scopes(encode_scopes(scopes)) == tuple(scopes)
    options = parse_options({"path": "x", "partitions": "1", SCOPES: encode_scopes(scopes)})
    assert options.scopes == (tuple(both(options.scope, each) for each in scopes) or (options.scope,))
