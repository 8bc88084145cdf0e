"""A repair that is killed anywhere, or meets another writer, leaves the archive as it was or repaired."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from maxbrod.catalog.catalog import Catalog
from maxbrod.errors import CorruptDataError, ObjectNotFoundError, RefusedError
from maxbrod.repair.report import Action
from maxbrod.storage import local
from repair.histories import History, records, repaired

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
    from catalog.examples import segment  # noqa: PLC0415

    return [segment(0, 10)]


def test_a_commit_between_reading_and_publishing_makes_the_repair_refuse(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = history.open().catalog
    (Path(history.url) / ENTRY).unlink()
    aside = "maxbrod.repair.rebuilding.keep_aside"

    def beaten(*_: object) -> int:
        from catalog.examples import run  # noqa: PLC0415

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

    monkeypatch.setattr("maxbrod.repair.rebuilding.keep_aside", deleting)
    with pytest.raises(RefusedError, match="deleted while the archive was read"):
        repaired(history.url)
    monkeypatch.undo()
    pack.write_bytes(data)
    repaired(history.url)
    assert history.state() == before
