"""Garbage goes; what a run has written, or is writing, never does."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
from deltalake import DeltaTable

from maxbrod.archive.archive import Archive, open_for_writing, open_native
from maxbrod.catalog.catalog import LATE_MS, Catalog
from maxbrod.check.run import check_archive
from maxbrod.errors import CorruptDataError, MaxbrodError, RefusedError, StorageFullError, UsageError
from maxbrod.inspect import garbage
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.model import AbortedTransaction, GapReason
from support.catalog_rows import gap, run, segment
from support.clocks import set_clocks
from support.full_archive import fill

if TYPE_CHECKING:
    from collections.abc import Iterable

    from support.archives import Place

DAY_S = 24 * 3600
ORPHANS = (
    "packs/run-9-ff.log",
    "probes/0123",
    "segments/orders/x/0/00000000000000000000-ff.log",
    "snapshots/run-9.json.zst",
)


def put_old(place: Place, archive: Archive, paths: Iterable[str], *, age_s: float = 2 * DAY_S) -> None:
    for path in paths:
        archive.storage.put(path, b"garbage")
        age(place, path, age_s)


def age(place: Place, path: str, age_s: float) -> None:
    """The store's own files lie in a folder here, so that they can be made older than they are."""
    when = time.time() - age_s
    os.utime(place.folder / path, (when, when))


def age_all(place: Place, archive: Archive) -> None:
    for found in list(archive.storage.list()):
        age(place, found.path, 2 * DAY_S)


def paths_of(archive: Archive) -> set[str]:
    return {found.path for found in archive.storage.list()}


def test_what_no_row_names_goes_and_everything_else_stays(place: Place) -> None:
    archive = fill(place)
    age_all(place, archive)
    before = paths_of(archive)
    put_old(place, archive, ORPHANS)
    put_old(place, archive, ["notes/mine.txt", "segments-not-ours"])

    planned = collect_garbage(place.open())
    assert [found.path for found in planned.objects] == list(ORPHANS)
    assert (planned.bytes, planned.deleted, planned.young_objects) == (4 * len("garbage"), False, 0)
    assert paths_of(archive) == before | {*ORPHANS, "notes/mine.txt", "segments-not-ours"}

    done = collect_garbage(place.open(), delete=True)
    assert (done.objects, done.deleted) == (planned.objects, True)
    assert paths_of(archive) == before | {"notes/mine.txt", "segments-not-ours"}
    assert not check_archive(place.open()).problems
    assert not collect_garbage(place.open(), delete=True).objects


def test_a_run_under_way_never_loses_its_objects(place: Place) -> None:
    archive = fill(place)
    put_old(place, archive, ORPHANS[:1], age_s=DAY_S - 600)
    archive.storage.put(ORPHANS[2], b"just written")
    report = collect_garbage(place.open(), delete=True)
    assert (report.objects, report.young_objects, report.young_bytes) == ((), 2, 7 + 12)
    assert {ORPHANS[0], ORPHANS[2]} <= paths_of(archive)


