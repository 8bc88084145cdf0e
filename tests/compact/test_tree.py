"""The verb on a tree of the layout parquet: names, levels and footers of its own tool, and damage is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.main import run as command
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, UsageError
from maxbrod.layouts.parquet.survey import LAYOUT
from support.native_archives import compact, without_spark
from support.parquet_trees import WHERE, local, read, rows, write
from support.plain_batches import Record
from support.tool_backups import KBAK

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def sparkless(monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch)


def test_segments_of_a_tree_become_one_of_the_next_level(tmp_path: Path) -> None:
    write(local(tmp_path), [rows(40)], segment_records_max=10)
    before = read(local(tmp_path), LAYOUT.survey(local(tmp_path)).segments)
    plan = compact(tmp_path, dry_run=True)
    assert (plan.layout, plan.total("segments"), plan.total("new_segments")) == ("parquet", 4, 1)
    report = compact(tmp_path, per_topic={WHERE.topic: {"min_segment_count": 4}})
    assert (report.exit_code, report.total("segments"), report.total("records")) == (EXIT_DONE, 4, 40)
    survey = LAYOUT.survey(local(tmp_path))
    assert [each.path.rsplit("/", 2)[1:] for each in survey.segments] == [["1", f"{0:020d}-{39:020d}"]]
    assert not list(LAYOUT.check(local(tmp_path), survey, deep=True))
    assert read(local(tmp_path), survey.segments).equals(before)


@pytest.mark.parametrize(("step_over", "left", "levels"), [(False, 2, "0000"), (True, 0, "001")])
def test_behind_a_damaged_segment_nothing_is_merged_unless_it_may_be_stepped_over(
    *, step_over: bool, left: int, levels: str, tmp_path: Path
) -> None:
    """The tool itself would delete the damaged one unread, once something behind it has a higher level."""
    write(local(tmp_path), [rows(20)], segment_records_max=10)
    write(local(tmp_path), [rows(20, start=50)], segment_records_max=10)
    bad = next(tmp_path.rglob(f"{10:020d}-*"))
    bad.chmod(0o644)
    data = bytearray(bad.read_bytes())
    data[8] ^= 0xFF
    bad.write_bytes(data)
    report = compact(tmp_path, step_over=step_over)
    assert report.exit_code == EXIT_CORRUPT
    (fault,) = report.faults
    assert (fault.base_offset, fault.end_offset, fault.damaged) == (0, 20, True)
    assert fault.object_name is not None
    assert fault.object_name.endswith(bad.name)
    assert "".join(sorted(path.parent.name for path in tmp_path.rglob("0*-0*"))) == levels
    assert [dict(each.left) for each in report.topics] == [{"behind a damaged segment": left} if left else {}]
    assert report.total("segments") == 2 * step_over


def test_what_waits_behind_a_missing_or_young_segment_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(local(tmp_path), [rows(60)], segment_records_max=10)
    next(tmp_path.rglob(f"{20:020d}-*")).unlink()
    (tmp_path / "maxbrod.json").unlink()
    limits = ["--min-segment-age", "0", "--min-segment-count", "2", "--min-segment-size", "1", "--dry-run"]
    assert command(["compact", "-a", str(tmp_path), *limits]) == EXIT_DONE
    said = capsys.readouterr().out
    assert "segments that stay as they are: 3 behind missing offsets" in said
    assert "2 segments would become 1" in said
    assert command(["compact", "-a", str(tmp_path), *limits, "--json"]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["topics"][0]["left"] == {"behind missing offsets": 3}
    assert command(["compact", "-a", str(tmp_path), *limits, "--step-over"]) == EXIT_DONE
    assert "5 segments would become 2" in capsys.readouterr().out


def test_the_command_prints_a_report_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(local(tmp_path), [rows(40)], segment_records_max=10)
    limits = ["--min-segment-age", "0", "--min-segment-count", "2", "--min-segment-size", "1"]
    assert command(["compact", "-a", str(tmp_path), *limits, "--dry-run"]) == EXIT_DONE
    assert "4 segments would become 1; nothing was changed" in capsys.readouterr().out
    assert command(["compact", "-a", str(tmp_path), *limits, "--json"]) == EXIT_DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["layout"], report["exit_code"], report["topics"][0]["merges"]) == ("parquet", 0, 1)


def test_other_layouts_are_refused(tmp_path: Path) -> None:
    KBAK.write(local(tmp_path), [Record(offset=0, timestamp=1, key=b"k", value=b"v")])
    with pytest.raises(UsageError, match="cannot be merged"):
        compact(tmp_path)
