"""All obstacles are reported at once, and a fatal one is never only a warning."""

from __future__ import annotations

from typing import Any

import pytest

from maxbrod.archive.renames import Rename, parse_rename
from maxbrod.errors import CorruptDataError, IncompleteError, RefusedError, UsageError
from maxbrod.model import GapReason, TopicPartition
from maxbrod.restore.plan.obstacles import Obstacle, in_order, refusal
from maxbrod.restore.plan.request import (
    Chosen,
    OffsetRange,
    OffsetsMode,
    RestoreRequest,
    choose_incarnations,
)
from maxbrod.restore.plan.sources import UnreadableRange
from maxbrod.restore.plan.targets import Right
from support.catalog_rows import TOPIC_ID, gap, segment
from support.restore_plans import ALL_RIGHTS, EFFECTIVE, NOW, partition_id, plan, target, topic

FRESH = {"min_timestamp": NOW - 1000, "max_timestamp": NOW}
ROWS = [segment(0, 10, **FRESH)]


def obstacles(request: RestoreRequest | None = None, rows: list[Any] | None = None, **changes: Any) -> list[Obstacle]:
    return list(plan(ROWS if rows is None else rows, request, **changes).obstacles)


def kinds(
    request: RestoreRequest | None = None, rows: list[Any] | None = None, **changes: Any
) -> list[tuple[str, bool]]:
    found = obstacles(request, rows, **changes)
    assert all(each.what for each in found)
    return [(str(each.kind), each.fatal) for each in found]


def test_where_nothing_stands_in_the_way_nothing_is_told() -> None:
    assert kinds() == []
    assert kinds(into=target(topic(), ends={"orders": [(0, 0)]})) == []
    assert refusal([]) is None


@pytest.mark.parametrize(
    ("rows", "kind", "error"),
    [
        ([gap(0, 5, reason=GapReason.CORRUPT)], "corrupt", CorruptDataError),
        ([gap(0, 5, reason=GapReason.UNEXPLAINED)], "unexplained", IncompleteError),
        ([segment(0, 5, **FRESH), segment(6, 9, **FRESH)], "incomplete", IncompleteError),
    ],
)
def test_data_that_the_archive_lacks_is_never_passed_over_unless_it_is_accepted(
    rows: list[Any], kind: str, error: type[Exception]
) -> None:
    assert kinds(rows=rows) == [(kind, True)]
    assert isinstance(refusal(obstacles(rows=rows)), error)
    assert kinds(RestoreRequest(accept_gaps=True), rows=rows) == [(kind, False)]


def test_lost_objects_are_not_blamed_on_the_log() -> None:
    """A repair leaves the same reason behind as a backup that met damaged batches."""
    (found,) = obstacles(rows=[gap(0, 5, reason=GapReason.CORRUPT)])
    assert found.what == "the log had damaged batches, or an object of the archive was lost, at offsets 0 to 5"


def test_an_obstacle_that_is_found_twice_is_told_once() -> None:
    found = obstacles(rows=[gap(0, 5, reason=GapReason.CORRUPT)])
    assert list(in_order([*found, *found])) == found


def test_no_hint_asks_for_a_confirmation_that_nobody_waits_for() -> None:
    request = RestoreRequest(partition_count=4)
    (found,) = [each for each in obstacles(request) if str(each.kind) == "offsets"]
    assert (found.fatal, found.hint) == (False, "--offsets append says that this is intended, --strict refuses it")


def test_gaps_that_are_explained_are_no_obstacle() -> None:
    explained = [GapReason.COMPACTED, GapReason.RETENTION, GapReason.TRUNCATED, GapReason.PRUNED, GapReason.DELETED]
    rows = [gap(5 * number, 5 * number + 5, reason=reason) for number, reason in enumerate(explained)]
    assert kinds(rows=rows) == []


def test_so_many_gaps_are_counted_not_listed() -> None:
    rows = [gap(number, number + 1, reason=GapReason.CORRUPT) for number in range(500)]
    found = obstacles(rows=rows)
    assert len(found) == 21
    assert "480 more" in found[-1].what
    error = refusal(found)
    assert error is not None
    assert "20 more" in str(error)
    assert error.offset == 0


@pytest.mark.parametrize(
    ("name", "fatal"), [("a b", True), ("x" * 250, True), ("..", True), ("__consumer_offsets", True), ("fine", False)]
)
def test_a_name_that_kafka_refuses_is_found_before_anything_is_created(name: str, fatal: bool) -> None:
    assert kinds(RestoreRequest(rename=Rename(names={"orders": name}))) == ([("name", True)] if fatal else [])


