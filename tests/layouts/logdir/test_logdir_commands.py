"""Log directories by the command line: backed up into an archive of our own, and looked at as they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.rows import Segment, decode_rows, slice_of
from maxbrod.check.foreign import check_segments
from maxbrod.cli.main import run as maxbrod
from maxbrod.config import StorageConfig
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_REFUSED, EXIT_USAGE
from maxbrod.layouts.foreign import describe
from maxbrod.layouts.reader import read_records
from maxbrod.work.reach import Place
from support.archive_oracle import read_archive
from support.conversions import convert
from support.log_directories import TOPIC_ID, put_log, put_watermark, run, survey
from support.native_logs import ABORT, COMMIT, data_batch, marker
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def two_brokers(root: Path) -> tuple[str, str]:
    """Broker b has a batch more than broker a, above the watermark that both have noted."""
    for name, count in (("a", 4), ("b", 5)):
        put_log(root / name / "disk", run(0, count))
        put_watermark(root / name / "disk", 40)
        (root / name / "disk" / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    return str(root / "a" / "disk"), str(root / "b" / "disk")


def back_up(archive: Path, *directories: str, options: tuple[str, ...] = ()) -> int:
    named = [word for each in directories for word in ("--from-logdir", each)]
    with without_spark():
        return maxbrod(["backup", *named, "-a", str(archive), *options])


def test_several_directories_become_one_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directories = two_brokers(tmp_path)
    assert back_up(tmp_path / "archive", *directories, options=("--uncommitted-tail", "--json")) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["source_layout"] == "logdir"
    held = read_archive(str(tmp_path / "archive"))
    assert held.logs == {(TOPIC_ID, 0): b"".join(run(0, 5))}


def test_what_the_watermark_leaves_out_is_never_called_a_success(tmp_path: Path) -> None:
    directories = two_brokers(tmp_path)
    assert back_up(tmp_path / "archive", *directories) == EXIT_CORRUPT
    assert list(read_archive(str(tmp_path / "archive")).records[TOPIC_ID, 0]) == list(range(40))
    # What was left out can still be taken.
    assert back_up(tmp_path / "archive", *directories, options=("--uncommitted-tail",)) == EXIT_REFUSED
    assert back_up(tmp_path / "other", *directories, options=("--uncommitted-tail",)) == EXIT_DONE


def test_flags_that_mean_nothing_here_are_refused(tmp_path: Path) -> None:
    directory, _ = two_brokers(tmp_path)
    for options in (("--bootstrap", "here:9092"), ("--exclude", "x"), ("--follow",), ("--layout", "kbak")):
        assert back_up(tmp_path / "archive", directory, options=options) == EXIT_USAGE
    assert back_up(tmp_path / "archive", str(tmp_path / "nowhere")) == EXIT_USAGE
    assert maxbrod(["backup", "--bootstrap", "here:9092", "-a", "x", "--uncommitted-tail"]) == EXIT_USAGE


def test_log_directories_are_looked_at_like_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_brokers(tmp_path)
    for command in (["ls"], ["show", "orders"], ["check"]):
        code = maxbrod([*command, "-a", str(tmp_path), "--json"])
        said = capsys.readouterr().out
        assert code == (EXIT_CORRUPT if command == ["check"] else EXIT_DONE)
        assert "logdir" in said or "orders" in said
    assert "--uncommitted-tail includes them" in said, "as the command line has it"


def test_conversion_takes_options_of_its_source(tmp_path: Path) -> None:
    two_brokers(tmp_path / "disks")
    words = ["convert", str(tmp_path / "disks"), str(tmp_path / "out"), "--to", "kafka"]
    with without_spark():
        assert maxbrod([*words, "--from", "logdir", "--from-option", "uncommitted_tail=true"]) == EXIT_DONE
    assert len(read_archive(str(tmp_path / "out")).records[TOPIC_ID, 0]) == 50


def put_transactions(root: Path) -> None:
    """Records 0 and 1 are aborted, 3 to 5 committed."""
    told: dict[str, Any] = {"attributes": 0x10, "producer_epoch": 0, "base_sequence": 0}
    log = [data_batch(0, 2, producer_id=7, **told), marker(2, 7, ABORT), data_batch(3, 3, producer_id=8, **told)]
    put_log(root, [*log, marker(6, 8, COMMIT)])


def test_aborted_records_never_reach_another_layout(tmp_path: Path) -> None:
    put_transactions(tmp_path / "disk")
    for layout in ("binlog", "kafka"):
        report = convert(tmp_path / "disk", tmp_path / layout, layout, accept_loss=True)
        assert (report.exit_code, report.topics[0].equal, report.topics[0].target_records) == (EXIT_DONE, True, 3)
    archive = open_archive(str(tmp_path / "kafka"))
    (row,) = [row for row in decode_rows(archive.catalog.rows()) if isinstance(row, Segment)]
    (batch,) = read_records(archive.storage, slice_of(row), columns=["offset"])
    assert batch.column("offset").to_pylist() == [3, 4, 5]
    assert row.records == 7


def test_a_deep_check_of_transactions_finds_nothing_wrong(tmp_path: Path) -> None:
    put_transactions(tmp_path)
    described = [describe("logdir", each) for each in survey(tmp_path).segments]
    assert check_segments(Place(url=str(tmp_path), storage=StorageConfig()), described) == []
