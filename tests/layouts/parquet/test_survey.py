"""What is there is found by names and footers: run after run, after crashes, with overlaps, in several regions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxbrod.errors import UsageError
from maxbrod.layouts.foreign import Survey, WriteOptions
from maxbrod.layouts.parquet import survey as surveying
from maxbrod.layouts.parquet.format import FOLLOWS, Footer, SegmentName, parse_footer, parse_name
from maxbrod.layouts.parquet.survey import LAYOUT, without_overlaps
from maxbrod.model import TopicPartition
from support.parquet_trees import WHERE, local, read, rows, write

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.storage.interface import ObjectInfo, Storage

SEGMENT = "00000000000000000000-00000000000000000009"


def test_each_run_goes_on_where_the_last_one_ended(storage: Storage) -> None:
    """On every kind of storage."""
    assert not LAYOUT.detect(storage)
    assert LAYOUT.survey(storage) == Survey(layout="parquet", segments=(), details={"regions": {}})
    for start in (0, 10, 20):
        assert LAYOUT.survey(storage).positions.get(WHERE, 0) == start
        write(storage, [rows(10, start=start)], segment_records_max=7)
    assert LAYOUT.detect(storage)
    survey = LAYOUT.survey(storage)
    assert [segment.records for segment in survey.segments] == [7, 3] * 3
    assert read(storage, survey.segments).equals(pa.Table.from_batches([rows(30)]))
    assert not survey.faults


def test_a_run_that_died_before_it_published_leaves_nothing_double(tmp_path: Path) -> None:
    storage = local(tmp_path)
    write(storage, [rows(10)])
    before = LAYOUT.survey(storage)
    LAYOUT.write(storage, WHERE, [rows(10, start=10)], WriteOptions(segment_records_max=4), survey=before)
    # Again with what was known before, and with more records than there were at that time.
    write(storage, [rows(25, start=10)], survey=before, segment_records_max=6)
    survey = LAYOUT.survey(storage)
    assert read(storage, survey.segments).equals(pa.Table.from_batches([rows(35)]))
    assert not list(LAYOUT.check(storage, survey, deep=True))


def test_a_survey_with_a_memory_opens_only_new_and_replaced_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = local(tmp_path)
    seen: dict[str, object] = {}
    opened: list[str] = []
    real = surveying.open_found

    def opening(source: Storage, name: SegmentName, info: ObjectInfo) -> surveying.SurveyedSegment:
        opened.append(name.path)
        return real(source, name, info)

    monkeypatch.setattr(surveying, "open_found", opening)
    first = write(storage, [rows(10)], segment_records_max=5)
    assert LAYOUT.survey(storage, seen=seen) == LAYOUT.survey(storage)
    opened.clear()
    second = write(storage, [rows(5, start=10)], survey=LAYOUT.survey(storage, seen=seen))
    path = tmp_path / first[0].path
    os.utime(path, (1, 1))
    survey = LAYOUT.survey(storage, seen=seen)
    assert sorted(opened) == sorted([first[0].path, second[0].path])
    assert survey == LAYOUT.survey(storage)
    path.write_bytes(path.read_bytes()[:-1])
    assert LAYOUT.survey(storage, seen=seen).faults
    path.unlink()
    assert LAYOUT.survey(storage, seen=seen) == LAYOUT.survey(storage)


@pytest.mark.parametrize(("follows", "gaps"), [(10, []), (12, [(10, 12)]), (None, [(10, 20), (25, 40)])])
def test_a_footer_explains_the_hole_before_its_segment(
    tmp_path: Path, follows: int | None, gaps: list[tuple[int, int]]
) -> None:
    """Nothing was published: the writer was killed before."""
    storage = local(tmp_path)
    before = LAYOUT.survey(storage)
    LAYOUT.write(storage, WHERE, [rows(10)], WriteOptions(), survey=before)
    options = WriteOptions(segment_records_max=5, read_from=None if follows is None else lambda: follows)
    LAYOUT.write(storage, WHERE, [rows(5, start=20), rows(5, start=40)], options, survey=LAYOUT.survey(storage))
    survey = LAYOUT.survey(storage)
    assert [(each.base_offset, each.end_offset) for each in survey.gaps] == gaps
    assert not survey.faults


@pytest.mark.parametrize("value", [b"", b"21", b"-1", b"x", b"9" * 30, b"\xff"])
def test_a_footer_with_an_impossible_offset_explains_nothing(value: bytes) -> None:
    name = SegmentName(folder="data/r", where=WHERE, level=0, start=20, end=29)
    keys = {key.encode(): text.encode() for key, text in Footer(name=name, region="r", records=10).keys().items()}
    assert parse_footer({**keys, FOLLOWS.encode(): value}).follows is None
    assert parse_footer({**keys, FOLLOWS.encode(): b"20"}).follows == 20


def test_writing_the_same_again_changes_no_name(tmp_path: Path) -> None:
    storage = local(tmp_path)
    empty = LAYOUT.survey(storage)
    first = write(storage, [rows(10)], survey=empty)
    assert [each.path for each in write(storage, [rows(10)], survey=empty)] == [each.path for each in first]
    assert len(list(storage.list("data"))) == 1


def test_segments_of_several_regions_are_read_together_or_one_by_one(tmp_path: Path) -> None:
    storage = local(tmp_path)
    other = TopicPartition(topic="other", partition=0)
    write(storage, [rows(5)], extra={"region": "us-east-1"})
    with pytest.raises(UsageError, match="of region us-east-1"):
        write(storage, [rows(5, start=5)], extra={"region": "eu-1"})
    write(storage, [rows(6)], where=other, extra={"region": "eu-1"})
    assert {each.details["region"] for each in LAYOUT.survey(storage).segments} == {"us-east-1", "eu-1"}
    assert [each.where for each in LAYOUT.survey(storage, {"region": "eu-1"}).segments] == [other]
    with pytest.raises(UsageError, match="has the regions"):
        write(storage, [rows(1)], where=TopicPartition(topic="third", partition=0))
    # A region's own folder is an archive, too, and what is written there stays in it.
    folder = local(tmp_path / "data" / "eu-1")
    assert LAYOUT.detect(folder)
    (segment,) = write(folder, [rows(4, start=6)], where=other)
    assert segment.path == "other/0/0/00000000000000000006-00000000000000000009"
    assert LAYOUT.survey(storage).positions == {WHERE: 5, other: 10}


def test_a_partition_of_two_regions_is_refused_until_one_is_chosen(tmp_path: Path) -> None:
    storage = local(tmp_path)
    write(local(tmp_path / "a"), [rows(5)], extra={"region": "east"})
    write(local(tmp_path / "b"), [rows(7)], extra={"region": "west"})
    with pytest.raises(UsageError, match="more than one region") as refusal:
        LAYOUT.survey(storage)
    assert "east" in (refusal.value.hint or "")
    assert LAYOUT.survey(storage, {"region": "west"}).positions == {WHERE: 7}


def test_a_higher_level_stands_for_those_below_it_and_they_for_it_when_it_is_damaged(tmp_path: Path) -> None:
    storage = local(tmp_path)
    write(storage, [rows(10, mark=b"low")], segment_records_max=5)
    aside = local(tmp_path / "aside")
    (high,) = write(aside, [rows(8, start=2, mark=b"high")])
    name = parse_name(high.path)
    assert name is not None
    wrong = high.path.replace("/107/0/", "/107/1/")
    storage.put(wrong, aside.get(high.path))  # its footer still says level 0
    aside.delete([high.path])
    survey = LAYOUT.survey(storage)
    assert [(each.path, "another segment" in each.message) for each in survey.faults] == [(wrong, True)]
    assert read(storage, survey.segments).equals(pa.Table.from_batches([rows(10, mark=b"low")]))


def test_objects_without_a_segments_name_are_told_and_never_read(tmp_path: Path) -> None:
    storage = local(tmp_path)
    write(storage, [rows(3)], extra={"region": "us"})
    strangers = [
        f"data/us/sensor.events/107/{SEGMENT}",
        f"data/us/sensor.events/-1/0/{SEGMENT}",
        f"data/us/sensor.events/007/0/{SEGMENT}",
        f"data/us/to pic/0/0/{SEGMENT}",
        "data/us/sensor.events/107/0/00000000000000000009-00000000000000000000",
        "data/us/sensor.events/107/0/00000000000000000000-18446744073709551615",
        f"data/us/sensor.events/107/0/{SEGMENT}.parquet",
    ]
    for path in (*strangers, "temp/055021f4-61cf-4604-b1b3-ebe01e1564b5", "elsewhere.txt"):
        storage.put(path, b"x")
    survey = LAYOUT.survey(storage)
    assert sorted(each.path for each in survey.faults if not each.fatal) == sorted(strangers)
    assert len(survey.segments) == 1


@pytest.mark.parametrize(
    "path", [f"data/us/../0/0/{SEGMENT}", f"data/us/./0/0/{SEGMENT}", f"data/us/t/0/0/{SEGMENT}/x"]
)
def test_names_that_lead_elsewhere_are_no_segments(path: str) -> None:
    assert parse_name(path) is None


def test_topics_that_lead_elsewhere_are_never_written(tmp_path: Path) -> None:
    storage = local(tmp_path)
    for topic in ("..", ".", "a/b", "", "x" * 250, "ä"):
        with pytest.raises(UsageError):
            write(storage, [rows(3)], where=TopicPartition(topic=topic, partition=0))
    assert not list(storage.list())


names = st.builds(
    lambda level, start, size: SegmentName(folder="data/r", where=WHERE, level=level, start=start, end=start + size),
    st.integers(0, 3),
    st.integers(0, 60),
    st.integers(0, 30),
)


@given(found=st.lists(names, max_size=12))
def test_every_offset_belongs_to_one_segment_and_the_highest_level_that_has_it(found: list[SegmentName]) -> None:
    chosen = without_overlaps(found)
    owners = {offset: share.name for share in chosen for offset in range(share.base, share.end)}
    assert sum(share.end - share.base for share in chosen) == len(owners)
    assert [share.base for share in chosen] == sorted(share.base for share in chosen)
    assert set(owners) == {offset for name in found for offset in range(name.start, name.end + 1)}
    for offset, owner in owners.items():
        having = [name for name in found if name.start <= offset <= name.end]
        assert owner.level == max(name.level for name in having)


@given(name=names)
def test_a_name_tells_what_it_was_made_of(name: SegmentName) -> None:
    assert parse_name(name.path) == name
    assert name.region == "r"
