"""A compacted archive goes on: readers under way, backups, gc; and a day of one-second runs becomes as one backup."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.archive.runs import list_runs
from maxbrod.archive.snapshots import last_snapshot_run
from maxbrod.check.run import check_archive
from maxbrod.cli.main import run as command
from maxbrod.compact.verb import compact as compact_function
from maxbrod.errors import EXIT_DONE
from maxbrod.inspect import garbage
from maxbrod.layouts.kafka.reader import read_log
from maxbrod.model import now_ms
from support.clocks import set_clocks
from support.native_archives import LATER_MS, Making, compact, in_memory, look, segments, without_spark
from support.native_logs import data_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.catalog.rows import Segment

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def making() -> Iterator[Making]:
    with in_memory() as made:
        yield made


def logs(making: Making, rows: list[Segment]) -> list[bytes]:
    return [read_log(making.archive.storage, row).tobytes() for row in rows]


def test_readers_of_the_older_version_go_on_until_gc_after_its_grace(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    making.many(6, partitions=2, packed=False)
    old = segments(making.url)
    before = logs(making, old)
    compact(making.url)
    assert garbage.collect_garbage(open_archive(making.url), delete=True).objects == ()
    assert logs(making, old) == before
    set_clocks(monkeypatch, own_ms=now_ms() + 2 * DAY_MS, store_ms=now_ms() + 2 * DAY_MS)
    found = garbage.collect_garbage(open_archive(making.url), delete=True)
    assert {each.path for each in found.objects} == {row.path for row in old}
    assert b"".join(logs(making, segments(making.url))) == b"".join(before)


def test_a_backup_continues_after_a_compacted_archive_and_check_finds_it_whole(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch)
    making.many(4)
    compact(making.url)
    making.archive.catalog.refresh()
    (held,) = making.archive.catalog.positions().values()
    assert (held.first_offset, held.end_offset) == (0, 12)
    making.run({0: [data_batch(12, 3)]})
    compact(making.url, max_level=1)
    assert [(row.base_offset, row.end_offset, row.level) for row in segments(making.url)] == [(0, 15, 2)]
    report = check_archive(open_archive(making.url))
    assert report.problems == ()
    runs = list_runs(open_archive(making.url))
    assert [each.command for each in runs].count("compact") == 2
    assert last_snapshot_run(open_archive(making.url).catalog.runs()) is None


def test_a_day_of_tiny_runs_becomes_as_small_as_one_backup(making: Making, monkeypatch: Any) -> None:
    """Scaled down; `maxbrod bench lifecycle --only day` does the whole day."""
    without_spark(monkeypatch)
    seconds = 200
    making.many(seconds, partitions=2, records=2)
    assert len(segments(making.url)) == 2 * seconds
    whole = [data_batch(2 * number, 2) for number in range(seconds)]
    compact(making.url)
    with in_memory() as large:
        large.run({0: whole, 1: whole}, packed=False)
        assert look(making.url) == look(large.url)
        ours, one = segments(making.url), segments(large.url)
    kept = ("base_offset", "end_offset", "records", "bytes", "raw_bytes", "min_timestamp", "max_timestamp", "digest")
    assert [[getattr(row, name) for name in kept] for row in ours] == [
        [getattr(row, name) for name in kept] for row in one
    ]


def test_on_spark_the_command_merges_and_the_table_reads_the_same(
    making: Making, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    making.many(12, partitions=3)
    before = look(making.url)
    limits = ["--min-segment-count", "2", "--min-segment-size", "1"]
    assert command(["compact", "-a", making.url, *limits, "--dry-run"]) == EXIT_DONE
    assert "36 segments would become 3; nothing was changed" in capsys.readouterr().out
    assert command(["compact", "-a", making.url, *limits, "--json"]) == EXIT_DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["topics"][0]["segments"], report["topics"][0]["new_segments"], report["exit_code"]) == (36, 3, 0)
    assert look(making.url) == before
    again = compact_function(
        archive=making.url, session=spark, max_level=1, min_segment_age=0, min_segment_count=2, min_segment_size="1"
    )
    assert (again.total("merges"), again.topics[0].left) == (0, {"too few together": 3})
    assert again.finished_at_ms < LATER_MS
