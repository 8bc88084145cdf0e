"""A DataFrame into an archive: every row once, at its offset or the next one, or nothing at all."""

from __future__ import annotations

import uuid
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive, open_for_writing
from maxbrod.archive.snapshots import find_moment
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.rows import Gap, decode_rows
from maxbrod.catalog.tiling import find_tiling_faults
from maxbrod.errors import MaxbrodError, RefusedError, UsageError
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.inspect.listing import list_topics
from maxbrod.model import GapReason, PartitionId, now_ms
from maxbrod.table.sink import archive_task
from maxbrod.table.source import ArchiveSource
from support import table_archives as archives
from support.archives import Place, commit_run
from support.catalog_rows import TOPIC_ID, segment
from support.native_logs import data_batch
from support.sinks import (
    ALL,
    COLUMNS,
    WITH_OFFSETS,
    Row,
    assert_sound,
    batches,
    run_tasks,
    save,
    schema_of,
    stream,
    table,
    values,
    writer,
)

if TYPE_CHECKING:
    from pathlib import Path


def row(value: int | str, partition: int | None = 0, topic: str | None = "t", **more: Any) -> Row:
    return {"topic": topic, "partition": partition, "key": b"k", "value": str(value).encode(), **more}


@st.composite
def jobs(draw: st.DrawFn) -> list[list[Row]]:
    """Tasks whose rows name partitions, not offsets."""
    numbers = count()
    places = st.tuples(st.sampled_from(["t", "u"]), st.integers(0, 2))
    tasks = draw(st.lists(st.lists(places, max_size=12), min_size=1, max_size=4))
    return [[row(next(numbers), partition, topic) for topic, partition in task] for task in tasks]


@settings(max_examples=12, deadline=None)
@given(first=jobs(), second=jobs(), held_bytes=st.sampled_from([1, 100, 1 << 20]), packed=st.sampled_from([0, 1 << 20]))
def test_rows_without_offsets_follow_each_other_in_the_order_of_tasks(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[list[Row]],
    second: list[list[Row]],
    held_bytes: int,
    packed: int,
) -> None:
    url = tmp_path_factory.mktemp("a") / uuid.uuid4().hex
    with patch.object(archive_task, "HELD_BYTES", held_bytes), patch.object(archive_task, "_PACKED_BYTES", packed):
        for tasks in (first, second):
            save(url, tasks)
    expected: dict[tuple[str, int], list[bytes]] = {}
    for each in (each for tasks in (first, second) for task in tasks for each in task):
        expected.setdefault((each["topic"], each["partition"]), []).append(each["value"])
    assert values(url) == {place: list(enumerate(found)) for place, found in expected.items()}
    assert_sound(url)


@st.composite
def placed_jobs(draw: st.DrawFn) -> list[list[Row]]:
    """Tasks that have ranges of offsets of their own, each in any order within itself, with holes."""
    offsets = draw(st.lists(st.integers(0, 6000), unique=True, min_size=1, max_size=30))
    offsets.sort()
    tasks: list[list[Row]] = [[] for _ in range(3)]
    for partition in range(2):
        cuts = sorted(draw(st.lists(st.integers(0, len(offsets)), min_size=2, max_size=2)))
        owners = draw(st.permutations(range(3)))
        edges = [0, *cuts, len(offsets)]
        for owner, start, end in zip(owners, edges, edges[1:], strict=False):
            tasks[owner] += [
                row(
                    offset,
                    partition,
                    offset=offset,
                    timestampMs=draw(st.sampled_from([-7, 0, 1_600_000_000_001])),
                    timestampType=draw(st.sampled_from([0, 1])),
                    headers=draw(st.sampled_from([None, [{"key": "h", "value": None}, {"key": "h", "value": b"2"}]])),
                )
                for offset in offsets[start:end]
            ]
    return [draw(st.permutations(task)) for task in tasks]


@settings(max_examples=12, deadline=None)
@given(tasks=placed_jobs())
def test_rows_with_offsets_stand_at_them_and_holes_are_gaps(
    tmp_path_factory: pytest.TempPathFactory, tasks: list[list[Row]]
) -> None:
    url = tmp_path_factory.mktemp("a") / uuid.uuid4().hex
    save(url, tasks, ALL)
    expected: dict[tuple[str, int], list[Row]] = {}
    for each in sorted((each for task in tasks for each in task), key=lambda each: each["offset"]):
        expected.setdefault((each["topic"], each["partition"]), []).append(each)
    assert table(url) == expected
    assert_sound(url)
    gaps = [each for each in decode_rows(open_archive(str(url)).catalog.rows()) if isinstance(each, Gap)]
    assert {each.reason for each in gaps} <= {GapReason.UNRECORDED}


