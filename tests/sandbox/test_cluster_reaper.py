"""No process and no folder outlives its owner, and no process of somebody else is ever signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.process import CLOSING, Process, launch, reap, start_reaper, wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full

OWNER = """
import sys, time
from maxbrod.sandbox.cluster import Cluster
with Cluster.start(sys.argv[1], brokers=int(sys.argv[2])) as cluster:
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path) -> Iterator[None]:
    """These tests are about processes that are left: one that fails must not leave them for good."""
    yield
    for process in processes_of(tmp_path):
        process.kill()


def processes_of(folder: Path) -> list[psutil.Process]:
    def mentions(process: psutil.Process) -> bool:
        try:
            return any(str(folder) in argument for argument in process.cmdline())
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if mentions(process)]


def start_owner(folder: Path, brokers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, str(folder), str(brokers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_and_see_everything_gone(owner: subprocess.Popen[str], folder: Path) -> None:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_for("everything to be gone", lambda: not processes_of(folder) and not folder.exists(), timeout_s=60)


def test_a_removal_that_takes_longer_than_the_limit_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is about what comes back again and again, and not about a slow disk."""
    monkeypatch.setattr("maxbrod.sandbox.process._REMOVE_TIMEOUT_S", 0)
    folder = tmp_path / "cluster"
    (folder / "broker-1").mkdir(parents=True)
    (folder / "state.json").touch()
    reap(folder)
    assert not folder.exists()


def test_brokers_die_with_an_owner_that_was_killed(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    owner = start_owner(folder, brokers=2)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    # Two brokers, the controller, the reaper and the owner itself.
    assert len(processes_of(folder)) == 5
    kill_and_see_everything_gone(owner, folder)


@pytest.mark.parametrize("started", [0, 1, 2])
def test_brokers_die_with_an_owner_that_was_killed_while_it_started_them(tmp_path: Path, started: int) -> None:
    folder = tmp_path / "c"
    owner = start_owner(folder, brokers=2)
    wait_for("the owner to start its reaper", lambda: len(processes_of(folder)) >= 2, timeout_s=60)
    wait_for("the owner to start nodes", lambda: len(list(folder.glob("*/pid"))) >= started, timeout_s=60)
    kill_and_see_everything_gone(owner, folder)


def test_the_end_of_the_owner_is_seen_even_by_an_owner_without_goodbye(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    home = folder / "node"
    home.mkdir(parents=True)
    reaper = start_reaper(folder)
    sleeper = launch(["tail", "-f", str(home / "pid")], home=home, output=folder / "output.log")
    alive_before = sleeper.alive
    reaper.communicate()
    assert (alive_before, sleeper.alive, folder.exists()) == (True, False, False)


def test_nothing_starts_in_a_folder_that_is_being_closed(tmp_path: Path) -> None:
    home = tmp_path / "node"
    home.mkdir()
    (tmp_path / CLOSING).touch()
    late = launch(["touch", str(tmp_path / "ran")], home=home, output=tmp_path / "output.log")
    wait_for("the end of it", lambda: not late.alive, timeout_s=60)
    assert not (tmp_path / "ran").exists()


def test_a_recycled_pid_is_never_killed(tmp_path: Path) -> None:
    home = tmp_path / "node"
    home.mkdir()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        (home / "pid").write_text(f"{stranger.pid} 12345\n")
        process = Process(home / "pid")
        assert not process.alive
        process.kill()
        process.suspend()
        reap(tmp_path, keep=True)
        time.sleep(0.1)
        assert psutil.Process(stranger.pid).status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        stranger.kill()


def test_a_suspended_process_can_be_stopped(tmp_path: Path) -> None:
    home = tmp_path / "node"
    home.mkdir()
    process = launch(["tail", "-f", str(home / "pid")], home=home, output=tmp_path / "output.log")
    process.suspend()
    wait_for("suspension", lambda: process.suspended, timeout_s=60)
    process.stop(timeout_s=60)
    assert not process.alive


def test_a_launched_process_inherits_no_descriptor(tmp_path: Path) -> None:
    home = tmp_path / "node"
    home.mkdir()
    with Path("/dev/null").open() as leak:
        os.set_inheritable(leak.fileno(), True)
        process = launch(["tail", "-f", str(home / "pid")], home=home, output=tmp_path / "output.log")
        wait_for("the program", lambda: psutil.Process(process.pid).name() == "tail", timeout_s=60)
        assert leak.fileno() not in {int(fd.name) for fd in Path(f"/proc/{process.pid}/fd").iterdir()}
    process.kill()


def test_a_killed_broker_leaves_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its codecs are native libraries, which a JVM unpacks somewhere and a killed one never removes."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={temporary}")
    with Cluster.start(tmp_path / "c") as cluster:
        create_topic(cluster, "t", config={"compression.type": "lz4"})
        produce(cluster, "t", numbered(10))
        assert list((tmp_path / "c").glob("*/tmp/*lz4*")) != []
        cluster.kill(cluster.broker_ids[0])
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("hsperfdata")] == []
