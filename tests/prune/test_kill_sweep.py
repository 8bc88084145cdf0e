"""kill -9 before and after every effect on the store: the state before or after, and the next call goes on."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.holds import add_hold, read_holds
from maxbrod.archive.undo import UNDO_UNTIL, undo_prune
from maxbrod.check.problems import ProblemKind
from maxbrod.check.run import check_archive
from maxbrod.errors import UsageError
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.prune.runs import RunPolicy
from maxbrod.storage.local import LocalStorage
from support.clocks import set_clocks
from support.kill_sweeps import Killed
from support.prunable_archives import assert_tiles, everything, points, prune, segments, years

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.archive.archive import Archive
    from support.archives import Place

pytestmark = pytest.mark.full

POINTS_MAX = 60
DAY_S = 24 * 3600


@contextmanager
def killed_at(point: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every effect counts twice: before it and after it."""
    left, met = point, []
    dead = False

    def step(name: str) -> None:
        nonlocal left, dead
        if dead or left == 0:
            # Whatever a `finally` still tries after the death has no effect.
            dead = True
            met.append(name)
            raise Killed(name)
        left -= 1

    def dying(name: str, original: Any) -> Any:
        def act(self: Any, *arguments: Any, **options: Any) -> Any:
            step(f"before {name}")
            done = original(self, *arguments, **options)
            step(f"after {name}")
            return done

        return act

    with monkeypatch.context() as patched:
        writer = type(LocalStorage.create(LocalStorage(Path(os.devnull).parent / "nowhere-maxbrod"), "x"))
        for name in ("put", "replace", "delete"):
            patched.setattr(LocalStorage, name, dying(name, getattr(LocalStorage, name)))
        patched.setattr(writer, "commit", dying("create", writer.commit))
        yield met


def sweep(
    place: Place, template: Path, act: Callable[[Archive], object], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Archive, str]]:
    """The archive after a death at each point, until the action survives."""
    for point in range(POINTS_MAX):
        shutil.rmtree(place.folder, ignore_errors=True)
        shutil.copytree(template, place.folder)
        archive = place.open()
        with killed_at(point, monkeypatch) as met, suppress(Killed):
            act(archive)
        yield place.open(), met[0] if met else ""
        if not met:
            return
    pytest.fail("the action has more points than expected")


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maxbrod.check.run._COMMIT_S", 0.0)


@pytest.fixture
def template(local_place: Place, tmp_path: Path) -> Path:
    years(local_place)
    return Path(shutil.copytree(local_place.folder, tmp_path / "template"))


def policy(archive: Archive) -> Any:
    return prune(archive, older_days=5, runs=RunPolicy(last=3))


def age_all(place: Place) -> None:
    when = time.time() - 90 * DAY_S
    for each in place.folder.rglob("*"):
        if each.is_file() and "catalog" not in each.parts:
            os.utime(each, (when, when))


def test_killed_at_any_point_a_prune_happened_or_did_not(
    local_place: Place, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(local_place.open())
    seen: list[bool] = []
    for archive, point in sweep(local_place, template, policy, monkeypatch):
        done = segments(archive, "orders")[0] == (50, 60)
        seen.append(done)
        assert_tiles(archive)
        assert (everything(archive) == before) == (not done), point
        assert len(points(archive)) == (3 if done else 10)
        # Right before its commit, nobody can tell whether it happened and its entry was lost: that is said.
        assert {each.kind for each in check_archive(archive).problems} <= {ProblemKind.UNLISTED}
        assert not done or not check_archive(archive).problems
        # The next prune completes it, and nothing that it took is lost.
        policy(archive)
        assert segments(archive, "orders")[0] == (50, 60)
        undo_prune(archive, apply=True)
        assert everything(archive) == before, point
    assert seen == sorted(seen)
    assert not seen[0]
    assert seen[-1]


def test_killed_at_any_point_an_undo_happened_or_did_not(
    local_place: Place, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = local_place.open()
    before = everything(archive)
    policy(archive)
    pruned = Path(shutil.copytree(local_place.folder, tmp_path / "pruned"))
    seen: list[bool] = []
    for found, point in sweep(local_place, pruned, lambda each: undo_prune(each, apply=True), monkeypatch):
        seen.append(everything(found) == before)
        assert_tiles(found)
        assert {each.kind for each in check_archive(found).problems} <= {ProblemKind.UNLISTED}, point
        assert not seen[-1] or not check_archive(found).problems, point
        if not seen[-1]:
            undo_prune(found, apply=True)
            assert everything(found) == before, point
    assert seen == sorted(seen)
    assert seen[-1]


def expired(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the grace period of every prune be over, with the slack that gc allows."""
    later = max(run.statistics.get(UNDO_UNTIL, 0) for run in archive.catalog.runs()) + 2 * 3600 * 1000
    set_clocks(monkeypatch, own_ms=later, store_ms=later)


def test_gc_keeps_what_an_undo_needs_and_then_deletes_it(
    local_place: Place, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = local_place.open()
    before = everything(archive)
    report = policy(archive)
    age_all(local_place)
    monkeypatch.setattr(type(archive.catalog), "recent_paths", lambda *_: set())
    assert collect_garbage(local_place.open(), delete=True).objects == ()
    expired(archive, monkeypatch)
    found = collect_garbage(local_place.open(), delete=True, trust_clock=True)
    # Five segments, two packs, seven snapshots, and the undo document.
    assert (len(found.objects), report.objects) == (5 + 2 + 7 + 1, 5 + 2)
    with pytest.raises(UsageError, match="no prune"):
        undo_prune(archive)
    assert not check_archive(local_place.open()).problems
    assert everything(local_place.open()) != before


def test_killed_at_any_point_gc_deletes_nothing_that_is_named(
    local_place: Place, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = local_place.open()
    policy(archive)
    left = everything(archive)
    age_all(local_place)
    pruned = Path(shutil.copytree(local_place.folder, tmp_path / "pruned"))
    monkeypatch.setattr(type(archive.catalog), "recent_paths", lambda *_: set())
    monkeypatch.setattr("maxbrod.inspect.garbage._DELETED_AT_ONCE", 4)
    expired(archive, monkeypatch)
    for found, point in sweep(
        local_place, pruned, lambda each: collect_garbage(each, delete=True, trust_clock=True), monkeypatch
    ):
        assert everything(found) == left, point
        assert not check_archive(found).problems, point
        collect_garbage(found, delete=True, trust_clock=True)
        assert list(found.storage.list("prunes")) == []


def test_killed_at_any_point_a_hold_is_in_force_or_was_never_promised(
    local_place: Place, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hold(archive: Archive) -> object:
        return add_hold(archive, who="me", why="audit", topics=["orders"])

    seen: list[bool] = []
    for found, point in sweep(local_place, template, hold, monkeypatch):
        seen.append(bool(read_holds(found.storage)))
        report = prune(found, older_days=5, apply=False)
        assert (report.going.segments == 0) == seen[-1], point
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (False, True)