def nothing_changed(url: Path, version: int | None) -> None:
    archive = open_archive(str(url))
    assert archive.catalog.version == version
    assert not archive.catalog.rows().num_rows
    assert not archive.catalog.runs()


def test_ranges_that_interleave_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    rows = [row(offset, offset=offset) for offset in range(10)]
    with pytest.raises(RefusedError, match="not sorted by offset") as caught:
        save(tmp_path / "a", [rows[::2], rows[1::2]], WITH_OFFSETS)
    error = caught.value
    assert (error.object_name, error.offset) == ("t-0", 1)
    assert "maxbrod.write" in str(error.hint)
    assert "sortWithinPartitions" in str(error.hint)
    nothing_changed(tmp_path / "a", 0)


def test_a_task_whose_rows_are_in_disorder_beyond_what_it_holds_is_refused(tmp_path: Path) -> None:
    """Batches have three rows, and no two are held at once."""
    falling = [row(offset, offset=offset) for offset in (6, 8, 7, 5, 3, 4, 0, 1, 2)]
    with patch.object(archive_task, "HELD_BYTES", 1):
        save(tmp_path / "a", [falling], WITH_OFFSETS)
        with pytest.raises(RefusedError, match="not sorted by offset"):
            save(tmp_path / "b", [falling[1:]], WITH_OFFSETS)
    assert [offset for offset, _ in values(tmp_path / "a")["t", 0]] == list(range(9))
    assert_sound(tmp_path / "a")
    nothing_changed(tmp_path / "b", 0)


@pytest.mark.parametrize("offsets", [[3, 3], [-1, 2]])
def test_offsets_that_cannot_be_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    with pytest.raises(RefusedError, match=r"twice|negative") as caught:
        save(tmp_path / "a", [[row(0, offset=offset) for offset in offsets]], WITH_OFFSETS)
    assert (caught.value.object_name, caught.value.offset) == ("t-0", offsets[0])


def test_what_the_archive_has_is_never_written_again(tmp_path: Path) -> None:
    url = tmp_path / "a"
    save(url, [[row(offset, offset=offset) for offset in range(5)]], WITH_OFFSETS)
    with pytest.raises(RefusedError, match="already has this partition up to offset 5") as caught:
        save(url, [[row(offset, offset=offset) for offset in range(4, 8)]], WITH_OFFSETS)
    assert (caught.value.object_name, caught.value.offset) == ("t-0", 4)
    save(url, [[row(offset, offset=offset) for offset in range(7, 9)]], WITH_OFFSETS)
    assert [offset for offset, _ in values(url)["t", 0]] == [0, 1, 2, 3, 4, 7, 8]
    assert_sound(url)


def test_a_writer_that_was_overtaken_numbers_its_rows_anew(tmp_path: Path) -> None:
    url = tmp_path / "a"
    slow = writer(url)
    messages = run_tasks(slow, [[row("late"), row("later")]])
    commit = Catalog.commit
    overtaking = iter([["first"], ["second"]])

    def overtaken(self: Any, *arguments: Any, **options: Any) -> int:
        for each in overtaking:
            with patch.object(Catalog, "commit", commit):
                save(url, [[row(value) for value in each]])
            break
        return commit(self, *arguments, **options)

    with patch.object(Catalog, "commit", overtaken):
        slow.commit(list(messages))
    assert values(url) == {("t", 0): [(0, b"first"), (1, b"second"), (2, b"late"), (3, b"later")]}
    assert_sound(url)


def test_an_aborted_job_leaves_no_row_and_gc_finds_its_objects(tmp_path: Path) -> None:
    url = tmp_path / "a"
    made = writer(url)
    made.abort([*run_tasks(made, [[row(1)]]), None])
    nothing_changed(url, 0)
    found = collect_garbage(open_archive(str(url)))
    assert (found.young_objects, found.named_objects) == (1, 0)


def test_what_was_numbered_anew_leaves_no_garbage(tmp_path: Path) -> None:
    url = tmp_path / "a"
    save(url, [[row(1)], [row(2)], [row(3)]])
    assert values(url)["t", 0] == [(0, b"1"), (1, b"2"), (2, b"3")]
    found = collect_garbage(open_archive(str(url)))
    assert (found.young_objects, len(found.objects)) == (0, 0)


