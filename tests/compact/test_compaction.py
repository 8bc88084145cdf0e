"""Small segments become large ones: every batch stays at its offsets, byte by byte, as do boundaries that matter."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxbrod.archive.archive import open_archive
from maxbrod.archive.runs import list_runs
from maxbrod.batch.headers import walk
from maxbrod.board import stop_of_task
from maxbrod.catalog import commits
from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.commits import overtaken as overtaken_by
from maxbrod.catalog.rows import SLICE_FIELDS, Row, Segment, decode_rows
from maxbrod.compact import cli, task, verb
from maxbrod.compact.plan import Written, join, plan_groups
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, RefusedError, UsageError
from maxbrod.layouts.kafka.writer import ArchiveWriter
from maxbrod.model import AbortedTransaction, Codec, PartitionId
from maxbrod.storage.local import LocalStorage
from maxbrod.work.executor import LocalExecutor, Workers
from support.catalog_rows import segment
from support.native_archives import (
    START_MS,
    TOPIC,
    TOPIC_ID,
    Making,
    compact,
    file_of,
    in_memory,
    look,
    segments,
    without_spark,
)
from support.native_logs import batches as drawn_batches
from support.native_logs import data_batch, marker
from support.sparkless import run_here, stay_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def sparkless(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


@pytest.fixture
def making() -> Iterator[Making]:
    with in_memory() as made:
        yield made


@pytest.fixture(params=[False, True], ids=["near", "distant"])
def near_or_distant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is read directly, or by threads that read ahead."""
    monkeypatch.setattr(LocalStorage, "distant", request.param)


@pytest.mark.usefixtures("near_or_distant")
def test_many_small_rows_become_one_of_the_next_level_and_every_byte_stays(making: Making) -> None:
    making.many(20, partitions=3)
    before = look(making.url)
    report = compact(making.url)
    assert report.exit_code == EXIT_DONE
    assert (report.total("segments"), report.total("new_segments"), report.total("merges")) == (60, 3, 3)
    assert look(making.url) == before
    rows = segments(making.url)
    assert [(row.partition, row.base_offset, row.end_offset, row.records, row.level) for row in rows] == [
        (number, 0, 60, 60, 1) for number in range(3)
    ]
    assert {row.run_id for row in rows} == {report.run_id}
    last = open_archive(making.url).catalog.runs()[-1]
    assert (last.run_id, last.snapshot, last.statistics["command"], last.statistics["exit_code"]) == (
        report.run_id,
        None,
        "compact",
        0,
    )
    assert last.statistics["segments_before"] == 60
    assert compact(making.url).run_id is None, "there is nothing left to merge"


