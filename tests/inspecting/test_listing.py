from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.runs import list_runs, show_run
from maxbrod.catalog.catalog import Catalog
from maxbrod.errors import UsageError
from maxbrod.inspect.listing import list_topics
from maxbrod.inspect.topic import show_topic
from maxbrod.kafka.state.cluster_state import TopicState
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, many_segments, segment
from support.full_archive import EMPTY_ID, OLD_ID, cluster, fill, part

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_a_listing_sums_up_every_topic_its_gaps_and_its_incarnations(place: Place) -> None:
    fill(place)
    listing = list_topics(place.open())
    assert [(each.topic, each.topic_id, each.newest) for each in listing.topics] == [
        ("empty", EMPTY_ID, True),
        ("orders", TOPIC_ID, True),
        ("orders", OLD_ID, False),
    ]
    empty, orders, past = listing.topics
    assert (empty.partitions, empty.records, empty.max_timestamp) == (2, 0, None)
    assert (orders.partitions, orders.offsets, orders.records, orders.segments) == (2, 35, 30, 4)
    assert (orders.bytes, orders.raw_bytes) == (3000, 2500 + 5000)
    assert orders.gaps == {"compacted": 5}
    assert (orders.min_timestamp, orders.max_timestamp) == (1_700_000_000_000, 1_700_000_000_029)
    assert (past.records, past.gaps) == (7, {})
    # The last run could not read one partition to its end: the one before it did.
    assert (listing.runs, listing.recovery_point) == (3, 1_700_000_000_001)
    assert (empty.recovery_point, orders.recovery_point) == (1_700_000_200_000, 1_700_000_000_001)
    assert past.recovery_point is None
    assert list_topics(place.open(), ["empty"]).recovery_point == 1_700_000_200_000
    assert list_topics(place.open(), as_of="run-0").recovery_point == 1_600_000_000_000
    assert listing.last_run is not None
    assert (listing.last_run.run_id, listing.last_run.exit_code, listing.last_run.bytes) == ("run-2", 3, None)


def test_as_of_a_run_what_came_later_is_not_listed(local_place: Place) -> None:
    fill(local_place)
    listing = list_topics(local_place.open(), as_of="run-1")
    (orders,) = [each for each in listing.topics if each.topic_id == TOPIC_ID]
    assert (listing.as_of, orders.records, orders.gaps) == ("run-1", 25, {})
    past = list_topics(local_place.open(), as_of="run-0")
    assert [(each.topic_id, each.records, each.newest) for each in past.topics] == [(OLD_ID, 7, True)]


def test_topics_are_chosen_by_name_and_pattern_and_close_names_are_told(local_place: Place) -> None:
    archive = fill(local_place)
    assert {each.topic for each in list_topics(archive, ["or*"]).topics} == {"orders"}
    with pytest.raises(UsageError, match=r"matches 'nothing\*'"):
        list_topics(archive, ["nothing*"])
    with pytest.raises(UsageError) as caught:
        list_topics(archive, ["/rder/"])
    assert "whole name" in str(caught.value.hint)
    with pytest.raises(UsageError, match="'ordres'") as caught:
        list_topics(archive, ["ordres"])
    assert caught.value.hint == "did you mean orders?"


def test_a_listing_of_one_topic_reads_no_rows_of_others(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(local_place)
    other = segment(0, 10, topic="clicks", topic_id="CLICKSCLICKSCLICKSCLIA", path="segments/clicks/x/0/1.log")
    commit_run(archive, "run-3", [other])
    every = {each.topic: each for each in list_topics(archive).topics}
    read: list[str] = []
    portions = Catalog.portions

    def counted(self: Catalog, *columns: Any, **conditions: Any) -> Iterator[Any]:
        for rows in portions(self, *columns, **conditions):
            read.extend(rows["topic"].to_pylist())
            yield rows

    monkeypatch.setattr(Catalog, "portions", counted)
    assert list_topics(archive, ["clicks"]).topics == (every["clicks"],)
    assert set(read) == {"clicks"}


def test_a_topic_created_again_and_still_empty_is_the_newest_of_its_name(local_place: Place) -> None:
    archive = local_place.create()
    commit_run(archive, "run-1", [segment(0, 5)], topics={TOPIC_ID: "orders"}, ends={part(0): 5})
    names, ends = {TOPIC_ID: "orders", EMPTY_ID: "orders"}, {part(0): 5, part(0, EMPTY_ID): 0}
    topic = TopicState(name="orders", topic_id=EMPTY_ID, internal=False, replicas=((1,),), configs={}, effective={})
    state = replace(cluster(), topics=(topic,))
    commit_run(archive, "run-2", [], topics=names, ends=ends, cluster=state, finished_at=1_800_000_000_000)
    assert [(each.topic_id, each.newest) for each in list_topics(archive).topics] == [
        (EMPTY_ID, True),
        (TOPIC_ID, False),
    ]
    assert show_topic(archive, "orders").topics[0].topic_id == EMPTY_ID


def test_a_lost_snapshot_does_not_keep_anyone_from_looking(local_place: Place) -> None:
    archive = fill(local_place)
    archive.storage.delete(["snapshots/run-2.json.zst"])
    assert {each.topic: each.records for each in list_topics(archive).topics if each.newest} == {"orders": 30}


def test_an_empty_archive_has_no_topics_and_no_recovery_point(place: Place) -> None:
    listing = list_topics(place.create())
    assert (listing.topics, listing.runs, listing.last_run, listing.recovery_point) == ((), 0, None, None)


def test_a_hundred_thousand_segments_are_summed_up(local_place: Place) -> None:
    archive = local_place.create()
    archive.catalog.commit(many_segments(1000, 100))
    topics = list_topics(archive).topics
    assert len(topics) == 10
    assert {(each.partitions, each.segments, each.offsets, each.bytes) for each in topics} == {
        (100, 10_000, 10_000_000, 1_000_000_000)
    }


def test_runs_say_what_they_did(place: Place) -> None:
    archive = fill(place)
    assert [(each.run_id, each.records, each.exit_code) for each in list_runs(archive)] == [
        ("run-0", 7, 0),
        ("run-1", 10, None),
        ("run-2", 5, 3),
    ]
    report = show_run(archive, "run-1")
    (orders,) = report.topics
    assert (orders.partitions, orders.records, orders.bytes, orders.objects, orders.gaps) == (2, 25, 2500, 3, {})
    assert show_run(archive, "latest").topics[0].gaps == {"compacted": 5}


@pytest.mark.parametrize(
    ("name", "hint"), [("run-", "did you mean run-"), ("nobody", "see 'maxbrod ls --runs'"), ("rum-1", "mean run-1")]
)
def test_a_run_that_is_not_one_is_refused(name: str, hint: str, local_place: Place) -> None:
    with pytest.raises(UsageError, match="runs of this archive match") as caught:
        show_run(fill(local_place), name)
    assert hint in str(caught.value.hint)
