"""What has no records goes through a conversion like everything else, or the report says that it does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import find_moment
from maxbrod.check.foreign import check_foreign
from maxbrod.errors import EXIT_REFUSED, CorruptDataError
from maxbrod.inspect.listing import list_topics
from maxbrod.inspect.topic import show_topic
from maxbrod.layouts.foreign import ClusterFacts, ForeignTopic, Survey, WriteOptions
from maxbrod.layouts.registry import FOREIGN, NATIVE, layout_of
from maxbrod.model import TopicPartition
from maxbrod.storage.stores import open_storage
from support.conversions import convert
from support.given_records import Given, batch

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = {"full": 2, "empty": 3}


def archive(folder: Path, *, records: int, topics: dict[str, int] = TOPICS, layout: str = "kbak") -> Path:
    """One partition of the first topic has so many records."""
    storage, survey = open_storage(str(folder)), Survey(layout=layout, segments=())
    where = TopicPartition(topic=next(iter(topics)), partition=0)
    given = [batch([Given(offset=offset) for offset in range(records)])] if records else []
    written = layout_of(layout).write(storage, where, given, WriteOptions(), survey=survey) if given else []
    known = {name: ForeignTopic(name=name, partition_count=count) for name, count in topics.items()}
    facts = ClusterFacts(cluster_id="c", topics=known, taken_at_ms=5)
    layout_of(layout).publish(storage, survey, written, WriteOptions(), facts)
    return folder


def topics_in(folder: Path) -> dict[str, int]:
    opened = open_archive(str(folder))
    cluster = find_moment(opened.storage, opened.catalog.runs(), None).cluster
    assert cluster is not None
    return {each.name: each.partition_count for each in cluster.topics}


@pytest.mark.parametrize("records", [5, 0])
@pytest.mark.parametrize("layout", [NATIVE, *FOREIGN])
def test_empty_topics_and_partitions_go_through_a_layout_and_back(layout: str, records: int, tmp_path: Path) -> None:
    there = convert(archive(tmp_path / "source", records=records), tmp_path / "there", layout)
    assert (there.exit_code, there.notices[1:]) == (0, ())
    assert {each.topic: each.partitions for each in there.topics} == TOPICS
    assert topics_in(tmp_path / "there") == TOPICS
    convert(tmp_path / "there", tmp_path / "back", NATIVE)
    assert topics_in(tmp_path / "back") == TOPICS
    again = convert(tmp_path / "source", tmp_path / "there", layout)
    assert (again.exit_code, [each.records for each in again.topics]) == (0, [0, 0])


@pytest.mark.parametrize("layout", ["kbak", "binlog"])
def test_of_topics_that_are_not_chosen_nothing_is_said(layout: str, tmp_path: Path) -> None:
    source = archive(tmp_path / "source", records=5)
    report = convert(source, tmp_path / "there", layout, topics=("empty",))
    assert [(each.topic, each.partitions, each.records) for each in report.topics] == [("empty", 3, 0)]
    assert topics_in(tmp_path / "there") == {"empty": 3}


def test_empty_partitions_that_a_layout_cannot_hold_are_told(tmp_path: Path) -> None:
    """binlog begins every partition at offset 0: one whose records are all gone would begin there again."""
    source = archive(tmp_path / "source", records=5)
    manifest = json.loads((source / "maxbrod" / "manifest.json").read_text())
    (empty,) = (each for each in manifest["topics"] if each["name"] == "empty")
    empty["partitions"] = [{"partition_id": 2, "segments": [], "covered_through": 9}]
    (source / "maxbrod" / "manifest.json").write_text(json.dumps(manifest))
    report = convert(source, tmp_path / "there", "binlog")
    (notice,) = (each for each in report.notices if each.kind == "empty")
    assert (notice.topic, report.exit_code) == ("empty", 0)
    assert "1 partition without records not kept" in notice.message


@pytest.mark.parametrize("layout", [NATIVE, *(each for each in FOREIGN if each != "avro")])
def test_the_longest_name_of_a_topic_fits_every_layout_but_avro(layout: str, tmp_path: Path) -> None:
    source = archive(tmp_path / "source", records=5, topics={"a" * 249: 1})
    report = convert(source, tmp_path / "there", layout)
    assert (report.exit_code, report.topics[0].equal) == (0, True)


def test_a_name_too_long_for_a_file_is_refused_by_its_length_and_no_damage(tmp_path: Path) -> None:
    source = archive(tmp_path / "source", records=5, topics={"a" * 249: 1, "b": 1})
    report = convert(source, tmp_path / "there", "avro")
    (failure,) = (each for each in report.notices if each.exit_code)
    assert (failure.kind, failure.exit_code, report.exit_code) == ("failed", EXIT_REFUSED, EXIT_REFUSED)
    assert "249 characters" in failure.message
    assert report.topics[0].equal is None
    longest = archive(tmp_path / "longest", records=5, topics={"a" * 227: 1})
    assert convert(longest, tmp_path / "fits", "avro").exit_code == 0


@pytest.mark.parametrize("layout", FOREIGN)
def test_empty_topics_of_a_layout_are_listed_counted_and_shown(layout: str, tmp_path: Path) -> None:
    convert(archive(tmp_path / "source", records=5), tmp_path / "there", layout)
    opened = open_archive(str(tmp_path / "there"))
    listed = list_topics(opened).topics
    assert {each.topic: (each.partitions, each.records) for each in listed} == {"empty": (3, 0), "full": (2, 5)}
    checked = check_foreign(opened)
    assert (checked.topics, checked.partitions, checked.partitions_without_records) == (2, 5, 4)
    shown = show_topic(opened, "empty").topics[0]
    assert [each.end_offset for each in shown.partitions] == [0, 0, 0]


# The layout binlog cannot tell: its index of a partition exists before the first segment.
@pytest.mark.parametrize("layout", [each for each in FOREIGN if each != "binlog"])
def test_a_topic_that_was_not_converted_is_not_taken_for_an_empty_one(layout: str, tmp_path: Path) -> None:
    source = archive(tmp_path / "source", records=5)
    (segment,) = source.rglob("*segment*")
    segment.write_bytes(segment.read_bytes()[:-9])
    assert convert(source, tmp_path / "there", layout).exit_code
    assert topics_in(tmp_path / "there") == {"empty": 3}


@pytest.mark.parametrize("number", ["partition_count", "replication_factor"])
def test_impossible_numbers_of_a_topic_fill_no_memory(number: str, tmp_path: Path) -> None:
    convert(archive(tmp_path / "source", records=5), tmp_path / "there", "parquet")
    facts = json.loads((tmp_path / "there" / "maxbrod.json").read_text())
    facts["topics"]["empty"][number] = 1 << 60
    (tmp_path / "there" / "maxbrod.json").write_text(json.dumps(facts))
    with pytest.raises(CorruptDataError, match="empty"):
        open_archive(str(tmp_path / "there")).catalog.rows()