def test_two_topics_never_become_one() -> None:
    chosen = Chosen(topics={TOPIC_ID: "orders", "other": "users"}, missing=())
    rows = [*ROWS, segment(0, 10, topic_id="other", topic="users", **FRESH)]
    request = RestoreRequest(rename=parse_rename(["users=orders"]))
    assert ("name", True) in kinds(request, rows=rows, chosen=chosen)


def test_a_name_that_kafka_does_not_tell_from_another_is_refused() -> None:
    request = RestoreRequest(rename=parse_rename(["orders=my.orders"]))
    assert kinds(request, into=target(topic("my_orders"))) == [("name", True)]


def test_a_target_that_is_not_empty_is_refused_unless_append_is_said() -> None:
    state = target(topic(), ends={"orders": [(3, 10)]})
    assert ("target not empty", True) in kinds(into=state)
    assert kinds(RestoreRequest(offsets=OffsetsMode.EXACT), into=state) == [("offsets", True)]
    assert kinds(RestoreRequest(offsets=OffsetsMode.APPEND), into=state) == []
    assert isinstance(refusal(obstacles(into=state)), RefusedError)


def test_records_in_a_partition_that_is_not_restored_are_no_obstacle() -> None:
    state = target(topic(partitions=2), ends={"orders": [(0, 0), (0, 10)]})
    assert kinds(into=state, archived=topic(partitions=2)) == []


def test_a_target_whose_end_nobody_knows_is_refused() -> None:
    assert ("permission", True) in kinds(into=target(topic()))


def test_another_partition_count_is_refused_unless_it_is_said() -> None:
    state = target(topic(partitions=2), ends={"orders": [(0, 0), (0, 0)]})
    assert ("partition count", True) in kinds(into=state)
    assert ("partition count", True) in kinds(RestoreRequest(partition_count=3), into=state)
    assert kinds(RestoreRequest(partition_count=2), into=state) == [("offsets", False)]
    assert kinds(RestoreRequest(partition_counts={"orders": 2}), into=state) == [("offsets", False)]
    assert kinds(RestoreRequest(partition_count=2, offsets=OffsetsMode.APPEND), into=state) == []
    assert kinds(RestoreRequest(partition_count=2, offsets=OffsetsMode.EXACT), into=state) == [("offsets", True)]


def test_provenance_is_never_left_out_in_silence_where_partitions_change() -> None:
    assert kinds(RestoreRequest(provenance=True, partition_count=2)) == [("partition count", True), ("offsets", False)]
    assert kinds(RestoreRequest(provenance=True)) == []


def test_too_few_brokers_are_a_warning_and_under_strict_a_refusal() -> None:
    arguments: dict[str, Any] = {"archived": topic(factor=3), "into": target(brokers=2)}
    assert kinds(**arguments) == [("brokers", False)]
    assert kinds(RestoreRequest(strict=True), **arguments) == [("brokers", True)]


def test_retention_that_would_take_what_is_restored_is_told() -> None:
    week = 7 * 24 * 3600 * 1000
    archived = topic(effective={**EFFECTIVE, "retention.ms": str(week)})
    old = [segment(0, 10, min_timestamp=NOW - week - 1, max_timestamp=NOW)]
    young = [segment(0, 10, min_timestamp=NOW - week, max_timestamp=NOW)]
    assert kinds(rows=old, archived=archived) == [("retention", False)]
    assert kinds(rows=young, archived=archived) == []
    assert kinds(RestoreRequest(configs={"retention.ms": "-1"}), rows=old, archived=archived) == []
    compacted = topic(effective={**EFFECTIVE, "retention.ms": "1", "cleanup.policy": "compact"})
    assert kinds(rows=old, archived=compacted) == []
    small = topic(effective={**EFFECTIVE, "retention.bytes": "999"})
    assert kinds(archived=small) == [("retention", False)]


def test_of_an_existing_topic_its_own_retention_counts() -> None:
    present = topic(effective={**EFFECTIVE, "retention.ms": "1"})
    assert kinds(into=target(present, ends={"orders": [(0, 0)]})) == [("retention", False)]


