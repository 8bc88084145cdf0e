"""A repair that is killed anywhere, or meets another writer, leaves the archive as it was or repaired."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.catalog.catalog import Catalog
from maxbrod.catalog.remains import replace_catalog
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError
from maxbrod.inspect.garbage import GRACE_S, collect_garbage
from maxbrod.repair.report import Action
from maxbrod.storage import local
from maxbrod.storage.local import LocalStorage
from support.histories import IDS, History, records, repaired

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.full

ENTRY = "catalog/segments/_delta_log/00000000000000000001.json"


class KilledError(BaseException):
    """Not an Exception: nothing in the program may catch it."""


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = History(str(tmp_path / "archive"))
    history.run({("orders", 0): [records(0, 10), records(10, 10)]})
    history.run({("orders", 0): [records(20, 10)], ("orders", 1): [records(0, 10)]}, packed=True)
    return history


@pytest.mark.parametrize("lost", ["catalog", ENTRY, "packs"])
def test_killed_around_every_write_a_repair_leaves_the_old_state_or_the_new_one(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    before = history.state()
    damaged = tmp_path / "damaged"
    shutil.copytree(history.url, damaged)
    gone = damaged / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    whole = tmp_path / "whole"
    shutil.copytree(damaged, whole)
    repaired(str(whole))
    expected = _at(str(whole)).state()
    assert lost == "packs" or expected == before
    point = 0
    while True:
        url = str(tmp_path / f"killed-{point}")
        shutil.copytree(damaged, url)
        with monkeypatch.context() as patched:
            _kill_at(patched, point)
            try:
                repaired(url)
                assert repaired(url).action is Action.NONE
                break
            except KilledError:
                pass
        try:
            seen: Any = _at(url).state()
        except (CorruptDataError, ObjectNotFoundError):
            seen = None
        assert seen in (None, expected)
        repaired(url)
        assert _at(url).state() == expected
        shutil.rmtree(url)
        point += 1
    assert point >= 6


def _at(url: str) -> History:
    found = History.__new__(History)
    found.url = url
    return found


def _kill_at(patched: pytest.MonkeyPatch, point: int) -> None:
    """Die before and after the calls that change a directory: numbers count both."""
    left = [point]

    def dying(call: Any) -> Any:
        def run(*arguments: Any, **more: Any) -> Any:
            if left[0] == 0:
                raise KilledError
            left[0] -= 1
            result = call(*arguments, **more)
            if left[0] == 0:
                raise KilledError
            left[0] -= 1
            return result

        return run

    for name in ("put", "replace", "delete"):
        patched.setattr(local.LocalStorage, name, dying(getattr(local.LocalStorage, name)))
    patched.setattr(local._LocalWriter, "commit", dying(local._LocalWriter.commit))


@pytest.mark.parametrize("lost", ["catalog", ENTRY])
def test_a_backup_that_still_runs_on_the_old_catalog_is_refused(history: History, lost: str) -> None:
    running = history.open().catalog
    gone = Path(history.url) / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    repaired(history.url)
    before = history.state()
    with pytest.raises(RefusedError):
        running.commit([], replaced=running.rows() if lost == ENTRY else _anything())
    assert history.state() == before


def _anything() -> Any:
    from support.catalog_rows import segment  # noqa: PLC0415

    return [segment(0, 10)]


def test_a_commit_between_reading_and_publishing_makes_the_repair_refuse(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = history.open().catalog
    (Path(history.url) / ENTRY).unlink()
    aside = "maxbrod.repair.rebuilt_catalog.keep_aside"

    def beaten(*_: object) -> int:
        from support.catalog_rows import run  # noqa: PLC0415

        running.commit([run("faster")])
        return 0

    monkeypatch.setattr(aside, beaten)
    with pytest.raises(RefusedError, match="another writer"):
        repaired(history.url)
    monkeypatch.undo()
    repaired(history.url)
    assert "faster" in [each.run_id for each in Catalog.open(history.open().storage).runs()]


def test_an_object_that_is_deleted_while_others_are_read_makes_a_rebuild_refuse(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `gc` does with what no row names, if it began before the catalog was lost."""
    before = history.state()
    shutil.rmtree(Path(history.url) / "catalog")
    (pack,) = (Path(history.url) / "packs").iterdir()
    data = pack.read_bytes()

    def deleting(*_: object) -> int:
        pack.unlink()
        return 0

    monkeypatch.setattr("maxbrod.repair.rebuilt_catalog.keep_aside", deleting)
    with pytest.raises(RefusedError, match="deleted while the archive was read"):
        repaired(history.url)
    monkeypatch.undo()
    pack.write_bytes(data)
    repaired(history.url)
    assert history.state() == before


