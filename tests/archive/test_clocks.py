"""Deletion needs two witnesses: whichever clock is wrong, less is deleted, and a contradiction is refused."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import maxbrod
from maxbrod.archive.undo import undo_prune
from maxbrod.archive.upkeep import Clocks, read_clocks
from maxbrod.catalog.files import DataFiles
from maxbrod.catalog.log import LOG_RETENTION_MS, RETENTION_MS, delete_expired, time_of
from maxbrod.cli.main import run as main
from maxbrod.errors import AccessDeniedError, RefusedError
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.model import CLOCKS_APART_MS, now_ms
from maxbrod.prune.plan import SegmentPolicy
from maxbrod.prune.run import PruneRequest, prune_archive
from maxbrod.prune.runs import RunPolicy
from support.catalog_rows import run as run_row
from support.clocks import set_clocks
from support.prunable_archives import DAY_MS, commit, data, part

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.archive.archive import Archive
    from maxbrod.prune.report import PruneReport
    from support.archives import Place

HOUR_MS: Final = 3600 * 1000


def backed_up(place: Place, *, ages: tuple[float, ...] = (0.0,)) -> Archive:
    """Ten days of records, and a run of each of these ages, in days."""
    archive = place.create()
    rows = [data("orders", day * 10, day * 10 + 10, age_days=10.5 - day) for day in range(10)]
    for number, age in enumerate(ages):
        commit(archive, f"run-{number}", rows if not number else (), {part("orders"): 100}, age_days=age)
    return archive


def prune(archive: Archive, *, older_days: float = 5, apply: bool = True) -> PruneReport:
    clocks = read_clocks(archive, ask_store=apply)
    policy = SegmentPolicy(before_ms=clocks.earliest_ms - round(older_days * DAY_MS))
    return prune_archive(archive, PruneRequest(segments=policy, runs=RunPolicy()), apply=apply, clocks=clocks)


@pytest.mark.parametrize("verb", ["prune", "gc"])
@pytest.mark.parametrize(
    ("own", "store", "wrong"),
    [
        (-30, 0, "this machine's clock is 30 d behind the store's, and 30 d behind the newest run, run-0"),
        (400, 0, "this machine's clock is 400 d ahead of the store's"),
        (0, -30, "the store's clock is 30 d behind this machine's, and 30 d behind the newest run, run-0"),
        (0, 400, "this machine's clock is 400 d behind the store's"),
        (-30, -30, "this machine's clock is 30 d behind the newest run, run-0; or the clock of the machine that"),
    ],
)
def test_where_clocks_contradict_each_other_prune_and_gc_refuse_and_say_which_is_wrong(
    verb: str, own: int, store: int, wrong: str, local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = backed_up(local_place)
    before = {info.path for info in archive.storage.list()}
    set_clocks(monkeypatch, own_ms=now_ms() + own * DAY_MS, store_ms=now_ms() + store * DAY_MS)
    with pytest.raises(RefusedError, match="the clocks contradict each other") as caught:
        prune(archive) if verb == "prune" else collect_garbage(archive, delete=True)
    assert wrong in str(caught.value)
    assert "nothing was changed" in (caught.value.hint or "")
    assert {info.path for info in archive.storage.list()} == before


def test_a_dry_run_shows_the_contradiction_that_it_can_see_without_a_write(
    local_place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = backed_up(local_place)
    set_clocks(monkeypatch, own_ms=now_ms() - 30 * DAY_MS)
    for words in (["prune", "--older-than", "5d"], ["gc"]):
        assert main([*words, "-a", archive.url]) == 5
        assert "this machine's clock is 30 d behind the store's" in capsys.readouterr().err


def test_who_may_not_delete_may_prune(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prune deletes no object; that is for `gc`, which may have other rights."""
    archive = backed_up(local_place)

    def delete(paths: Iterable[str]) -> None:
        if list(paths):
            raise AccessDeniedError("the storage does not allow it")

    monkeypatch.setattr(archive.storage, "delete", delete)
    assert prune(archive).run_id is not None