WEEK_MS = 7 * 24 * 3600 * 1000
OLD = [segment(0, 10, min_timestamp=NOW - 60 * WEEK_MS, max_timestamp=NOW)]


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        ({"retention.ms": str(WEEK_MS)}, "the brokers' default, because the archive does not know"),
        ({"retention.ms": "-1"}, None),
        ({"retention.ms": str(WEEK_MS), "cleanup.policy": "compact"}, None),
        (None, "Kafka's default, and that of these brokers is unknown, because the archive does not know"),
    ],
)
def test_old_records_are_warned_of_though_nobody_knows_the_configuration(
    defaults: dict[str, str] | None, told: str | None
) -> None:
    unknown = topic(configs=None, effective=None)
    found = [each for each in obstacles(rows=OLD, archived=unknown, into=target(defaults=defaults)) if told is not None]
    assert [str(each.kind) for each in found] == ([] if told is None else ["configuration", "retention"])
    assert all(told in each.what for each in found[1:] if told is not None)
    if told is None:
        assert kinds(rows=OLD, archived=unknown, into=target(defaults=defaults)) == [("configuration", False)]


def test_where_the_topic_says_nothing_the_retention_of_the_target_counts_and_not_that_of_the_source() -> None:
    week = target(defaults={"retention.ms": str(WEEK_MS)})
    assert kinds(rows=OLD, into=week) == [("retention", False)]
    assert kinds(RestoreRequest(strict=True), rows=OLD, into=week) == [("retention", True)]
    assert kinds(rows=OLD, archived=topic(configs={"retention.ms": "-1"}), into=week) == []
    short = topic(configs={}, effective={**EFFECTIVE, "retention.ms": "1"})
    assert kinds(rows=OLD, archived=short, into=target(defaults={"retention.ms": "-1"})) == []


def test_acls_and_quotas_of_an_older_run_are_told_where_they_come_back() -> None:
    runs = {"acls": "run-0", "quotas": "run-0"}
    found = obstacles(RestoreRequest(with_acls=True), access_runs=runs)
    assert [(str(each.kind), each.fatal, "run-0" in each.what) for each in found] == [("access", False, True)]
    assert obstacles(access_runs=runs) == []


def test_an_existing_topic_whose_configuration_is_hidden_is_warned_of_too() -> None:
    hidden = target(topic(configs=None, effective=None), ends={"orders": [(0, 0)]})
    assert [str(each.kind) for each in obstacles(rows=OLD, into=hidden)] == ["configuration", "retention"]


def test_a_right_that_is_denied_is_fatal_and_one_that_is_unknown_is_told() -> None:
    denied = target(rights={**ALL_RIGHTS, Right.CREATE: False})
    assert kinds(into=denied) == [("permission", True)]
    assert kinds(into=target(rights={})) == [("right unknown", False)] * 4
    leading = [segment(50, 60, **FRESH)]
    unable = target(rights={**ALL_RIGHTS, Right.DELETE: False})
    assert kinds(rows=leading, into=unable) == [("permission", True)]
    assert kinds(into=unable) == [], "nobody needs it where the log begins at 0"


def test_markers_that_are_denied_only_cost_time() -> None:
    without = target(rights={**ALL_RIGHTS, Right.CLUSTER_ACTION: False})
    rows = [segment(0, 10, records=5, **FRESH)]
    assert kinds(rows=rows, into=without) == [("permission", False)]
    assert kinds(RestoreRequest(strict=True), rows=rows, into=without) == [("permission", False)]


def test_a_configuration_that_is_lost_or_unknown_is_told() -> None:
    assert kinds(archived=topic(configs=None, effective=None)) == [("configuration", False)]
    assert kinds(snapshot=None) == [("configuration", False)]
    unknown = topic(configs={"message.format.version": "2.8"})
    assert kinds(archived=unknown, into=target(known_configs=frozenset({"retention.ms"}))) == [("configuration", False)]
    request = RestoreRequest(configs={"retention.hours": "1"})
    assert kinds(request, into=target(known_configs=frozenset({"retention.ms"}))) == [("configuration", True)]
    hidden = target(topic(configs=None, effective=None), ends={"orders": [(0, 0)]})
    assert kinds(into=hidden) == [("configuration", False)]


def test_a_topic_that_the_archive_does_not_have_is_a_usage_error() -> None:
    found = obstacles(chosen=Chosen(topics={}, missing=("lost",)), rows=[])
    assert isinstance(refusal(found), UsageError)
    assert kinds(chosen=Chosen(topics={}, missing=()), rows=[]) == [("nothing chosen", True)]