def _make_old(history: History) -> None:
    for path in Path(history.url).rglob("*"):
        os.utime(path, (time.time() - 2 * GRACE_S,) * 2)


def test_gc_deletes_nothing_that_a_rebuild_has_found(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    history.write({("orders", 0): [records(30, 10)]})
    history.write({("orders", 1): [records(0, 10)]})
    _make_old(history)
    # What a killed run has left is garbage if its offsets are archived, and a rebuild finds it.
    found = collect_garbage(history.open())
    assert (len(found.objects), len(found.unlisted)) == (1, 1)
    collector = history.open()
    met: list[str] = []

    def beside(*_: object) -> int:
        with pytest.raises(RefusedError, match="rebuilds the catalog; 0 objects are deleted") as refused:
            collect_garbage(collector, delete=True)
        met.append(refused.value.message)
        return 0

    monkeypatch.setattr("maxbrod.repair.rebuilt_catalog.keep_aside", beside)
    repaired(history.url, rebuild=True)
    assert met
    rebuilt = history.state()
    assert rebuilt["now"][f"orders-{IDS['orders']}-0"][-1][:2] == (30, 40)
    # Of the offsets that two objects hold, the new catalog names one.
    left = collect_garbage(history.open(), delete=True)
    assert (len(left.objects), left.unlisted) == (1, ())
    assert history.state() == rebuilt


def test_gc_stops_where_a_rebuild_begins(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        history.write({("orders", 0): [records(20, 10)]})
    _make_old(history)
    storage = history.open().storage
    original = LocalStorage.delete

    def beginning(self: LocalStorage, paths: Iterable[str]) -> None:
        original(self, paths)
        storage.replace("probes/rebuild-one", b"")

    monkeypatch.setattr("maxbrod.inspect.garbage._DELETED_AT_ONCE", 1)
    monkeypatch.setattr(LocalStorage, "delete", beginning)
    with pytest.raises(RefusedError, match="run one rebuilds the catalog; 0 objects are deleted"):
        collect_garbage(history.open(), delete=True)
    monkeypatch.undo()
    monkeypatch.setattr("maxbrod.inspect.garbage._DELETED_AT_ONCE", 1)
    # It was killed more than a grace time ago.
    _make_old(history)
    assert len(collect_garbage(history.open(), delete=True).objects) == 3
    assert list(storage.list("probes")) == []


def test_an_object_that_is_deleted_while_the_new_catalog_is_put_in_place_is_said(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(Path(history.url) / "catalog")
    (pack,) = (Path(history.url) / "packs").iterdir()
    original = replace_catalog

    def deleting(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        pack.unlink()

    monkeypatch.setattr("maxbrod.repair.rebuilt_catalog.replace_catalog", deleting)
    with pytest.raises(CorruptDataError, match="deleted meanwhile"):
        repaired(history.url)
    monkeypatch.undo()
    assert repaired(history.url).gaps == {"corrupt": 20}


def test_gc_deletes_nothing_if_the_catalog_has_lost_its_end(history: History) -> None:
    before = history.state()
    max((Path(history.url) / "catalog/segments/_delta_log").glob("*.json")).unlink()
    _make_old(history)
    for delete in (False, True):
        with pytest.raises(RefusedError, match="does not say what is garbage: it ends with version"):
            collect_garbage(history.open(), delete=delete)
    repaired(history.url)
    assert history.state() == before
    assert collect_garbage(history.open(), delete=True).objects == ()
