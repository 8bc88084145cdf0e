"""Killed before or after anything that changes the target, a copy is an older state of the source, sound and whole.

In process: what a kill would end is ended by an exception that nothing catches. The source is never changed, but for
the record of a copy that has ended.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.catalog.log import LOG_FOLDER
from maxbrod.check.run import check_archive
from maxbrod.errors import CorruptDataError, NoArchiveError
from maxbrod.storage.local import LocalStorage, _LocalWriter
from support.copies import copy, run_of_topics
from support.kill_sweeps import POINTS_MAX, Fate, Killed
from support.native_archives import Making, Seen, compact, look
from support.native_logs import data_batch
from support.sparkless import Here

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

POINTS: tuple[tuple[Any, str], ...] = (
    (_LocalWriter, "commit"),
    (LocalStorage, "replace"),
    (LocalStorage, "delete"),
)


def state(folder: Path) -> Seen | None:
    """What a reader sees, and None before the first copy has ended. Whatever is there passes a check."""
    try:
        archive = open_archive(str(folder))
    except (NoArchiveError, CorruptDataError):
        assert not list((folder / LOG_FOLDER).glob("*.parquet"))
        return None
    assert check_archive(archive).exit_code == 0
    return look(folder)


def small(url: Path) -> Making:
    making = Making(str(url))
    run_of_topics(making, {"a": 0, "b": 0})
    making.run({0: [data_batch(0, 3)]}, packed=False)
    return making


@pytest.mark.parametrize("options", [{}, {"topics": ["orders", "a"]}], ids=["whole", "chosen"])
def test_killed_at_any_point_a_copy_is_an_older_state_and_the_next_one_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    source, first = tmp_path / "a", tmp_path / "first"
    making = small(source)
    copy(source, first, executor=Here(), **options)
    states = [None, state(first)]
    shutil.copytree(source, tmp_path / "before")
    run_of_topics(making, {"a": 3, "b": 3})
    compact(source, topics=["b"])
    copy(source, tmp_path / "last", executor=Here(), **options)
    states.append(state(tmp_path / "last"))
    assert states[1] != states[2]

    sweeps = [("more", source, 1)] if options else [("new", tmp_path / "before", 0), ("more", source, 1)]
    for name, given, then in sweeps:
        met: list[str] = []
        for point in range(POINTS_MAX):
            place = tmp_path / f"{name}-{point}"
            if then:
                shutil.copytree(first, place)
            fate = Fate(point)
            with monkeypatch.context() as patched:
                for owner, call in POINTS:
                    patched.setattr(owner, call, fate.around(call, getattr(owner, call)))
                try:
                    copy(given, place, executor=Here(), **options)
                except Killed:
                    met.append(str(fate.met))
            found = state(place)
            assert found in states[then : then + 2]
            # Before and after one effect differ in nothing that the next copy sees, but for the first and the last.
            if point % 2 or fate.met is None:
                assert copy(source, place, executor=Here(), **options).exit_code == 0
                assert look(place) == states[2]
            if fate.met is None:
                break
        else:
            raise AssertionError("the copy has more points than the sweep")
        assert {"before commit", "after commit"} <= set(met)
