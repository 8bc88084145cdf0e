"""What is durable is provable from two places: a catalog that lost the end of its log costs no record.

`check`, `gc` and `repair` agree on it.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from maxbrod.catalog.catalog import Catalog
from maxbrod.check.problems import ProblemKind, Verdict
from maxbrod.check.run import CheckReport, check_archive
from maxbrod.cli.main import run as command
from maxbrod.errors import RefusedError
from maxbrod.inspect.garbage import GRACE_S, GarbageReport, collect_garbage
from maxbrod.repair.report import Action
from support.clocks import set_time
from support.histories import IDS, History, records, repaired

WHERE = f"orders-{IDS['orders']}-0"


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.check.run._COMMIT_S", 0.0)


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A follower: its runs share the snapshot of the first."""
    history = History(str(tmp_path / "archive"))
    history.run({("orders", 0): [records(0, 10)]}, packed=True)
    first = history.run_id
    for base in (10, 20):
        history.run({("orders", 0): [records(base, 10)]}, packed=True, shares=first)
    return history


def lose_newest_entry(history: History, *, rows: bool = False) -> None:
    """Also the file with its rows, as when an older copy of the catalog is put back."""
    before = {file.path for file in own(history)._files().active}
    max((Path(history.url) / "catalog/segments/_delta_log").glob("*.json")).unlink()
    if rows:
        for name in before - {file.path for file in own(history)._files().active}:
            (Path(history.url) / "catalog/segments" / name).unlink()


def own(history: History) -> Catalog:
    catalog = history.open().catalog
    assert isinstance(catalog, Catalog)
    return catalog


def make_old(history: History) -> None:
    when = time.time() - 2 * GRACE_S
    for path in Path(history.url).rglob("*"):
        os.utime(path, (when, when))


def checked(history: History) -> CheckReport:
    return check_archive(history.open())


def collected(history: History, **how: Any) -> GarbageReport:
    return collect_garbage(history.open(), **how)


def test_an_entry_that_is_lost_is_found_by_check_gc_and_repair_alike(history: History) -> None:
    before = history.state()
    lose_newest_entry(history)
    assert [row[:2] for row in history.holding()[WHERE]] == [(0, 10), (10, 20)]
    report = checked(history)
    assert (report.exit_code, dict(report.problem_counts)) == (3, {ProblemKind.UNLISTED: 1})
    assert "it ends with version 2, but run" in report.problems[0].message
    plain, forced = repaired(history.url, apply=False), repaired(history.url, apply=False, rebuild=True)
    assert (plain.action, plain.exit_code, plain.rows) == (Action.REBUILT, 4, forced.rows)
    make_old(history)
    for delete in (False, True):
        with pytest.raises(RefusedError, match="does not say what is garbage: it ends with version 2"):
            collected(history, delete=delete)
    repaired(history.url)
    assert history.state() == before
    assert checked(history).verdict is Verdict.WHOLE
    assert collected(history, delete=True).objects == ()
    assert repaired(history.url).action is Action.NONE


def test_an_object_whose_records_the_catalog_lacks_is_never_garbage(history: History) -> None:
    """Nothing else tells of it: an older copy of the catalog was put back."""
    before = history.holding()
    lose_newest_entry(history, rows=True)
    # It may be of a run that is under way.
    assert checked(history).verdict is Verdict.WHOLE
    make_old(history)
    report = checked(history)
    assert (report.exit_code, dict(report.problem_counts)) == (3, {ProblemKind.UNLISTED: 1})
    assert (report.problems[0].first_offset, report.problems[0].end_offset) == (20, 30)
    found = collected(history, delete=True)
    assert (found.objects, found.exit_code, [each.first_offset for each in found.unlisted]) == ((), 3, [20])
    plain = repaired(history.url, apply=False)
    assert (plain.action, plain.exit_code) == (Action.REBUILT, 4)
    assert "it lacks records that objects hold: orders-0, offsets 20 to 30" in (plain.problem or "")
    repaired(history.url)
    assert history.holding() == before
    assert checked(history).verdict is Verdict.WHOLE
    assert (collected(history).unlisted, repaired(history.url).action) == ((), Action.NONE)