@pytest.mark.usefixtures("near_or_distant")
def test_blocks_stay_in_order_however_many_are_read_ahead(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_TINY_BYTES", 1)  # every log is a block of its own
    making.many(20)
    before = look(making.url)
    report = compact(making.url)
    assert (report.faults, report.total("segments"), report.total("new_segments")) == ((), 20, 1)
    assert look(making.url) == before


@settings(max_examples=25)
@given(log=drawn_batches(), sizes=st.lists(st.integers(1, 3), min_size=8, max_size=8), data=st.data())
def test_any_log_stays_as_it_is_however_it_was_stored(log: Any, sizes: list[int], data: st.DataObject) -> None:
    with in_memory() as making:
        _stays(making, log, sizes, data)


def _stays(making: Making, log: Any, sizes: list[int], data: st.DataObject) -> None:
    end: int | None = None
    at = 0
    made: list[Row] = []
    for size in sizes:
        part = log[at : at + size]
        at += size
        if not part:
            break
        hole = end is not None and end < part[0].first
        gaps = {0: (end or 0, part[0].first)} if hole else {}
        rows = making.run(
            {0: [each.data for each in part]},
            gaps=gaps,
            packed=data.draw(st.booleans()),
            compression=data.draw(st.sampled_from(["auto", "source", "zstd"])),
            commit=False,
        )
        made += rows
        # A wide hole ends a slice, and a backup would record a gap for it; here such a log is not of interest.
        if len([row for row in rows if isinstance(row, Segment)]) > 1:
            return
        end = max(row.end_offset for row in rows if isinstance(row, Segment))
    making.archive.catalog.commit(made)
    before = look(making.url)
    report = compact(making.url, max_segment_count=data.draw(st.sampled_from([2, 3, 100])))
    assert report.faults == ()
    assert look(making.url) == before


def test_a_stop_keeps_the_merges_that_are_whole_and_records_the_run(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.many(10, partitions=3)
    before, stop, merge = look(making.url), threading.Event(), task._merge

    def stopped_after_the_first(*arguments: Any) -> Any:
        written = merge(*arguments)
        stop.set()
        noticed = stop_of_task()
        assert noticed is not None
        assert noticed.wait(60)
        return written

    with monkeypatch.context() as patched:
        patched.setattr(task, "_merge", stopped_after_the_first)
        patched.setattr(Workers, "for_bytes", lambda *_: LocalExecutor(1))
        report = compact(making.url, stop=stop)
    assert (report.interrupted, report.exit_code, report.total("merges"), report.faults) == (
        *(True, EXIT_INCOMPLETE, 1),
        (),
    )
    last = open_archive(making.url).catalog.runs()[-1]
    assert (last.run_id, last.statistics["command"], last.statistics["exit_code"]) == (
        *(report.run_id, "compact"),
        EXIT_INCOMPLETE,
    )
    assert [run.stopped for run in list_runs(open_archive(making.url))][-2:] == [False, True]
    assert compact(making.url).total("merges") == 2, "the rest is left for the next run"
    assert look(making.url) == before


def test_gaps_stay_and_do_not_stop_it(making: Making) -> None:
    making.run({0: [data_batch(0, 5)]})
    making.run({0: [data_batch(2000, 5)]}, gaps={0: (5, 2000)})
    making.run({0: [data_batch(2005, 5)]})
    before = look(making.url)
    compact(making.url)
    assert look(making.url) == before
    rows = segments(making.url)
    assert [(row.base_offset, row.end_offset) for row in rows] == [(0, 5), (2000, 2010)]
    assert len({row.path for row in rows}) == 1, "one object, with a row on each side of the gap"


def test_rows_of_different_leader_epochs_keep_their_boundary(making: Making) -> None:
    for base, epoch in ((0, 1), (5, 1), (10, 2), (15, 2), (20, 4)):
        making.run({0: [data_batch(base, 5, leader_epoch=epoch)]})
    compact(making.url)
    rows = [(row.base_offset, row.first_leader_epoch, row.last_leader_epoch) for row in segments(making.url)]
    assert rows == [(0, 1, 1), (10, 2, 2), (20, 4, 4)]


def test_a_row_that_ends_in_a_later_epoch_is_not_joined_with_one_before_it(making: Making) -> None:
    making.run({0: [data_batch(0, 5, leader_epoch=1)]})
    making.run({0: [data_batch(5, 5, leader_epoch=1), data_batch(10, 5, leader_epoch=2)]})
    making.run({0: [data_batch(15, 5, leader_epoch=2)]})
    compact(making.url)
    # Truncation is judged by the base of the first row that reaches into a lost epoch.
    rows = [(row.base_offset, row.first_leader_epoch, row.last_leader_epoch) for row in segments(making.url)]
    assert rows == [(0, 1, 1), (5, 1, 2)]


def test_rows_of_different_codecs_are_not_joined_because_a_restore_compresses_by_them(making: Making) -> None:
    for number, codec in enumerate((Codec.LZ4, Codec.LZ4, Codec.NONE, Codec.NONE)):
        making.run({0: [data_batch(5 * number, 5, codec=codec, value=b"v" * 100)]}, compression="zstd")
    compact(making.url)
    assert [(row.base_offset, row.codec) for row in segments(making.url)] == [(0, "lz4"), (10, "none")]


def test_as_of_an_older_run_the_archive_is_what_it_was(making: Making) -> None:
    making.many(4)
    catalog = making.archive.catalog
    # The log was truncated to offset 6: the rows from there were replaced, and the log grew again.
    gone = [row for row in decode_rows(catalog.rows()) if row.base_offset >= 6]  # type: ignore[union-attr]
    catalog.commit([], retired=gone)
    making.run({0: [data_batch(6, 3, value=b"other", leader_epoch=0)]})
    making.run({0: [data_batch(9, 3, value=b"other", leader_epoch=0)]})
    ends = {PartitionId(topic_id=TOPIC_ID, partition=0): 12}

    def as_it_was() -> list[tuple[int, int, str]]:
        rows = decode_rows(open_archive(making.url).catalog.rows(as_of=ends, revisions={}))
        found = [(row.base_offset, row.end_offset) for row in rows if isinstance(row, Segment)]
        last = [row for row in rows if isinstance(row, Segment)][-1]
        return [*((base, end, "") for base, end in found), (0, 0, last.path)]

    before, log = as_it_was(), look(making.url)
    assert before[:-1] == [(0, 3, ""), (3, 6, ""), (6, 9, ""), (9, 12, "")]
    compact(making.url)
    assert [(row.base_offset, row.end_offset) for row in segments(making.url)] == [(0, 6), (6, 9), (9, 12)]
    assert look(making.url) == log
    after = as_it_was()
    assert after[:-1] == [(0, 6, ""), (6, 9, ""), (9, 12, "")]
    assert after[-1] == before[-1]


def test_aborted_transactions_stay_aborted(making: Making) -> None:
    first = data_batch(0, 3, producer_id=9, producer_epoch=0, base_sequence=0, attributes=0x10)
    second = data_batch(3, 3, producer_id=9, producer_epoch=0, base_sequence=3, attributes=0x10)
    making.run({0: [first]}, aborted=(AbortedTransaction(producer_id=9, first_offset=0, last_offset=2),))
    making.run({0: [second]}, aborted=(AbortedTransaction(producer_id=9, first_offset=0, last_offset=5),))
    making.run({0: [marker(6, 9, 0)]}, aborted=(AbortedTransaction(producer_id=9, first_offset=0, last_offset=6),))
    compact(making.url)
    (row,) = segments(making.url)
    assert row.aborted == (AbortedTransaction(producer_id=9, first_offset=0, last_offset=6),)
    assert (row.records, row.control_records) == (7, 1)


def test_limits_decide_what_is_merged_and_what_stays_is_counted(making: Making) -> None:
    making.many(6)
    size = sum(row.bytes for row in segments(making.url))
    for limits, reason in (
        ({"min_segment_count": 7}, "too few together"),
        ({"min_segment_size": size + 1}, "too small together"),
        ({"min_level": 1, "max_level": 1}, "of another level"),
    ):
        report = compact(making.url, **limits)
        assert (report.total("merges"), report.topics[0].left) == (0, {reason: 6})
    # The last two were written too recently.
    report = compact(making.url, clock_ms=START_MS + 4000 + 3_600_000)
    assert (report.total("segments"), report.topics[0].left) == (4, {"too young": 2})
    assert [(row.base_offset, row.level) for row in segments(making.url)] == [(0, 1), (12, 0), (15, 0)]
    assert compact(making.url, max_level=1, max_segment_count=2).total("segments") == 2
    assert [(row.base_offset, row.level) for row in segments(making.url)] == [(0, 2), (15, 0)]


def test_a_segment_takes_no_more_once_it_reaches_the_size(making: Making) -> None:
    making.many(6)
    size = segments(making.url)[0].bytes
    assert compact(making.url, max_segment_size=2 * size).total("merges") == 3


def test_settings_of_a_topic_override_the_others_and_mistakes_are_refused(making: Making) -> None:
    making.many(4)
    making.many(4, topic="payments")
    report = compact(making.url, per_topic={"pay*": {"min_segment_count": 5}, "*": {"min_segment_count": 3}})
    assert {each.topic: each.merges for each in report.topics} == {TOPIC: 1, "payments": 0}
    for wrong in ({"min_count": 1}, {"min_segment_count": 1}, {"min_segment_size": "2GiB", "max_segment_size": "1GiB"}):
        with pytest.raises(UsageError, match=r"compact\.per_topic\.pay"):
            compact(making.url, per_topic={"pay*": wrong})
    with pytest.raises(UsageError, match="min_level"):
        compact(making.url, min_level=2, max_level=1)


def test_a_dry_run_says_what_would_be_merged_and_changes_nothing(making: Making) -> None:
    making.many(6)
    version = open_archive(making.url).catalog.version
    report = compact(making.url, dry_run=True)
    assert (report.total("segments"), report.total("new_segments"), report.run_id) == (6, 1, None)
    assert open_archive(making.url).catalog.version == version
    assert len(segments(making.url)) == 6


@pytest.mark.usefixtures("near_or_distant")
def test_a_damaged_source_leaves_its_group_as_it_is_and_the_rest_is_merged(making: Making) -> None:
    making.many(6, partitions=2, packed=False)
    bad = next(row for row in segments(making.url) if row.partition == 1 and row.base_offset == 9)
    file = file_of(making, bad.path)
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    report = compact(making.url)
    assert report.exit_code == EXIT_CORRUPT
    (fault,) = report.faults
    assert (fault.topic, fault.partition, fault.base_offset, fault.end_offset, fault.offset) == (TOPIC, 1, 0, 18, 9)
    assert fault.object_name is not None
    assert fault.object_name.endswith(bad.path)
    rows = segments(making.url)
    assert [(row.partition, row.level) for row in rows] == [(0, 1), *([(1, 0)] * 6)]
    assert open_archive(making.url).catalog.runs()[-1].statistics["exit_code"] == EXIT_CORRUPT


@pytest.mark.usefixtures("near_or_distant")
def test_a_batch_whose_own_checksum_is_wrong_is_found_though_the_digest_is_right(making: Making) -> None:
    making.many(2)
    wrong = bytearray(data_batch(6, 3))
    wrong[-1] ^= 1
    # Written so: the digest of the slice is that of the wrong bytes.
    data = np.frombuffer(bytes(wrong), np.uint8)
    headers = walk(data, check_crc=False)
    rows = _written_unchecked(making, data, headers)
    report = compact(making.url)
    assert report.exit_code == EXIT_CORRUPT
    assert [(fault.offset, "checksum" in fault.message) for fault in report.faults] == [(rows[0].base_offset, True)]


def _written_unchecked(making: Making, data: Any, headers: Any) -> list[Segment]:
    with ArchiveWriter(making.archive.storage, run_id="unchecked") as writer:
        part = writer.partition(topic=TOPIC, topic_id=TOPIC_ID, partition=0, packed=True)
        part.append(data, headers)
    (each,) = part.slices
    values = {name: getattr(each, name) for name in SLICE_FIELDS}
    row = Segment(**values, topic=TOPIC, topic_id=TOPIC_ID, partition=0, run_id="unchecked", written_at=START_MS)
    making.archive.catalog.commit([row])
    return [row]


@pytest.mark.usefixtures("near_or_distant")
def test_a_missing_object_is_named_and_leaves_its_group(making: Making) -> None:
    making.many(3, packed=False)
    bad = segments(making.url)[1]
    file_of(making, bad.path).unlink()
    report = compact(making.url)
    assert report.exit_code == EXIT_CORRUPT
    assert report.faults[0].offset == bad.base_offset
    assert [row.level for row in segments(making.url)] == [0, 0, 0]


def test_recompress_zstd_decompresses_batches_and_keeps_their_codec(making: Making) -> None:
    values = b"a value that repeats " * 20
    for number in range(4):
        making.run({0: [data_batch(50 * number, 50, codec=Codec.GZIP, value=values)]})
    before = segments(making.url)
    assert compact(making.url, recompress="zstd:3").faults == ()
    (row,) = segments(making.url)
    assert (row.codec, row.records, row.path.endswith(".log.zst")) == ("gzip", 200, True)
    assert row.raw_bytes > sum(each.raw_bytes for each in before)
    look(making.url)


@pytest.mark.parametrize("framed_first", [True, False])
@pytest.mark.parametrize("framed", [1, 5])
def test_segments_in_several_codecs_take_no_more_bytes_than_before(
    making: Making, framed: int, *, framed_first: bool
) -> None:
    """Some are in frames, and most are not, or the other way round; without frames the former would be raw again."""
    noise = random.Random(1)
    kinds = [Codec.NONE] * framed + [Codec.LZ4, Codec.GZIP, Codec.SNAPPY, Codec.ZSTD]
    for number, codec in enumerate(kinds if framed_first else kinds[::-1]):
        values = b"a value that repeats " * 400 if codec is Codec.NONE else noise.randbytes(3000)
        batches = [data_batch(50 * number + each, 1, codec=codec, value=values) for each in range(50)]
        making.run({0: batches}, packed=False)
    before, rows = look(making.url), segments(making.url)
    assert len({row.path.endswith(".zst") for row in rows}) == 2
    report = compact(making.url)
    assert look(making.url) == before
    assert len({row.path for row in segments(making.url)}) == 1
    assert report.total("new_bytes") <= report.total("bytes") + 64 * len(rows)
    (topic,) = report.topics
    assert (topic.larger is not None) == (topic.new_bytes is not None and topic.new_bytes > topic.bytes)


def test_frames_of_a_higher_level_are_copied_where_new_ones_would_be_larger(making: Making) -> None:
    noise = random.Random(1)
    for number in range(3):
        words = [noise.randbytes(12) for _ in range(2000)]
        value = b" ".join(noise.choice(words) for _ in range(20_000))
        making.run({0: [data_batch(number, 1, value=value)]}, packed=False, compression="zstd:19")
    before, rows = look(making.url), segments(making.url)
    report = compact(making.url)
    assert look(making.url) == before
    assert (report.total("bytes"), report.total("new_bytes")) == (sum(row.bytes for row in rows),) * 2
    assert [topic.larger for topic in report.topics] == [None]


def test_a_topic_that_grows_because_it_was_asked_for_says_so(
    making: Making, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        making.run({0: [data_batch(50 * number, 50, value=b"a value that repeats " * 20)]}, packed=False)
    report = compact(making.url, recompress="source")
    assert report.topics[0].larger == "--recompress source was asked for"
    cli._print(report, quiet=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{TOPIC} takes" in shown
    assert "more than before: --recompress source was asked for" in shown


@pytest.mark.usefixtures("near_or_distant")
def test_large_segments_are_copied_as_they_are_stored(making: Making) -> None:
    noise = random.Random(1)
    for number in range(2):
        log = [data_batch(100 * number + each, 1, value=noise.randbytes(100_000)) for each in range(60)]
        making.run({0: log}, packed=False, gaps={0: (60, 100)} if number else {})
        frames = [data_batch(100 * number + each, 1, value=b"x" * 100_000) for each in range(60)]
        making.run({1: frames}, packed=False, gaps={1: (60, 100)} if number else {})
    before, rows = look(making.url), segments(making.url)
    compact(making.url)
    assert look(making.url) == before
    after = segments(making.url)
    assert [row.digest for row in after] == [row.digest for row in rows], "not a stored byte has changed"
    assert [row.path.endswith(".zst") for row in after] == [False, False, True, True]


def test_a_row_stays_small_enough_for_one_task_to_read(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    making.many(8)
    size = segments(making.url)[0].raw_bytes
    before = look(making.url)

    def small(*arguments: Any, **more: Any) -> Any:
        return plan_groups(*arguments, **more, row_bytes_max=3 * size)

    monkeypatch.setattr(verb, "plan_groups", small)
    report = compact(making.url)
    assert (report.total("merges"), report.total("new_segments")) == (1, 3)
    assert look(making.url) == before
    rows = segments(making.url)
    assert len({row.path for row in rows}) == 1
    assert rows[0].position < rows[1].position


def test_a_backup_that_commits_in_between_does_not_stop_it(making: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    making.many(6)
    other = Making(making.url)
    other.runs = making.runs

    def overtaken(*arguments: Any, **options: Any) -> Any:
        found = run_here(*arguments, **options)
        other.run({0: [data_batch(18, 3)]})
        return found

    stay_without_spark(monkeypatch, overtaken)
    report = compact(making.url)
    assert (report.total("segments"), report.overtaken, report.exit_code) == (6, 0, EXIT_DONE)
    assert [(row.base_offset, row.level) for row in segments(making.url)] == [(0, 1), (18, 0)]


def test_rows_that_another_writer_replaced_meanwhile_are_left_alone(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.many(6, partitions=2)
    other = Making(making.url)

    def overtaken(*arguments: Any, **options: Any) -> Any:
        found = run_here(*arguments, **options)
        rows = decode_rows(other.archive.catalog.rows(partition=1))
        other.archive.catalog.commit([], retired=rows[-1:])
        return found

    stay_without_spark(monkeypatch, overtaken)
    report = compact(making.url)
    assert (report.total("segments"), report.overtaken) == (6, 1)
    assert [(row.partition, row.base_offset) for row in segments(making.url)] == [
        (0, 0),
        *((1, 3 * number) for number in range(5)),
    ]
    look(making.url)


def test_of_two_compactions_at_once_the_second_drops_what_the_first_has_merged(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.many(6, partitions=2)
    before = look(making.url)

    def overtaken(*arguments: Any, **options: Any) -> Any:
        found = run_here(*arguments, **options)
        stay_without_spark(monkeypatch)
        assert compact(making.url, topics=[TOPIC]).total("merges") == 2
        return found

    stay_without_spark(monkeypatch, overtaken)
    report = compact(making.url)
    assert (report.total("merges"), report.overtaken, report.run_id) == (0, 2, None)
    assert look(making.url) == before
    assert [row.level for row in segments(making.url)] == [1, 1]


def test_a_compaction_beside_a_backup_that_never_ends_commits_what_it_has_merged(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The follower is faster each time, thirty times: what was merged is merged once, and committed behind it."""
    making.many(6, partitions=2)
    other, merges = Making(making.url), list[int]()
    put, following = commits._put_entry, iter(range(30))

    def overtaken(*arguments: Any) -> bool:
        if (number := next(following, None)) is not None:
            with monkeypatch.context() as alone:
                alone.setattr(commits, "_put_entry", put)
                other.archive.catalog.refresh()
                other.run({0: [data_batch(18 + 3 * number, 3)]})
        return put(*arguments)

    def merged(*arguments: Any, **options: Any) -> Any:
        merges.append(1)
        return run_here(*arguments, **options)

    stay_without_spark(monkeypatch, merged)
    monkeypatch.setattr(commits, "_put_entry", overtaken)
    monkeypatch.setattr(commits, "_PAUSE_S", 0)
    report = compact(making.url, topics=[TOPIC])
    assert (len(merges), report.total("merges"), report.overtaken, report.exit_code) == (1, 2, 0, EXIT_DONE)
    found = segments(making.url)
    assert [row.level for row in found if row.base_offset < 18] == [1, 1]
    assert len(found) == 2 + 30
    look(making.url)


def test_a_commit_that_is_always_overtaken_gives_up_and_changes_nothing(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    making.many(3)

    def refuse(*_: Any, **__: Any) -> Any:
        raise overtaken_by(1, making.url)

    monkeypatch.setattr(Catalog, "commit", refuse)
    monkeypatch.setattr(Catalog, "is_newest", lambda _: False)
    monkeypatch.setattr(commits, "_PAUSE_S", 0)
    with pytest.raises(RefusedError):
        compact(making.url)
    assert len(segments(making.url)) == 3


def test_a_large_archive_is_committed_in_waves(making: Making) -> None:
    making.many(4, partitions=3)
    before = look(making.url)
    report = compact(making.url, commit_bytes=1)
    assert (report.commits, report.total("merges")) == (3, 3)
    assert look(making.url) == before
    assert sum(each.run_id == report.run_id for each in open_archive(making.url).catalog.runs()) == 1


def test_a_single_writer_store_and_topics_by_pattern(making: Making) -> None:
    making.many(3)
    making.many(3, topic="payments")
    assert compact(making.url, topics=["pay*"]).total("merges") == 1
    assert [row.topic for row in segments(making.url)] == [TOPIC] * 3 + ["payments"]
    with pytest.raises(UsageError, match="no topic"):
        compact(making.url, topics=["nothing-*"])


def test_rows_that_are_joined_have_a_highest_timestamp_only_if_it_is_known_of_each() -> None:
    written = Written(path="segments/a/b/0/c.log", position=0, bytes=9, raw_bytes=9, digest="crc32c:00000000")
    known = [segment(0, 5, max_timestamp=40, min_timestamp=1), segment(5, 6, min_timestamp=None, max_timestamp=None)]
    assert join(known, written, level=1, run_id="run-2", now_ms=1).max_timestamp == 40
    for times in ((50, 20), (50, None)):
        odd = segment(6, 9, min_timestamp=times[0], max_timestamp=times[1])
        assert join([*known, odd], written, level=1, run_id="run-2", now_ms=1).max_timestamp is None, times
