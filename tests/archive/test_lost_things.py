"""What the cluster has lost is found in archives of before it was carried on, too: in the runs before."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from maxbrod.archive.foreign_target import _with_lost, facts_of
from maxbrod.archive.knowledge import NOTHING, encode_carried
from maxbrod.archive.snapshots import find_moment
from maxbrod.backup.archive_state import read_archive_state
from maxbrod.backup.report import clock_behind
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Run
from maxbrod.convert.sides import NativeTarget
from maxbrod.layouts.foreign import ClusterFacts, ForeignGroup, ForeignTopic, Survey, WriteOptions
from maxbrod.model import TopicPartition
from maxbrod.query.views import make_tables
from maxbrod.table.sink.archive import _put_snapshot, look
from support.archives import Place, commit_run
from support.catalog_rows import segment
from support.cluster_states import cluster, group, offset, topic
from support.full_archive import part

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.archive.archive import Archive
    from maxbrod.kafka.state.cluster_state import ClusterState

ENDS = {part(0, "A"): 10, part(0, "B"): 10}
TOPICS = {"A": "orders", "B": "payments"}
BOTH = cluster(topic("A"), topic("B"), groups=(group("g", offset("A", 5)),))
ONE = cluster(topic("B"), groups=(group("g"),))


def archive_of(place: Place, *clusters: ClusterState) -> Archive:
    """Snapshots as releases wrote them that carried nothing on."""
    archive = place.create()
    for number, each in enumerate(clusters):
        commit_run(archive, f"run-{number}", [], topics=TOPICS, ends=ENDS, cluster=each)
    return archive


def test_older_archives_are_looked_at_as_far_back_as_something_is_missing(local_place: Place) -> None:
    archive = archive_of(local_place, BOTH, BOTH, ONE, ONE)
    moment = find_moment(archive.storage, archive.catalog.runs(), None)
    assert moment.lost == {"A": "run-1"}
    assert moment.known is not None
    assert moment.known.offset_runs == {("g", "A", 0): "run-1"}
    assert [each.topic_id for each in moment.known.cluster.topics] == ["A", "B"]
    before = find_moment(archive.storage, archive.catalog.runs(), "run-0")
    assert before.lost == {}


def test_a_query_of_groups_says_which_run_last_knew_a_position(local_place: Place) -> None:
    archive = archive_of(local_place, BOTH, ONE)
    moment = find_moment(archive.storage, archive.catalog.runs(), None)
    columns, make = make_tables(archive, moment, {"orders", "payments"}, set())["groups"]
    assert columns.names[-1] == "run_id"
    (row,) = make().to_pylist()
    assert (row["group_id"], row["topic_id"], row["offset"], row["run_id"]) == ("g", "A", 5, "run-0")


def test_a_snapshot_that_cannot_be_read_is_passed_over_on_the_way_back(local_place: Place) -> None:
    archive = archive_of(local_place, BOTH, ONE, ONE)
    archive.storage.delete(["snapshots/run-1.json.zst"])
    assert find_moment(archive.storage, archive.catalog.runs(), None).lost == {"A": "run-0"}


def test_the_first_run_of_a_newer_release_carries_on_what_older_ones_knew(local_place: Place) -> None:
    archive = archive_of(local_place, BOTH, ONE)
    carried = read_archive_state(archive).carried_beside(cluster())
    assert [(each.topic.topic_id, each.run_id) for each in carried.topics] == [("A", "run-0"), ("B", "run-1")]
    assert [each.run_id for each in carried.offsets] == ["run-0"]


def test_a_conversion_into_an_archive_keeps_what_that_knew_and_the_source_has_lost(
    local_place: Place, tmp_path: Path
) -> None:
    """As backups of log directories are, one after another."""
    archive_of(local_place, BOTH)
    source = archive_of(replace(local_place, url=str(tmp_path / "source")), ONE)
    target = NativeTarget(local_place.url, local_place.options, WriteOptions(), run_id="run-9")
    target._committed = True
    target.finish(find_moment(source.storage, source.catalog.runs(), None), (), failed=(), started_at_ms=0)
    archive = local_place.open()
    moment = find_moment(archive.storage, archive.catalog.runs(), None)
    assert (moment.run and moment.run.run_id, moment.lost) == ("run-9", {"A": "run-0"})
    assert moment.known is not None
    assert moment.known.offset_runs == {("g", "A", 0): "run-0"}


def test_a_data_frame_that_is_written_keeps_what_is_carried_on(local_place: Place) -> None:
    archive = archive_of(local_place, BOTH, ONE)
    carried = encode_carried(read_archive_state(archive).carried_beside(ONE))
    commit_run(archive, "run-2", [], topics=TOPICS, ends=ENDS, cluster=ONE, carried=carried)
    assert isinstance(archive.catalog, Catalog)
    known = look(archive.storage, archive.catalog)
    assert known.carried == json.loads(json.dumps(carried))
    run = Run(run_id="run-3", started_at=1, finished_at=1, snapshot=None, written_at=1)
    written = segment(0, 5, topic="new", topic_id="N")
    row = _put_snapshot(archive.storage, known, run, [written])
    archive.catalog.commit([written, row])
    moment = find_moment(archive.storage, archive.catalog.runs(), None)
    assert (moment.run and moment.run.run_id, moment.lost) == ("run-3", {"A": "run-0"})


def test_the_first_data_frame_of_an_archive_leaves_nothing_to_look_back_for(local_place: Place) -> None:
    archive = local_place.create()
    assert isinstance(archive.catalog, Catalog)
    assert look(archive.storage, archive.catalog).carried == encode_carried(NOTHING)


def test_a_clock_behind_the_newest_run_is_told_and_small_differences_are_not() -> None:
    newest = Run(run_id="run-9", started_at=0, finished_at=60_000, snapshot=None, written_at=0)
    assert [each.kind for each in clock_behind(newest, 30_000)] == ["clock"]
    assert "30 s behind" in next(iter(clock_behind(newest, 30_000))).message
    assert list(clock_behind(newest, 59_500)) == list(clock_behind(newest, 70_000)) == list(clock_behind(None, 0)) == []


def test_layouts_that_know_names_only_get_the_topic_that_was_there_last() -> None:
    state = cluster(
        topic("C"), topic("A"), groups=(group("g", offset("A", 5), offset("C", 2)), group("h", offset("A", 9)))
    )
    facts = facts_of(state)
    assert facts.topics["orders"].configs == {"retention.ms": "C"}
    assert [dict(each.offsets) for each in facts.groups] == [{TopicPartition(topic="orders", partition=0): 2}, {}]


def test_what_the_cluster_has_lost_stays_in_other_layouts() -> None:
    orders, users = TopicPartition(topic="orders", partition=0), TopicPartition(topic="users", partition=0)
    known = ForeignTopic(name="orders", configs={"cleanup.policy": "compact"})
    survey = Survey(
        layout="kbs",
        segments=(),
        topics={"orders": known, "never": ForeignTopic(name="never")},
        groups=(ForeignGroup(group_id="g", offsets={orders: 50, users: 1}), ForeignGroup(group_id="x", offsets={})),
        positions={orders: 100, users: 10},
    )
    facts = ClusterFacts(
        topics={"users": ForeignTopic(name="users")}, groups=(ForeignGroup(group_id="g", offsets={users: 7}),)
    )
    found = _with_lost(facts, survey)
    assert found.topics == {"orders": known, "users": ForeignTopic(name="users")}
    assert found.groups == (ForeignGroup(group_id="g", offsets={orders: 50, users: 7}),)
    fresh = _with_lost(facts, replace(survey, topics={}, groups=(), positions={}))
    assert (fresh.topics, fresh.groups) == (facts.topics, facts.groups)