@pytest.mark.parametrize("how", [{}, {"packed": True}, {"mode": "zstd"}])
def test_what_a_killed_run_left_is_garbage_once_its_offsets_are_archived_again(
    history: History, how: dict[str, Any]
) -> None:
    history.write({("orders", 0): [records(30, 10)]}, **how)
    make_old(history)
    assert [each.first_offset for each in collected(history, delete=True).unlisted] == [30]
    assert checked(history).exit_code == 3
    history.run({("orders", 0): [records(30, 20)]})
    make_old(history)
    found = collected(history, delete=True)
    assert (len(found.objects), found.unlisted, found.exit_code) == (1, (), 0)
    assert checked(history).verdict is Verdict.WHOLE


def test_what_does_not_continue_the_archive_is_kept_and_said_by_all(history: History) -> None:
    history.write({("orders", 0): [records(50, 10)]})
    make_old(history)
    assert [each.continues for each in collected(history, delete=True).unlisted] == [False]
    assert checked(history).exit_code == 3
    report = repaired(history.url)
    assert (report.action, report.exit_code, [each.kind for each in report.notices]) == (Action.NONE, 3, ["unlisted"])


def test_a_history_that_the_log_has_lost_is_garbage(history: History) -> None:
    history.run({("orders", 0): [records(30, 10, epoch=5)]})
    history.write({("orders", 0): [records(40, 10, epoch=4)]})
    make_old(history)
    assert (len(collected(history, delete=True).objects), checked(history).verdict) == (1, Verdict.WHOLE)
    assert repaired(history.url).action is Action.NONE


def test_a_commit_that_is_under_way_is_waited_for(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = history.open()
    entry = max((Path(history.url) / "catalog/segments/_delta_log").glob("*.json"))
    aside = Path(history.url).parent / "entry"
    shutil.move(entry, aside)
    archive = history.open()
    monkeypatch.setattr("maxbrod.check.run._COMMIT_S", 60.0)
    set_time(monkeypatch, "maxbrod.check.run", sleep=lambda _: shutil.move(aside, entry))
    assert check_archive(archive).verdict is Verdict.WHOLE


def test_gc_says_what_it_keeps_and_why(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.write({("orders", 0): [records(50, 10)]})
    make_old(history)
    assert command(["gc", "-a", history.url, "--delete"]) == 3
    shown = " ".join(capsys.readouterr().out.split())
    assert "stays, because the catalog lacks its records: orders-0, offsets 50 to 60, in segments/" in shown
    assert "'maxbrod backup' archives these offsets again" in shown


@pytest.mark.parametrize("how", [{}, {"packed": True}, {"mode": "zstd"}])
def test_an_object_that_was_lost_and_taken_out_counts_again_when_it_is_back(
    tmp_path: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "recent_paths", lambda *_: set())  # as a day later
    history = History(str(tmp_path / "archive"))
    for number in range(3):
        history.run({("orders", 0): [records(10 * number, 10, epoch=number)]}, **how)
    before = history.holding()
    lost = Path(history.url) / own(history).rows()["path"][1].as_py()
    aside = Path(shutil.move(lost, tmp_path / "aside"))
    assert repaired(history.url).gaps == {"corrupt": 10}
    sound = aside.read_bytes()
    lost.write_bytes(sound[:70] + b"\0\0" + sound[72:])
    make_old(history)
    # Damaged, it is of no use, and no reason to rebuild the catalog time and again.
    assert ProblemKind.UNLISTED not in checked(history).problem_counts
    assert repaired(history.url).action is Action.NONE
    lost.write_bytes(sound)
    make_old(history)
    assert checked(history).problem_counts[ProblemKind.UNLISTED] == 1
    assert [each.first_offset for each in collected(history).unlisted] == [10]
    assert repaired(history.url).action is Action.REBUILT
    assert history.holding() == before
