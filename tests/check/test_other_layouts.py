"""`check`, `check --repair`, `prune` and `ls` on an archive of another tool."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.check.foreign import check_foreign
from maxbrod.check.problems import Verdict
from maxbrod.cli.main import run
from maxbrod.config import Config
from maxbrod.errors import EXIT_INCOMPLETE
from maxbrod.layouts.foreign import ClusterFacts, Survey, WriteOptions
from maxbrod.layouts.registry import layout_of
from maxbrod.storage.local import LocalStorage
from maxbrod.work.executor import LocalExecutor
from maxbrod.work.work import Work
from support.binlog_trees import OLD_MS, WHERE, old_tree, records

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return old_tree(tmp_path / "tree")


def told(capsys: pytest.CaptureFixture[str], *words: str, exits: int = 0) -> str:
    code = run(list(words))
    found = capsys.readouterr()
    assert code == exits, found
    return found.out + found.err


def test_a_deep_check_that_was_stopped_is_never_sound(tree: Path) -> None:
    work = Work(Config(), executor=LocalExecutor(1))
    assert check_foreign(open_archive(str(tree)), work).verdict is Verdict.SOUND
    work.stop.set()
    stopped = check_foreign(open_archive(str(tree)), work)
    assert (stopped.verdict, stopped.exit_code) == (Verdict.STOPPED, EXIT_INCOMPLETE)
    assert stopped.as_dict()["interrupted"]


def test_a_tree_is_listed_with_its_layout(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "layout binlog" in told(capsys, "ls", "-a", str(tree))
    listed = json.loads(told(capsys, "ls", "-a", str(tree), "--json"))
    assert (listed["layout"], [each["records"] for each in listed["topics"]]) == ("binlog", [30])
    assert "orders" in told(capsys, "show", "orders", "-a", str(tree))


def test_neither_a_run_nor_a_leader_epoch_is_shown_that_the_tool_did_not_record(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = told(capsys, "ls", "--runs", "-a", str(tree))
    assert runs == "layout binlog: of another tool, which does not say which runs there were\n"
    assert "leader epochs" not in told(capsys, "show", "orders", "-a", str(tree))


def test_old_segments_go_only_when_that_is_asked_for(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(tree.rglob("*_records"))
    assert "2 segments" in told(capsys, "prune", "-a", str(tree), "--older-than", "30d")
    assert sorted(tree.rglob("*_records")) == before
    report = json.loads(told(capsys, "prune", "-a", str(tree), "--older-than", "30d", "--delete", "--json"))
    assert (report["going"]["segments"], report["applied"]) == (2, True)
    assert len(list(tree.rglob("*_records"))) == 1
    assert "whole" in told(capsys, "check", "-a", str(tree))
    assert "0 segments" in told(capsys, "prune", "-a", str(tree), "--older-than", "30d", "--delete")


def test_indexes_that_are_gone_are_made_anew(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in (*tree.rglob("index_partition_*"), *tree.rglob("*_index")):
        index.unlink()
    told(capsys, "check", "-a", str(tree), exits=4)
    assert "repaired" in told(capsys, "check", "-a", str(tree), "--repair")
    assert "whole" in told(capsys, "check", "-a", str(tree))
    listed = json.loads(told(capsys, "ls", "-a", str(tree), "--json"))
    assert [each["records"] for each in listed["topics"]] == [30]


def test_what_makes_no_sense_in_a_layout_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "only the layout's own tool knows" in told(capsys, "gc", "-a", str(tree), exits=5)
    assert "as a whole" in told(capsys, "check", "orders", "-a", str(tree), exits=2)
    assert "no layout 'zip'" in told(capsys, "ls", "-a", str(tree), "--layout", "zip", exits=2)


@pytest.fixture(params=["avro", "parquet"])
def unlisted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three segments of a tool that keeps no list of them."""
    storage, layout = LocalStorage(tmp_path / "tree"), layout_of(request.param)
    survey, options = Survey(layout=request.param, segments=()), WriteOptions(segment_records_max=10)
    written = layout.write(storage, WHERE, [records(0, 30, OLD_MS)], options, survey=survey)
    layout.publish(storage, survey, written, options, ClusterFacts())
    return tmp_path / "tree"


def segments_of(tree: Path) -> list[Path]:
    return sorted(each for each in tree.rglob("*-*") if each.is_file())


def test_a_lost_segment_is_damage(unlisted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "not known" not in told(capsys, "check", "-a", str(unlisted))
    segments_of(unlisted)[2].unlink()
    text = told(capsys, "check", "-a", str(unlisted), exits=4)
    assert "at offset 20: no sound segment has the offsets 20 to 29 any more" in text
    report = json.loads(told(capsys, "check", "-a", str(unlisted), "--json", exits=4))
    assert [(each["offset"], each["fatal"]) for each in report["faults"]] == [(20, True)]


def test_status_says_what_nobody_can_tell(unlisted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "as far as" not in told(capsys, "status", "-a", str(unlisted))
    (unlisted / "maxbrod.json").unlink()
    text = told(capsys, "status", "-a", str(unlisted))
    assert "is archived or explained, as far as can be known: nothing lists the segments" in text


def test_what_nobody_can_tell_is_said(unlisted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (unlisted / "maxbrod.json").unlink()
    text = told(capsys, "check", "-a", str(unlisted))
    assert "not known: nothing lists the segments" in text
    assert "as far as can be known" in text
    segments_of(unlisted)[1].unlink()
    text = told(capsys, "check", "-a", str(unlisted), exits=3)
    assert "unexplained: orders-0: no segment has the offsets 10 to 19" in text
    report = json.loads(told(capsys, "check", "-a", str(unlisted), "--json", exits=3))
    assert [(each["base_offset"], each["end_offset"]) for each in report["unexplained"]] == [(10, 20)]
    assert [each["refused"] for each in report["doubts"]] == [False]


def test_no_size_of_the_log_is_claimed_that_nobody_knows(unlisted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["ls"], ["show", "orders"]):
        text = told(capsys, *words, "-a", str(unlisted))
        assert "stored" in text
        assert "of log" not in text