def test_a_micro_batch_that_comes_again_is_not_there_twice(tmp_path: Path) -> None:
    url = tmp_path / "a"
    for batch in range(13):  # over a checkpoint of the catalog's log
        stream(url, batch, [[row(batch)]])
        stream(url, batch, [[row(batch)]])
    expected = [(batch, str(batch).encode()) for batch in range(13)]
    assert values(url) == {("t", 0): expected}
    with pytest.raises(RefusedError, match="batch 3 of the stream is repeated, but batch 12"):
        stream(url, 3, [[row("old")]])
    stream(url, 12, [[row("other")]], name="another")
    assert values(url) == {("t", 0): [*expected, (13, b"other")]}
    assert_sound(url)


def test_a_micro_batch_without_rows_or_of_no_known_stream_changes_nothing(tmp_path: Path) -> None:
    stream(tmp_path / "a", 0, [[], []])
    with pytest.raises(RefusedError, match="the id of the stream"):
        stream(tmp_path / "a", 1, [[row(1)]], name=None)
    nothing_changed(tmp_path / "a", 0)


def test_keys_choose_the_partition_that_kafkas_client_would_and_others_take_turns(tmp_path: Path) -> None:
    keys = [None, b"21", None, b"foobar", None, b"a-little-bit-long-string"]
    columns = "key binary, value string"
    rows = [{"key": key, "value": "v"} for key in keys]
    save(tmp_path / "a", [rows], columns, topic="x", partitions="3")
    found = {partition: [each["key"] for each in rows] for (_, partition), rows in table(tmp_path / "a").items()}
    # Kafka's own test of murmur2 has these hashes: -973932308, -790332482, -985981536.
    positions = {key: (value & 0x7FFFFFFF) % 3 for key, value in zip(keys[1::2], HASHES, strict=True)}
    for key, partition in positions.items():
        assert key in found[partition]
    assert [found[partition].count(None) for partition in range(3)] == [1, 1, 1]
    snapshot = open_archive(str(tmp_path / "a")).catalog.runs()[-1]
    assert snapshot.statistics["partitions"] == len(found)


HASHES = (-973932308, -790332482, -985981536)


def test_timestamps_are_cut_to_milliseconds_and_missing_ones_are_now(tmp_path: Path) -> None:
    columns = f"{COLUMNS}, timestamp timestamp, timestampMs bigint"
    from datetime import UTC, datetime  # noqa: PLC0415

    times = [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2024, 1, 1, 0, 0, 0, 1_999, UTC), None, None]
    exact = [None, None, 5, None]
    rows = [row(0, timestamp=time, timestampMs=ms) for time, ms in zip(times, exact, strict=True)]
    with patch.object(archive_task, "now_ms", lambda: 77):
        save(tmp_path / "a", [rows], columns)
    assert [each["timestampMs"] for each in table(tmp_path / "a")["t", 0]] == [-1, 1_704_067_200_001, 5, 77]