def test_clocks_that_differ_a_little_delete_less_and_go_on(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = backed_up(local_place)
    at = now_ms()
    set_clocks(monkeypatch, own_ms=at - CLOCKS_APART_MS + 60_000, store_ms=at)
    report = prune(archive, older_days=0)
    assert report.ages_until_ms == at - CLOCKS_APART_MS + 60_000
    assert (report.undo_until_ms or 0) >= at + 7 * DAY_MS


def test_a_prune_under_a_clock_that_is_behind_has_its_whole_grace(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a release that counted the grace by the pruner's own clock: the store stamped its undo document."""
    archive = backed_up(local_place, ages=(0,))
    monkeypatch.setattr(type(archive.catalog), "recent_paths", lambda *_: set())
    with monkeypatch.context() as patched:
        patched.setattr("maxbrod.archive.upkeep._demand_agreement", lambda *_: None)
        patched.setattr("maxbrod.archive.upkeep.now_ms", lambda: now_ms() - 30 * DAY_MS)
        patched.setattr(Clocks, "after_ms", lambda clocks, grace_s: clocks.own_ms + grace_s * 1000)
        report = prune(archive, older_days=-26)
    assert (report.going.segments, report.undo_until_ms or 0) > (0, 0)
    assert (report.undo_until_ms or 0) < now_ms()
    commit(archive, "later", (), {part("orders"): 100})
    for after_days, kept in ((0, True), (6, True), (8, False)):
        at = now_ms() + after_days * DAY_MS
        set_clocks(monkeypatch, own_ms=at, store_ms=at)
        found = collect_garbage(archive, trust_clock=True).objects
        assert (found == ()) is kept, after_days
    assert undo_prune(archive).rows == report.going.segments


def test_ages_count_up_to_the_newest_backup_whatever_this_machine_and_its_disk_say(
    local_place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory has the clock of its machine: 400 days ahead, every record would be old enough."""
    archive = backed_up(local_place)
    ahead = now_ms() + 400 * DAY_MS
    set_clocks(monkeypatch, own_ms=ahead, store_ms=ahead)
    words = ["prune", "-a", archive.url, "--older-than", "5d"]
    assert main([*words, "--apply"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "6 segments of" in shown
    assert "ages count up to the newest backup that found something new" in shown
    assert "400 d ago by this machine's clock" in shown
    # The prune's own run proves nothing.
    assert main([*words, "--apply"]) == 0
    assert "0 segments of" in capsys.readouterr().out
    assert main([*words, "--trust-clock"]) == 0
    assert "3 segments of" in capsys.readouterr().out


def test_gc_keeps_what_can_be_undone_until_a_backup_proves_that_the_time_has_come(
    local_place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = backed_up(local_place)
    monkeypatch.setattr(type(archive.catalog), "recent_paths", lambda *_: set())
    report = prune(archive)
    later = now_ms() + 9 * DAY_MS
    set_clocks(monkeypatch, own_ms=later, store_ms=later)
    assert collect_garbage(archive, delete=True).prunes_waiting == (report.run_id,)
    assert main(["gc", "-a", archive.url]) == 0
    assert "1 prune can still be undone" in " ".join(capsys.readouterr().out.split())
    assert len(collect_garbage(archive, trust_clock=True).objects) == report.objects + 1
    commit(archive, "later", (), {part("orders"): 100}, age_days=-9)
    done = collect_garbage(archive, delete=True)
    assert (len(done.objects), done.prunes_waiting) == (report.objects + 1, ())
    # The document is gone, and what it named with it: nothing waits for it any more.
    assert collect_garbage(archive, delete=True).objects == ()


def test_a_newest_run_in_the_future_is_overcome_by_a_backup_or_by_trust(local_place: Place) -> None:
    archive = backed_up(local_place, ages=(1, -30))
    with pytest.raises(RefusedError, match="behind the newest run, run-1"):
        prune(archive)
    assert read_clocks(archive, ask_store=True, trusted=True).after_ms(0) < now_ms() + DAY_MS
    commit(archive, "right", (), {part("orders"): 100})
    assert prune(archive).going.segments == 6


def test_what_was_pruned_under_a_wrong_clock_can_be_undone_by_any_clock(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = backed_up(local_place)
    report = prune(archive)
    for days in (-30, 400):
        set_clocks(monkeypatch, own_ms=now_ms() + days * DAY_MS)
        assert undo_prune(archive).rows == report.going.segments
    assert undo_prune(archive, apply=True).applied


def test_a_clock_that_is_ahead_cleans_up_no_entry_of_the_log_and_no_file_of_the_catalog(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of the log that becomes free too early could be taken by a writer that was suspended."""
    archive = local_place.create()
    for number in range(24):
        archive.catalog.commit([run_row(f"run-{number}")])
    before = {info.path for info in archive.storage.list("catalog")}
    ahead = max(LOG_RETENTION_MS, RETENTION_MS) * 400
    monkeypatch.setattr("maxbrod.catalog.log.now_ms", lambda: now_ms() + ahead)
    delete_expired(archive.storage)
    files = archive.catalog._files()
    assert isinstance(files, DataFiles)
    files.delete(files.unused())
    assert {info.path for info in archive.storage.list("catalog")} == before
    assert time_of([]) == 0


OWN_CLOCK: Final = frozenset({"now_ms", "time", "time_ns", "now", "utcnow"})
MAY_ASK: Final = {
    "erase/rewrite.py": "the times of its rows; it deletes only objects of its own that no row names",
    "archive/upkeep.py": "the one place that asks",
    "backup/commits.py": "for the times of its own run; it deletes only the snapshot of its own refused commit",
    "catalog/log.py": "for the earlier one of it and of the store's newest stamp",
    "catalog/catalog.py": "how often to look for unused files, and whether a commit is late",
    "catalog/commits.py": "for the times of new files; it deletes only those of its own refused commit",
    "catalog/copies.py": "for how far back it copies data files that are out of use; `catalog/files` decides what goes",
    "copy/chosen.py": "for the times of its own run; it deletes only the snapshot of its own refused commit",
    "drill/run.py": "for the time of its own record",
    "layouts/kbak/survey.py": "for the times of its own manifest",
    "repair/older_versions.py": "refuses a time in the future, and sets the ends of locks; it only hides what is newer",
    "replicate/archive_lease.py": "for the time of its own note",
    "replicate/members.py": "for the time of its own note",
    "restore/staging.py": "for the times of its own rows",
    "table/sink/archive.py": "for the times of its own rows",
    "setup/doctor.py": "compares the storage's clock with ours, and deletes only what it has just written",
}
"""Modules that delete, or decide about it, and read this machine's clock; each for another reason than an age."""


def calls_in(path: Path) -> set[str]:
    return {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    }


def test_no_module_that_deletes_asks_this_machines_clock_alone() -> None:
    """An age or a grace period comes from `read_clocks`. A module that needs the time for another reason says why."""
    root = Path(maxbrod.__file__).parent
    modules = {str(path.relative_to(root)): calls_in(path) for path in root.rglob("*.py")}
    deciding = {
        name
        for name, calls in modules.items()
        if not name.startswith(("bench/", "demo/", "sandbox/"))
        and ("delete" in calls or name.startswith(("prune/", "archive/undo", "archive/pruned", "inspect/garbage")))
    }
    assert {"prune/run.py", "inspect/garbage.py", "archive/undo.py", "catalog/files.py"} <= deciding
    asking = {name for name in deciding if modules[name] & OWN_CLOCK}
    assert asking - MAY_ASK.keys() == set()