def test_a_partition_that_the_archive_does_not_have_is_never_passed_over() -> None:
    ranges = tuple(OffsetRange(where=TopicPartition(topic="orders", partition=each), first=2) for each in (0, 9))
    assert kinds(RestoreRequest(ranges=ranges)) == [("topic missing", True)]
    assert kinds(RestoreRequest(partitions=frozenset({0, 9}))) == [("topic missing", True)]
    assert kinds(RestoreRequest(partitions=frozenset({0}))) == []


def test_everything_is_told_at_once_fatal_first() -> None:
    rows = [segment(0, 10, min_timestamp=0, max_timestamp=1), gap(10, 20, reason=GapReason.CORRUPT)]
    present = topic(partitions=2, configs=None, effective=None)
    state = target(present, ends={"orders": [(0, 5), (0, 0)]}, rights={**ALL_RIGHTS, Right.WRITE: False})
    found = kinds(rows=rows, into=state)
    assert {kind for kind, fatal in found if fatal} == {"corrupt", "target not empty", "partition count", "permission"}
    assert [fatal for _, fatal in found] == sorted((fatal for _, fatal in found), reverse=True)


def test_settings_that_are_left_out_are_told() -> None:
    throttled = topic(configs={"leader.replication.throttled.replicas": "*", "retention.ms": "-1"})
    (found,) = obstacles(archived=throttled)
    assert (str(found.kind), found.fatal) == ("configuration", False)
    assert "leader.replication.throttled.replicas is not restored" in found.what
    assert kinds(RestoreRequest(strict=True), archived=throttled) == [("configuration", True)]
    asked = RestoreRequest(configs={"leader.replication.throttled.replicas": "*"})
    assert kinds(asked, archived=throttled) == []


def test_a_topic_that_is_there_and_configured_otherwise_is_told() -> None:
    there = target(topic(configs={"retention.ms": "5000000"}), ends={"orders": [(0, 0)]})
    (found,) = obstacles(archived=topic(configs={"retention.ms": "-1", "cleanup.policy": "compact"}), into=there)
    assert "other values for cleanup.policy, retention.ms" in found.what
    assert not found.fatal


def test_objects_that_are_lost_are_named_with_their_offsets_and_can_be_accepted() -> None:
    lost = [
        UnreadableRange(first=first, end=first + 1, object_name=f"{first}.log", why="it is not there")
        for first in range(25)
    ]
    rows = [segment(first, first + 1, **FRESH) for first in range(25)]
    found = obstacles(rows=rows, lost={partition_id(): lost})
    assert {(str(each.kind), each.fatal, each.where) for each in found} == {("corrupt", True, "orders-0")}
    assert "offsets 0 to 1 cannot be read: it is not there (0.log)" in {each.what for each in found}
    assert "5 more objects like these" in {each.what for each in found}, "so many are counted, not listed"
    assert isinstance(refusal(found), CorruptDataError)
    assert refusal(obstacles(RestoreRequest(accept_gaps=True), rows=rows, lost={partition_id(): lost})) is None


@pytest.mark.parametrize(
    "asked",
    [
        RestoreRequest(rename=parse_rename(["/^ord/zz_/"])),
        RestoreRequest(rename=parse_rename(["order=zz"])),
        RestoreRequest(topics=("/^ord/",)),
        RestoreRequest(topics=("orders", "ord?")),
        RestoreRequest(exclude=("ordres",)),
        RestoreRequest(partition_counts={"ordres": 3}),
        RestoreRequest(topic_ids=frozenset({"nothing"})),
    ],
)
def test_a_rule_or_a_pattern_that_matches_nothing_is_a_usage_error(asked: RestoreRequest) -> None:
    chosen = choose_incarnations(asked, {TOPIC_ID: "orders"}, {TOPIC_ID})
    error = refusal(obstacles(asked, chosen=chosen))
    assert isinstance(error, UsageError)
    assert error.hint
    assert "whole name" in error.hint or "did you mean orders" in error.hint or "nothing" in str(error)


def test_a_rule_that_matches_the_whole_name_is_used() -> None:
    request = RestoreRequest(rename=parse_rename(["/ord(.*)/zz_\\1/"]))
    chosen = choose_incarnations(request, {TOPIC_ID: "orders"}, {TOPIC_ID})
    assert chosen.wrong == ()
    assert plan(ROWS, request, chosen=chosen).topics[0].target.name == "zz_ers"
