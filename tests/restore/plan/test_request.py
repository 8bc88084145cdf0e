"""Words become a request, or a usage error that says what would have been right."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.archive.renames import parse_rename
from maxbrod.archive.selection import parse_partitions, parse_time_ms
from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.request import (
    OffsetRange,
    OffsetsMode,
    RestoreRequest,
    choose_groups,
    choose_incarnations,
    command_digest,
    parse_partition_counts,
    parse_range,
)
from support.restore_plans import group

ORDERS_3 = TopicPartition(topic="orders", partition=3)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_milliseconds_are_taken_as_they_are(timestamp_ms: int) -> None:
    assert parse_time_ms(str(timestamp_ms)) == timestamp_ms


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)), st.integers(-14 * 60, 14 * 60))  # noqa: DTZ001
def test_a_time_never_loses_a_millisecond_and_is_rounded_up(time: datetime, zone_minutes: int) -> None:
    local = time.replace(tzinfo=UTC) + timedelta(minutes=zone_minutes)
    sign, minutes = "-" if zone_minutes < 0 else "+", abs(zone_minutes)
    word = f"{local.replace(tzinfo=None).isoformat()}{sign}{minutes // 60:02}:{minutes % 60:02}"
    microseconds = (time - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001
    assert parse_time_ms(word) == -(-microseconds // 1000)


@pytest.mark.parametrize("word", ["", "yesterday", "2026-01-31T12:00:00", "2026-01-31", "1.5", "9" * 19, "1e9"])
def test_a_time_that_is_not_clear_is_refused(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_time_ms(word)
    assert caught.value.hint


def test_ranges_of_offsets_may_be_open_on_either_side() -> None:
    assert parse_range("orders:3:100..200") == OffsetRange(where=ORDERS_3, first=100, end=200)
    assert parse_range("orders:3:100..") == OffsetRange(where=ORDERS_3, first=100)
    assert parse_range("orders:3:..200") == OffsetRange(where=ORDERS_3, end=200)


@pytest.mark.parametrize("word", ["orders", "orders:3", "orders:3:..", "orders:3:1-2", "orders:x:1..2", ":3:1..2"])
def test_a_range_that_is_not_clear_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        parse_range(word)


def test_partitions_are_numbers_and_ranges() -> None:
    assert parse_partitions("0,3, 8-11") == {0, 3, 8, 9, 10, 11}
    for word in ("", "a", "-1", "3-1", "0-1000000", "1,,2"):
        with pytest.raises(UsageError):
            parse_partitions(word)


def test_another_number_of_partitions_is_for_all_topics_or_for_one() -> None:
    everywhere, single = parse_partition_counts(["12", "orders=3", "orders=3"])
    request = RestoreRequest(partition_count=everywhere, partition_counts=single)
    assert [request.partition_count_of(name) for name in ("orders", "users")] == [3, 12]
    assert RestoreRequest().partition_count_of("orders") is None
    for words in (["x"], ["orders="], ["=3"], ["or/ders=3"], ["-1"], ["3", "4"], ["a=3", "a=4"], ["a=b=3"], ["٣"]):
        with pytest.raises(UsageError):
            parse_partition_counts(words)


@pytest.mark.parametrize(
    "fields",
    [
        {"since_ms": 5, "until_ms": 5},
        {"partition_count": 0},
        {"partition_counts": {"orders": 0}},
        {"partition_counts": {"orders": 100_001}},
        {"rate_bytes_per_s": 0},
        {"partitions": frozenset({-1})},
        {"ranges": (OffsetRange(where=ORDERS_3, first=5, end=5),)},
        {"ranges": (OffsetRange(where=ORDERS_3, first=5), OffsetRange(where=ORDERS_3, end=5))},
        {"ranges": (OffsetRange(where=TopicPartition(topic="no/topic", partition=0), first=5),)},
        {"topics": ("/(/",)},
        {"groups": ("[",)},
    ],
)
def test_a_request_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        RestoreRequest(**fields)
    assert caught.value.hint


def test_the_same_command_has_the_same_digest_and_another_one_another() -> None:
    def digest(request: RestoreRequest, archive: str = "s3://a", cluster_id: str = "c") -> str:
        return command_digest(request, archive=archive, cluster_id=cluster_id)

    request = RestoreRequest(topics=("a", "b"), until_ms=5, partitions=frozenset({1, 2}))
    same = replace(request, topics=("b", "a"), rate_bytes_per_s=7)
    others = [
        replace(request, topics=("a",)),
        replace(request, until_ms=6),
        replace(request, offsets=OffsetsMode.APPEND),
        replace(request, rename=parse_rename(prefix="x-")),
        replace(request, ranges=(OffsetRange(where=ORDERS_3, first=1),)),
        replace(request, partition_counts={"orders": 3}),
    ]
    assert digest(same) == digest(request)
    digests = {
        digest(request),
        digest(request, archive="s3://b"),
        digest(request, cluster_id="d"),
        *map(digest, others),
    }
    assert len(digests) == 3 + len(others)


def test_digests_stay_those_of_earlier_releases() -> None:
    """Otherwise a restore that an earlier release started would not be found, and started a second time."""
    everything = RestoreRequest(
        topics=("b", "a"),
        exclude=("x",),
        partitions=frozenset({3, 1}),
        ranges=(OffsetRange(where=TopicPartition(topic="a", partition=1), first=5),),
        since_ms=1,
        until_ms=9,
        as_of="r",
        topic_ids=frozenset({"q"}),
        rename=parse_rename(["a=b", r"/x(.*)/y\1/"], prefix="p"),
        partition_count=4,
        partition_counts={"a": 5},
        configs={"retention.ms": "1"},
        offsets=OffsetsMode.EXACT,
        strict=True,
        accept_gaps=True,
        again=True,
        rate_bytes_per_s=7,
        groups=("g",),
        force_groups=True,
        provenance=True,
        with_acls=True,
        with_quotas=True,
        where="key is null",
        select="1 as value",
        staging="s3://x",
    )
    digests = [command_digest(each, archive="/a", cluster_id="c") for each in (RestoreRequest(), everything)]
    assert digests == ["b1f5c3dd75200dc81aa50ddd00b9e48e", "a0fccd8f1ec5987938fb1d02a205feec"]


def test_names_are_changed_by_list_then_expression_then_prefix_and_suffix() -> None:
    rename = parse_rename(["a=b", r"/prod-(.*)-(?P<n>\d+)/\g<n>-\1/", "/prod-.*/other/"], prefix="x.", suffix="_y")
    assert [rename.apply(name) for name in ("a", "prod-orders-7", "prod-z", "plain")] == [
        "b",
        "x.7-orders_y",
        "x.other_y",
        "x.plain_y",
    ]
    assert parse_rename().apply("same") == "same"


@pytest.mark.parametrize("word", ["", "a", "a=", "=b", "a=b=c", "a=b/c", "/a/", "/a/b", "//b/", "/(/b/", r"/a/\1/"])
def test_a_rename_that_is_not_clear_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        parse_rename([word])


def test_two_names_for_one_topic_are_refused() -> None:
    with pytest.raises(UsageError):
        parse_rename(["a=b", "a=c"])
    with pytest.raises(UsageError):
        parse_rename(prefix="a/b")


def test_a_name_means_the_newest_incarnation_unless_another_is_named() -> None:
    archived = {"old": "orders", "new": "orders", "only": "users", "internal": "__x"}

    def chosen(**fields: Any) -> tuple[set[str], tuple[str, ...]]:
        found = choose_incarnations(RestoreRequest(**fields), archived, newest={"new", "only", "internal"})
        return set(found.topics), found.missing

    assert chosen() == ({"new", "only"}, ())
    assert chosen(topic_ids=frozenset({"old"})) == ({"old", "only"}, ())
    assert chosen(topics=("orders",), topic_ids=frozenset({"old", "new"})) == ({"old", "new"}, ())
    assert chosen(topics=("none", "user*")) == ({"only"}, ("none",))
    assert chosen(topic_ids=frozenset({"lost"}))[1] == ("lost",)
    assert chosen(topics=("users",), ranges=(OffsetRange(where=ORDERS_3, first=1),))[1] == ("orders",)
    assert chosen(topics=("users",), partition_counts={"orders": 3})[1] == ("orders",)


def test_internal_topics_that_nobody_names_are_told() -> None:
    archived = {"a": "orders", "b": "__consumer_offsets", "c": "__mine"}

    def left_out(**fields: Any) -> tuple[str, ...]:
        return choose_incarnations(RestoreRequest(**fields), archived, newest=set(archived)).left_out

    assert left_out() == left_out(topics=("*",)) == ("__consumer_offsets", "__mine")
    assert left_out(topics=("orders", "__mine")) == ()
    assert left_out(topics=("__*",), exclude=("__mine",)) == ("__consumer_offsets",)
    assert left_out(internal=True) == ()


def test_patterns_of_groups_that_match_nothing_are_told_unless_they_mean_all_there_are() -> None:
    groups = [group("billing"), group("audit")]
    assert choose_groups(("x*", "/y+/", "billing"), groups)[1] == ("/y+/", "x*")
    assert choose_groups(("*",), []) == ((), ())


def test_groups_are_restored_only_where_they_are_named() -> None:
    groups = [group("billing"), group("audit")]
    assert choose_groups((), groups) == ((), ())
    assert choose_groups(("b*", "lost"), groups) == ((groups[0],), ("lost",))
    assert len(choose_groups(("*",), groups)[0]) == 2