def test_what_is_committed_while_objects_are_listed_is_never_garbage(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, other = fill(local_place), local_place.open()
    row = segment(0, 7, partition=5, path="packs/late.log")
    put_old(local_place, archive, [row.path])
    listed = archive.storage.list

    def list_then_commit(folder: str = "") -> Iterable[object]:
        yield from listed(folder)
        if folder == "snapshots":
            other.catalog.commit([row, run("late")])

    monkeypatch.setattr(archive.storage, "list", list_then_commit)
    assert row.path not in {found.path for found in collect_garbage(archive, delete=True).objects}
    assert row.path in paths_of(local_place.open())


def test_a_commit_before_the_last_deletion_stops_it(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, other = fill(local_place), local_place.open()
    put_old(local_place, archive, ORPHANS)
    monkeypatch.setattr(garbage, "_DELETED_AT_ONCE", 2)
    delete = archive.storage.delete

    def delete_then_commit(paths: Iterable[str]) -> None:
        paths = list(paths)
        delete(paths)
        if "probes" not in paths[0]:
            other.catalog.commit([segment(0, 7, partition=5, path=ORPHANS[2]), run("late")])

    monkeypatch.setattr(archive.storage, "delete", delete_then_commit)
    with pytest.raises(RefusedError, match="2 objects are deleted"):
        collect_garbage(archive, delete=True)
    assert set(ORPHANS[2:]) <= paths_of(local_place.open())


def test_a_run_that_was_suspended_commits_nothing_that_gc_has_deleted_meanwhile(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LATE_MS <= garbage.GRACE_S_MIN * 1000 / 2
    rows = [segment(0, 7, partition=5, path=ORPHANS[0]), run("suspended", snapshot=None)]
    archive, suspended, patient = fill(local_place), local_place.open(), local_place.open()
    put_old(local_place, archive, ORPHANS)
    monkeypatch.setattr("maxbrod.catalog.catalog.now_ms", lambda: int((time.time() + 2 * DAY_S) * 1000))
    assert len(collect_garbage(local_place.open(), delete=True).objects) == len(ORPHANS)
    with pytest.raises(RefusedError, match="was deleted before the run could commit it"):
        suspended.catalog.commit(rows)
    assert not check_archive(local_place.open()).problems
    archive.storage.put(ORPHANS[0], b"garbage")
    patient.catalog.commit(rows)


def test_a_late_commit_asks_for_its_objects_though_the_clock_was_set_back(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, late = fill(local_place), local_place.open()
    monkeypatch.setattr("maxbrod.catalog.catalog.now_ms", lambda: int((time.time() - DAY_S) * 1000))
    assert isinstance(late.catalog, Catalog)
    late.catalog._since_s -= 2 * LATE_MS / 1000
    with pytest.raises(RefusedError, match="was deleted before the run could commit it"):
        late.catalog.commit([segment(0, 7, partition=5, path=ORPHANS[0]), run("late", snapshot=None)])
    assert not check_archive(archive).problems


def test_a_run_that_is_suspended_within_its_commit_says_what_gc_has_deleted(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, suspended = fill(local_place), local_place.open()
    put_old(local_place, archive, ORPHANS[:1])
    put, ahead_s = suspended.storage.put, [0]
    monkeypatch.setattr("maxbrod.catalog.catalog.now_ms", lambda: int((time.time() + ahead_s[0]) * 1000))

    def sleep_then_put(path: str, data: bytes) -> None:
        ahead_s[0] = 2 * DAY_S
        assert collect_garbage(local_place.open(), delete=True).objects
        put(path, data)

    monkeypatch.setattr(suspended.storage, "put", sleep_then_put)
    with pytest.raises(CorruptDataError, match="was deleted while the run committed it") as caught:
        suspended.catalog.commit([segment(0, 7, partition=5, path=ORPHANS[0]), run("suspended", snapshot=None)])
    assert caught.value.object_name == archive.storage.name_of(ORPHANS[0])
    assert "repair" in (caught.value.hint or "")


@pytest.mark.parametrize("clock", ["own_ms", "store_ms"])
def test_a_clock_that_is_ahead_makes_nothing_garbage(
    clock: str, local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = fill(local_place)
    put_old(local_place, archive, ORPHANS, age_s=60)
    set_clocks(monkeypatch, **{clock: int((time.time() + 9 * DAY_S) * 1000)})
    with pytest.raises(RefusedError, match=r"this machine's clock is 9 d (ahead of|behind) the store's"):
        collect_garbage(archive, delete=True)
    set_clocks(monkeypatch, **{clock: int((time.time() + 600) * 1000)})
    put_old(local_place, archive, ["packs/run-8-ff.log"], age_s=DAY_S - 60)
    assert "packs/run-8-ff.log" not in {found.path for found in collect_garbage(archive, delete=True).objects}
    assert set(ORPHANS) <= paths_of(archive)


def test_a_full_store_can_be_relieved_of_garbage(local_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(local_place)
    put_old(local_place, archive, ORPHANS)
    put_old(local_place, archive, ["packs/run-8-ff.log"], age_s=DAY_S / 2)

    def full(path: str, *_: object, **__: object) -> None:
        raise StorageFullError("no space left", object_name=path)

    monkeypatch.setattr(archive.storage, "put", full)
    assert {found.path for found in collect_garbage(archive, delete=True).objects} == set(ORPHANS)
    assert not paths_of(archive).intersection(ORPHANS)
    # Nothing was written for long: the clock of the store is at least where its newest object is, and may be no later.
    put = type(archive.storage).put
    put(archive.storage, ORPHANS[0], b"garbage")
    age_all(local_place, archive)
    assert collect_garbage(archive, delete=True).objects == ()


def test_a_store_that_is_full_since_its_last_commit_can_be_relieved_of_what_runs_left_since(
    local_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = fill(local_place)
    for found in list(archive.storage.list()):
        age(local_place, found.path, 9 * DAY_S)
    put_old(local_place, archive, ORPHANS)
    put_old(local_place, archive, ["packs/run-8-ff.log"], age_s=DAY_S / 2)
    monkeypatch.setattr(archive.storage, "put", Mock(side_effect=StorageFullError("no space left")))
    assert {found.path for found in collect_garbage(archive, delete=True, trust_clock=True).objects} == set(ORPHANS)


def test_what_a_commit_put_out_of_use_stays_for_the_grace_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = fill(place)
    age_all(place, archive)
    gone = segment(10, 20, aborted=(AbortedTransaction(producer_id=9, first_offset=3, last_offset=12),))
    archive.catalog.commit([gap(10, 20, reason=GapReason.TRUNCATED)], replaced=[gone])
    # A later commit that folds the same files must not make it forgotten.
    archive.catalog.commit([run("later", snapshot=None)])
    report = collect_garbage(place.open(), delete=True)
    assert (report.objects, report.young_objects) == ((), 1)
    assert gone.path in paths_of(archive)

    later_ms = int((time.time() + 2 * DAY_S) * 1000)
    set_clocks(monkeypatch, own_ms=later_ms, store_ms=later_ms)
    assert [found.path for found in collect_garbage(place.open(), delete=True).objects] == [gone.path]
    assert not check_archive(place.open()).problems


def test_a_grace_time_shorter_than_a_run_is_refused(local_place: Place) -> None:
    with pytest.raises(UsageError, match="shorter than a run"):
        collect_garbage(fill(local_place), grace_s=59 * 60)


def test_deleting_tidies_away_what_dead_writers_left_unfinished(local_place: Place) -> None:
    archive = fill(local_place)
    draft = local_place.folder / ".maxbrod-tmp" / "dead"
    draft.write_bytes(b"half")
    os.utime(draft, (0, 0))
    collect_garbage(local_place.open(), delete=True)
    assert not draft.exists()
    assert not check_archive(archive).problems


def test_staged_records_stay_while_a_restore_needs_them_and_go_afterwards(local_place: Place) -> None:
    archive = fill(local_place)
    staged = "staged/segments/orders/x/0/00000000000000000000-ff.log"
    kept = [f"restores/begun-1/{name}" for name in ("plan.json.zst", staged)]
    ended = [f"restores/ended-1/{name}" for name in ("plan.json.zst", "report.json.zst")]
    gone = [f"restores/ended-1/{staged}", f"restores/given-up-1/{staged}"]
    put_old(local_place, archive, [*kept, *ended, *gone])
    archive.storage.put(f"restores/young-1/{staged}", b"under way")
    report = collect_garbage(archive, delete=True)
    assert {found.path for found in report.objects} == set(gone)
    left = {*kept, *ended, f"restores/young-1/{staged}"}
    assert {path for path in paths_of(archive) if path.startswith("restores/")} == left


def test_links_lead_no_deletion_out_of_the_archive(local_place: Place, tmp_path: Path) -> None:
    """Neither one to a folder nor one to a file: both would be old, and named by no row."""
    archive = fill(local_place)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.log").write_bytes(b"precious")
    os.utime(outside / "precious.log", (0, 0))
    for link, target in (("segments/orders/linked", outside), ("packs/linked.log", outside / "precious.log")):
        path = local_place.folder / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        with pytest.raises(RefusedError, match="symbolic link") as caught:
            collect_garbage(archive, delete=True)
        assert link in str(caught.value)
        path.unlink()
    assert (outside / "precious.log").read_bytes() == b"precious"


def test_a_catalog_is_not_read_through_links_that_lead_out_of_the_archive(local_place: Place, tmp_path: Path) -> None:
    fill(local_place)
    table = local_place.folder / "catalog" / "segments"
    data = min(table.glob("*.parquet"))
    for linked in (data, min((table / "_delta_log").glob("*.json")), table / "_delta_log", table, table.parent):
        linked.rename(tmp_path / "moved")
        linked.symlink_to(tmp_path / "moved")
        for open_it in (open_native, open_for_writing):
            with pytest.raises(RefusedError, match="symbolic link"):
                open_it(local_place.url, local_place.options).catalog.rows()
        linked.unlink()
        (tmp_path / "moved").rename(linked)
    assert open_native(local_place.url, local_place.options).catalog.rows().num_rows


def test_a_catalog_names_no_file_outside_of_its_folder(local_place: Place, tmp_path: Path) -> None:
    fill(local_place)
    table = local_place.folder / "catalog" / "segments"
    name = Path(DeltaTable(str(table)).file_uris()[0]).name
    log = next(entry for entry in (table / "_delta_log").glob("*.json") if f'"path":"{name}"' in entry.read_text())
    shutil.copy(table / name, tmp_path / name)
    for foreign in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}", f"../../../{name}", f"%2e%2e/{name}"):
        text = log.read_text()
        log.write_text(text.replace(f'"{name}"', f'"{foreign}"'))
        with pytest.raises(MaxbrodError):
            open_native(local_place.url, local_place.options).catalog.rows()
        log.write_text(text)
    assert open_native(local_place.url, local_place.options).catalog.rows().num_rows
