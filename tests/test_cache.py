from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from maxbrod.private_files import cache_dir, cache_path, filled

if TYPE_CHECKING:
    from pathlib import Path

# Forked children would inherit the test run's threads.
PROCESSES = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MAXBROD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def fill_slowly(folder: Path) -> None:
    (folder / "half").touch()
    time.sleep(0.5)
    (folder / f"filled-by-{os.getpid()}").touch()


def fill_for_ever(folder: Path) -> None:
    (folder / "half").touch()
    time.sleep(600)


def fill(name: str) -> None:
    filled(name, fill_slowly)


def stall(name: str) -> None:
    filled(name, fill_for_ever)


def test_the_environment_says_where_the_cache_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    monkeypatch.delenv("MAXBROD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert cache_path() == cache / "maxbrod"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(cache))
    assert cache_path() == cache / ".cache" / "maxbrod"


def test_two_processes_at_once_fill_a_folder_once() -> None:
    processes = [PROCESSES.Process(target=fill, args=("thing",)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list((cache_dir() / "thing").glob("filled-by-*"))) == 1


def test_a_killed_filler_leaves_nothing_half_made_and_blocks_nobody() -> None:
    victim = PROCESSES.Process(target=stall, args=("thing",))
    victim.start()
    while not list(cache_dir().glob(".thing-*/half")):
        time.sleep(0.02)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    assert not (cache_dir() / "thing").exists()
    fill("thing")
    assert (cache_dir() / "thing" / f"filled-by-{os.getpid()}").exists()
    assert not list(cache_dir().glob(".thing-*"))


def test_a_filler_that_fails_leaves_nothing() -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        filled("thing", fail)
    assert [path.name for path in cache_dir().iterdir()] == ["thing.lock"]