@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ("topic string, partition int", {}, "no column 'value'"),
        ("value binary, partition int", {}, "no topic is named"),
        ("value binary, topic string", {}, "no partition is named"),
        ("value binary, topic string, offset bigint", {"partitions": "2"}, "without partitions"),
        ("value int, topic string, partition int", {}, "the column value is int, not binary or string"),
        ("value binary, topic string, partition bigint", {}, "the column partition is bigint, not int"),
        ("value binary, topic string, partition int, offset int", {}, "the column offset is int"),
        ("value binary, topic string, partition int, timestamp string", {}, "timestamp is string, not timestamp"),
        ("value binary, topic string, partition int, headers map", {}, "headers is map"),
        ("value binary, topic string, partition int, price double", {}, "a record has no column 'price'"),
        (COLUMNS, {"colour": "red"}, "no option 'colour'"),
        (COLUMNS, {"partitions": "0"}, "the option partitions is '0'"),
        (COLUMNS, {"codec": "brotli"}, "the option codec is 'brotli'"),
        (COLUMNS, {"compression": "lots"}, "compression 'lots' is unknown"),
    ],
)
def test_what_cannot_be_written_is_refused_before_any_task_runs(
    tmp_path: Path, columns: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        writer(tmp_path / "a", columns, **options)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([row(1), row(2, topic=None)], r"the column topic is null in a row \(the 2. of its batch\)"),
        ([row(1, partition=None)], "a row names no partition"),
        ([row(1, partition=-1)], "a row names partition -1"),
        ([row(1, partition=2_000_000_000)], "a row names partition 2000000000"),
        ([row(1, topic="../up")], "cannot be a topic"),
        ([row(1, headers=[{"key": None, "value": b""}])], "a header that is null"),
        ([row(1, timestampType=7)], "timestampType 7"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_and_nothing_changes(
    tmp_path: Path, rows: list[Row], complaint: str
) -> None:
    columns = f"{COLUMNS}, timestampType int, headers headers"
    with pytest.raises(MaxbrodError, match=complaint):
        save(tmp_path / "a", [rows], columns)
    nothing_changed(tmp_path / "a", 0)


def test_a_topic_never_loses_partitions_to_a_backup_in_between(tmp_path: Path) -> None:
    url = tmp_path / "a"
    save(url, [[row(1, partition=3)]])
    now = now_ms()
    ends = {PartitionId(topic_id=TOPIC_ID, partition=0): 3}
    known = {"topics": {TOPIC_ID: "orders"}, "ends": ends}
    points = {PartitionId(topic_id=TOPIC_ID, partition=0): 1000}
    told = {**known, "recovery_points": points, "behind": points}
    commit_run(open_for_writing(str(url)), "backup", [segment(0, 3)], **told, finished_at=now, written_at=now)
    save(url, [[row(2, partition=0)]])
    archive = open_archive(str(url))
    moment = find_moment(archive.storage, archive.catalog.runs(), "latest")
    assert moment.cluster is not None
    assert {each.name: each.partition_count for each in moment.cluster.topics} == {"t": 4}
    assert moment.snapshot is not None
    assert sorted(moment.snapshot.topics.values()) == ["orders", "t"]
    assert sorted(moment.snapshot.ends.values()) == [1, 1, 3]
    # Nothing of the cluster is fresher by what was written, nor staler, and what its backup lacks is still lacking.
    assert moment.snapshot.recovery_points == points
    assert moment.snapshot.behind == points
    assert list_topics(open_archive(str(url))).recovery_point == 1000


def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="never overwritten"):
        ArchiveSource({"path": str(tmp_path / "a")}).writer(schema_of(COLUMNS), overwrite=True)


def test_records_are_never_mixed_with_those_of_a_backup(tmp_path: Path) -> None:
    archives.write(tmp_path / "a", [data_batch(0, 3)])
    with pytest.raises(RefusedError, match="a topic of this name from a cluster"):
        save(tmp_path / "a", [[row(1, topic="orders")]])
    save(tmp_path / "a", [[row(1, topic="others")]])
    assert {topic for topic, _ in table(tmp_path / "a")} == {"orders", "others"}


@pytest.mark.parametrize(
    "options", [{"codec": "lz4"}, {"compression": "zstd:3", "codec": "gzip"}, {"segmentBytes": "1"}]
)
def test_however_it_is_stored_the_rows_are_the_same(tmp_path: Path, options: dict[str, str]) -> None:
    tasks = [[row(number, number % 2) for number in range(start, start + 20)] for start in (0, 20)]
    save(tmp_path / "plain", tasks)
    save(tmp_path / "a", tasks, **options)
    assert values(tmp_path / "a") == values(tmp_path / "plain")
    assert_sound(tmp_path / "a")
    codecs = set(open_archive(str(tmp_path / "a")).catalog.rows()["codec"].to_pylist())
    assert codecs == {options.get("codec", "none")}


def test_many_open_segments_are_bounded(tmp_path: Path) -> None:
    rows = [row(number, number % 30) for number in range(90)]
    with patch.object(archive_task, "_PACKED_BYTES", 0), patch.object(archive_task, "HELD_BYTES", 1):
        made = writer(tmp_path / "a")
        parts = archive_task._Parts
        most = 0

        class Counting(parts):  # type: ignore[misc,valid-type]
            def _leave(self, *arguments: Any) -> None:
                nonlocal most
                super()._leave(*arguments)
                most = max(most, len(self._open))

        with patch.object(archive_task, "_Parts", Counting):
            made.commit([made.write(iter(batches(rows)))])
    assert most == archive_task._OPEN_MAX
    assert {place: len(found) for place, found in values(tmp_path / "a").items()} == {("t", n): 3 for n in range(30)}


def test_wherever_the_archive_is_the_rows_are_there_once(place: Place) -> None:
    s3 = place.options.s3
    # Keys stand in the environment.
    options = {} if s3.endpoint is None else {"storage.s3.endpoint": s3.endpoint, "storage.s3.region": str(s3.region)}
    tasks = [[row(number, number % 2) for number in range(start, start + 20)] for start in (0, 20)]
    with patch.object(archive_task, "_PACKED_BYTES", 0):
        save(place.url, tasks, **options)
        save(place.url, tasks, **options)
    assert {each: len(found) for each, found in values(place.url, **options).items()} == {("t", 0): 40, ("t", 1): 40}
    archive = place.open()
    assert find_tiling_faults(archive.catalog.rows()).complete
    assert collect_garbage(archive).young_objects == 0
