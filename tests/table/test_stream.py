"""A stream over an archive that grows, as Spark drives it: every record in one batch, also where one is repeated."""

from __future__ import annotations

from shutil import rmtree
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_for_writing
from maxbrod.backup.truncation import cut_back
from maxbrod.errors import LogTruncatedError, MaxbrodError, RefusedError, UsageError
from maxbrod.layouts.kafka.format import SegmentLimits
from maxbrod.layouts.registry import FOREIGN
from support.conversions import convert
from support.native_logs import NAME, data_batch
from support.streams import Stream
from support.table_archives import PLACE, compact, query, write

if TYPE_CHECKING:
    from pathlib import Path

TEN = SegmentLimits(records_max=10)


def grow(archive: Path, first: int, end: int, **more: Any) -> None:
    """One run."""
    epoch = more.pop("epoch", 0)
    batches = [data_batch(base, 5, leader_epoch=epoch) for base in range(first, end, 5)]
    write(archive, batches, run_id=f"run-{first}-{end}-{epoch}", limits=TEN, written_at=end + 1000 * epoch, **more)


def offsets(batches: list[list[dict[str, Any]]]) -> list[list[int]]:
    return [[row["offset"] for row in batch] for batch in batches]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    grow(tmp_path / "archive", 0, 50)
    return tmp_path / "archive"


def test_a_stream_follows_an_archive_run_by_run(archive: Path) -> None:
    stream = Stream(archive)
    assert offsets(stream.drain()) == [[*range(50)]]
    assert stream.drain() == []
    for base in (50, 60):
        grow(archive, base, base + 10)
        assert offsets(stream.drain()) == [[*range(base, base + 10)]]
    stream.restart()
    assert stream.drain() == []


@pytest.mark.parametrize("starting", ["earliest", "latest", "run-0-50"])
def test_a_batch_that_is_repeated_has_the_same_records(archive: Path, starting: str) -> None:
    grow(archive, 50, 70)
    stream = Stream(archive, {"startingRun": starting})
    assert stream.plan()
    first = stream.run(commit=False)
    assert offsets([first]) == [{"earliest": [*range(70)], "latest": [], "run-0-50": [*range(50, 70)]}[starting]]
    # Killed before the commit. Meanwhile the archive grows, and is compacted.
    grow(archive, 70, 80)
    stream.restart()
    assert stream.run(commit=False) == first
    compact(archive)
    stream.restart()
    assert offsets(stream.drain()) == [*offsets([first]), [*range(70, 80)]]


def test_a_stream_goes_on_through_compaction_in_the_middle_of_what_was_a_segment(archive: Path) -> None:
    stream = Stream(archive, {"maxOffsetsPerTrigger": "13"})
    stream.plan()
    stream.run()
    compact(archive)
    assert offsets(stream.drain()) == [[*range(13, 26)], [*range(26, 39)], [*range(39, 50)]]


def test_available_now_ends_with_what_was_there(archive: Path) -> None:
    stream = Stream(archive, {"maxBytesPerTrigger": "1"})
    stream.restart()
    stream._reader.prepareForTriggerAvailableNow()
    assert stream.plan()
    found = [stream.run()]
    grow(archive, 50, 60)
    # The objects that it knew of are gone by now.
    compact(archive)
    found += stream.drain()
    assert offsets(found) == [[*range(base, base + 10)] for base in range(0, 50, 10)]
    assert offsets(stream.available_now()) == [[*range(50, 60)]]
    assert stream.available_now() == []


def test_a_stream_from_a_run_on_has_what_the_table_as_of_that_run_has_not(archive: Path) -> None:
    grow(archive, 50, 60)
    assert offsets(Stream(archive, {"startingRun": "run-0-50"}).drain()) == [[*range(50, 60)]]
    assert offsets(Stream(archive, {"startingRun": "run-50-60"}).drain()) == [[]]


def test_options_of_a_read_hold_for_a_stream(archive: Path) -> None:
    options = {"since": "1012", "until": "1031", "endingOffset": "29", "columns": "offset,topicId", "splitBytes": "1"}
    (batch,) = Stream(archive, options).drain()
    assert [row["offset"] for row in batch] == [*range(12, 29)]
    assert {*batch[0]} == {"offset", "topicId"}
    assert offsets(Stream(archive, {"partitions": "0"}).drain()) == [[]]
    assert offsets(Stream(archive, {"topics": "ord*"}).drain()) == [[*range(50)]]


def test_topics_that_come_later_are_read_from_their_beginning(archive: Path) -> None:
    stream = Stream(archive, {"startingRun": "latest", "columns": "topic,offset"})
    assert offsets(stream.drain()) == [[]]
    grow(archive, 0, 10, topic="payments", topic_id="p" + NAME.topic_id[1:], epoch=1)
    ((*rows,),) = stream.drain()
    assert [(row["topic"], row["offset"]) for row in rows] == [("payments", offset) for offset in range(10)]


