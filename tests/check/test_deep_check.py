"""The deep check reads every byte on Spark, names what is damaged, and goes on where it was interrupted."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Segment, decode_rows
from maxbrod.check.deep import DeepCheckReport, deep_check
from maxbrod.check.problems import ProblemKind
from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_INCOMPLETE, UsageError
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.work.work import Work
from support.backups import back_up, config_of

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.work.progress import Progress

PARTITIONS = 4
RECORDS = 50


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a check remembers is in the user's cache; Kafka and Spark are open already."""
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def archive(cluster: Cluster, topic: str, tmp_path: Path) -> Path:
    """Two runs, so that there are slices in two packs."""
    create_topic(cluster, topic, partitions=PARTITIONS)
    folder = tmp_path / "archive"
    for _ in range(2):
        for partition in range(PARTITIONS):
            produce(cluster, topic, numbered(RECORDS), partition=partition)
        assert back_up(config_of(cluster, folder, topic)).complete
    return folder


def check(spark: Any, archive: Path, **options: Any) -> DeepCheckReport:
    work = Work(
        Config(), session=spark, **{name: options.pop(name) for name in ("stop", "on_progress") if name in options}
    )
    return deep_check(work, open_archive(str(archive)), **options)


def slices(archive: Path) -> list[Segment]:
    rows = decode_rows(open_archive(str(archive)).catalog.rows())
    return [row for row in rows if isinstance(row, Segment)]


def flip_bit(archive: Path, row: Segment) -> None:
    """In the first batch behind its header. How many batches a producer made is not known, nor what is in the middle:
    it may be a leader epoch, which no checksum covers."""
    data = bytearray((archive / row.path).read_bytes())
    data[row.position + 80] ^= 0x10
    (archive / row.path).chmod(0o644)
    (archive / row.path).write_bytes(data)


def test_every_slice_of_a_sound_archive_is_read_and_found_sound(spark: Any, archive: Path) -> None:
    report = check(spark, archive)
    found = slices(archive)
    assert (report.exit_code, report.problems) == (EXIT_DONE, ())
    assert report.checked == report.chosen == report.slices == len(found) == 2 * PARTITIONS
    assert report.records_checked == 2 * PARTITIONS * RECORDS
    assert report.bytes_checked == sum(row.bytes for row in found)


def test_a_flipped_bit_is_found_and_its_object_and_offsets_are_named(spark: Any, archive: Path) -> None:
    bad = slices(archive)[3]
    flip_bit(archive, bad)
    report = check(spark, archive)
    assert report.exit_code == EXIT_CORRUPT
    assert {problem.kind for problem in report.problems} == {ProblemKind.DAMAGED}
    assert {(problem.partition, problem.first_offset, problem.end_offset) for problem in report.problems} == {
        (bad.partition, bad.base_offset, bad.end_offset)
    }
    assert all(problem.object_name and problem.object_name.endswith(bad.path) for problem in report.problems)


def test_a_missing_object_is_a_problem_of_each_of_its_slices_and_no_error(spark: Any, archive: Path) -> None:
    path = slices(archive)[0].path
    (archive / path).unlink()
    report = check(spark, archive)
    lost = [row for row in slices(archive) if row.path == path]
    assert len(report.problems) == len(lost) > 0
    assert report.checked == len(slices(archive))


def test_a_check_that_was_interrupted_goes_on_where_it_was(spark: Any, archive: Path) -> None:
    stop = threading.Event()

    def stop_in_the_second_wave(progress: Progress) -> None:
        if progress.bytes_done:
            stop.set()

    first = check(spark, archive, wave_bytes=1, stop=stop, on_progress=stop_in_the_second_wave)
    assert first.interrupted
    assert first.exit_code == EXIT_INCOMPLETE
    assert 0 < first.checked < first.chosen

    second = check(spark, archive, wave_bytes=1)
    assert second.skipped == first.checked
    assert second.checked == second.chosen - first.checked
    assert second.exit_code == EXIT_DONE

    assert check(spark, archive).skipped == 0, "a check that came to its end is forgotten"


def test_what_was_damaged_before_the_interruption_is_read_again(spark: Any, archive: Path) -> None:
    flip_bit(archive, slices(archive)[0])
    stop = threading.Event()

    def stop_in_the_second_wave(progress: Progress) -> None:
        if progress.bytes_done:
            stop.set()

    first = check(spark, archive, wave_bytes=1, stop=stop, on_progress=stop_in_the_second_wave)
    assert first.interrupted
    assert first.problems
    second = check(spark, archive)
    assert second.problems == first.problems


def test_restart_reads_what_was_read_before(spark: Any, archive: Path) -> None:
    stop = threading.Event()
    stop.set()
    check(spark, archive, wave_bytes=1, stop=stop)
    assert check(spark, archive, restart=True).checked == 2 * PARTITIONS


def test_a_sample_reads_its_part_and_the_same_seed_draws_the_same(spark: Any, archive: Path) -> None:
    bad = slices(archive)
    for row in bad:
        flip_bit(archive, row)
    first, again, other = (check(spark, archive, sample=0.25, seed=seed) for seed in (1, 1, 2))
    assert first.chosen == first.checked == 2
    assert first.problems == again.problems
    assert other.problems != first.problems
    assert check(spark, archive, sample=0.001).checked == 1, "never nothing"


@pytest.mark.parametrize("sample", [0.0, -1.0, 1.01])
def test_a_sample_of_nothing_or_more_than_all_is_refused(archive: Path, sample: float) -> None:
    with pytest.raises(UsageError, match="sample"):
        check(None, archive, sample=sample)


def test_the_command_reads_all_and_says_what_it_has_read(
    spark: Any, archive: Path, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "--archive", str(archive), "--deep"]) == EXIT_DONE
    told = capsys.readouterr().out
    assert "sound" in told
    assert "recovery point: 20" in told
    flip_bit(archive, slices(archive)[0])
    assert run(["check", topic, "--archive", str(archive), "--sample", "100%", "--json"]) == EXIT_CORRUPT
    document = json.loads(capsys.readouterr().out)
    assert document["deep"]["checked"] == 2 * PARTITIONS
    assert document["deep"]["problems"][0]["kind"] == "damaged"
    assert document["problems"] == []
    assert (document["exit_code"], document["verdict"]) == (EXIT_CORRUPT, "damaged")
    assert document["recovery_point"] is None, "what is damaged cannot be restored"
    assert run(["check", topic, "--archive", str(archive), "--deep"]) == EXIT_CORRUPT
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == "damaged: 1 problem, see above"
    assert "recovery point: none" in told
    assert "whole" not in told
    assert "sound" not in told