def test_a_topic_created_again_follows_the_old_one_and_never_mixes_with_it(archive: Path) -> None:
    newer = "9" + NAME.topic_id[1:]
    stream = Stream(archive, {"columns": "offset,topicId", "maxOffsetsPerTrigger": "30"})
    stream.plan()
    seen = [stream.run()]
    grow(archive, 0, 10, topic_id=newer, epoch=1)
    seen += stream.drain()
    found = [(row["topicId"], row["offset"]) for batch in seen for row in batch]
    assert sorted(found) == sorted(
        [(NAME.topic_id, offset) for offset in range(50)] + [(newer, offset) for offset in range(10)]
    )
    # One that begins now begins with the newest, as a read does.
    for options, expected in (({}, 10), ({"incarnations": "all"}, 60)):
        assert sum(map(len, Stream(archive, options).drain())) == expected


def test_a_log_that_was_cut_stops_the_stream_and_names_the_place(archive: Path) -> None:
    stream = Stream(archive)
    stream.drain()
    opened = open_for_writing(str(archive))
    cut_back(opened, PLACE, 35, run_id="run-cut", now_ms=100)
    with pytest.raises(LogTruncatedError, match="orders-3") as refused:
        stream.drain()
    assert refused.value.offset == 35
    grow(archive, 35, 65, epoch=1)
    with pytest.raises(LogTruncatedError, match="orders-3"):
        stream.drain()
    accepting = Stream(archive, {"failOnDataLoss": "false"}, stream.planned, stream.done)
    assert offsets(accepting.drain()) == [[*range(35, 65)]]
    assert accepting.drain() == []
    # From then on it goes on without.
    assert Stream(archive, {}, accepting.planned, accepting.done).drain() == []


def test_a_stream_that_begins_behind_a_run_misses_nothing_that_took_the_place_of_what_the_run_left(
    archive: Path,
) -> None:
    cut_back(open_for_writing(str(archive)), PLACE, 35, run_id="run-cut", now_ms=100)
    grow(archive, 35, 65, epoch=1)
    with pytest.raises(LogTruncatedError, match="orders-3") as refused:
        Stream(archive, {"startingRun": "run-0-50"}).drain()
    assert refused.value.offset == 35
    accepting = Stream(archive, {"startingRun": "run-0-50", "failOnDataLoss": "false"})
    assert offsets(accepting.drain()) == [[*range(35, 65)]]


def test_a_query_as_of_a_run_has_what_the_log_had_before_it_was_cut(archive: Path) -> None:
    cut_back(open_for_writing(str(archive)), PLACE, 33, run_id="run-cut", now_ms=100)
    grow(archive, 30, 90, epoch=1)
    found = query(archive, columns="offset,leaderEpoch", asOf="run-0-50")
    assert [(row["offset"], row["leaderEpoch"]) for row in found] == [(each, 0) for each in range(50)]


def test_another_archive_under_the_same_checkpoint_is_refused(archive: Path, tmp_path: Path) -> None:
    stream = Stream(archive)
    stream.drain()
    grow(tmp_path / "other", 0, 10, topic_id="9" + NAME.topic_id[1:])
    with pytest.raises(RefusedError, match="does not have a topic"):
        Stream(tmp_path / "other", {}, stream.planned, stream.done).drain()


def test_an_archive_that_has_moved_is_followed_on(archive: Path) -> None:
    stream = Stream(archive)
    stream.drain()
    grow(archive, 50, 60)
    moved = archive.rename(archive.with_name("moved"))
    assert offsets(Stream(moved, {}, stream.planned, stream.done).drain()) == [[*range(50, 60)]]


@pytest.mark.parametrize(
    "options",
    [
        {"asOf": "latest"},
        {"startingRun": "run-7"},
        {"topics": "absent"},
        {"maxOffsetsPerTrigger": "0"},
        {"maxBytesPerTrigger": "much"},
        {"failOnDataLoss": "perhaps"},
        {"maxRecordsPerTrigger": "5"},
    ],
)
def test_options_that_cannot_be_right_are_refused(archive: Path, options: dict[str, str]) -> None:
    with pytest.raises(MaxbrodError) as refused:
        Stream(archive, options).drain()
    assert isinstance(refused.value, UsageError)


def test_a_look_at_an_unchanged_archive_reads_no_row(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(archive)
    stream.drain()
    monkeypatch.setattr("maxbrod.table.stream.follower.view_of", lambda *_: pytest.fail("looked again"))
    assert not stream.plan()


@pytest.mark.parametrize("layout", FOREIGN)
def test_archives_of_other_tools_are_followed_by_their_offsets(archive: Path, tmp_path: Path, layout: str) -> None:
    tree = tmp_path / "tree"
    convert(archive, tree, layout, accept_loss=True, verify=False)
    stream = Stream(tree, {"maxOffsetsPerTrigger": "30", "columns": "offset"})
    assert offsets(stream.drain()) == [[*range(30)], [*range(30, 50)]]
    assert stream.drain() == []
    grow(archive, 50, 70)
    # What the tool itself would have made of it.
    rmtree(tree)
    convert(archive, tree, layout, accept_loss=True, verify=False)
    assert offsets(stream.available_now()) == [[*range(50, 70)]]
