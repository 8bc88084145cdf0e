"""`maxbrod run` as users have it: a process, a real cluster, signals, `kill -9` in the middle of a slot."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import yaml

from maxbrod.archive.archive import open_archive
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.schedule.state import INTERRUPTED, ScheduleState, read_state
from maxbrod.storage.stores import open_storage
from support.message_servers import eventually
from support.native_archives import Making
from support.native_logs import data_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full


@contextmanager
def started(file: Path, *flags: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "run", "-c", str(file), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, **variables},
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            process.kill()


def lines_of(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The documents that it has printed, after its end. Nothing that it started is left."""
    family = psutil.Process(process.pid).children(recursive=True)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE] == []
    return [json.loads(line) for line in output.splitlines()]


def state_of(archive: Path) -> ScheduleState:
    return read_state(open_storage(str(archive))) or ScheduleState()


def write(file: Path, **document: Any) -> Path:
    run = {"takeover": "2s"}
    file.write_text(yaml.safe_dump({"archive": str(file.parent / "archive"), "run": run, **document}))
    return file


def test_a_slot_is_begun_once_whatever_ends_the_scheduler(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(200))
    archive = tmp_path / "archive"
    kafka = {"kafka": {"bootstrap": cluster.bootstrap}, "backup": {"topics": [topic]}}
    jobs = {
        "live": {"verb": "backup", "every": "2s"},
        "bad": {"verb": "check", "every": "1s", "archive": str(tmp_path / "nothing")},
    }
    following = {"verb": "backup", "archive": str(tmp_path / "followed"), "options": {"follow": True, "every": "1s"}}
    file = write(tmp_path / "maxbrod.yaml", jobs={**jobs, "follower": following}, **kafka)
    # Three jobs, of which one fails and one follows; ended in order while the others go on.
    with started(file, "--json") as process:
        eventually(lambda: [bool(job.last) for job in state_of(archive).jobs.values()] == [True] * 3)
        process.send_signal(signal.SIGTERM)
        first = lines_of(process)
    assert {line["job"]: line["exit_code"] for line in first} == {"live": 0, "bad": 2, "follower": 0}
    assert end_offsets(tmp_path / "followed") == {0: 200}
    assert state_of(archive).instance is None
    # Killed in the middle of a slot: a rate that the records cannot be read with in time.
    produce(cluster, topic, numbered(2000, first=200))
    slow = {"live": {**jobs["live"], "options": {"rate_bytes_per_s": 100}}}
    with started(write(file, jobs=slow, **kafka), "--json") as process:
        eventually(lambda: state_of(archive).jobs["live"].running_since_ms is not None)
        killed = state_of(archive).jobs["live"].slot_ms
        process.kill()
        output, _ = process.communicate()
    assert output == ""
    # The next one waits until the killed one is known to be gone, and does not begin the slot again.
    with started(write(file, jobs=jobs, **kafka), "--json") as process:
        eventually(lambda: state_of(archive).jobs["live"].last_success_ms is not None and ended_well(archive, killed))
        process.send_signal(signal.SIGTERM)
        last = lines_of(process)
    slots = [line["slot_ms"] for line in (*first, *last) if line["job"] == "live"]
    assert killed not in slots
    assert len(slots) == len(set(slots))
    verdicts = [outcome.verdict for outcome in state_of(archive).jobs["live"].recent]
    assert INTERRUPTED in verdicts
    # What the killed run had not committed, the next slot has archived.
    assert end_offsets(archive) == {0: 2200}


def end_offsets(archive: Path) -> dict[int, int]:
    positions = open_archive(str(archive)).catalog.positions()
    return {place.partition: found.end_offset for place, found in positions.items()}


def ended_well(archive: Path, slot: int | None) -> bool:
    last = state_of(archive).jobs["live"].last
    return last is not None and last.good and last.slot_ms != slot and (last.slot_ms or 0) > (slot or 0)


def test_systemd_and_signals_are_obeyed(tmp_path: Path) -> None:
    """READY at the start, WATCHDOG while it lives, RELOADING and READY for SIGHUP, STOPPING and exit 0 at the end."""
    Making(str(tmp_path / "archive")).run({0: [data_batch(0, 3)]})
    file = write(tmp_path / "maxbrod.yaml", jobs={"good": {"verb": "check", "every": "1s"}})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(60)

        def heard(word: str) -> None:
            while word not in server.recv(1000).decode():
                pass

        with started(file, "--json", NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="300000") as process:
            heard("READY=1")
            heard("WATCHDOG=1")
            eventually(lambda: "good" in state_of(tmp_path / "archive").jobs)
            file.write_text("jobs: 1\n")
            process.send_signal(signal.SIGHUP)
            heard("RELOADING=1")
            heard("READY=1")
            assert process.poll() is None
            write(file, jobs={"other": {"verb": "check", "every": "1s"}})
            process.send_signal(signal.SIGHUP)
            eventually(lambda: "other" in state_of(tmp_path / "archive").jobs)
            process.send_signal(signal.SIGTERM)
            heard("STOPPING=1")
            output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "the old one stays in force" in errors
    assert {json.loads(line)["job"] for line in output.splitlines()} <= {"good", "other"}


def test_one_job_is_run_now_and_jobs_are_listed(tmp_path: Path) -> None:
    Making(str(tmp_path / "archive")).run({0: [data_batch(0, 3)]})
    jobs = {
        "good": {"verb": "check", "cron": "0 3 1 1 *", "zone": "Europe/Berlin"},
        "bad": {"verb": "check", "every": "30m", "archive": str(tmp_path / "nothing")},
    }
    file = write(tmp_path / "maxbrod.yaml", jobs=jobs)
    codes = {}
    for job in jobs:
        with started(file, "--once", job, "--json") as process:
            document = json.loads(process.communicate(timeout=60)[0])
        codes[job] = (process.returncode, document["exit_code"], document["verdict"])
    assert codes == {"good": (0, 0, "complete"), "bad": (2, 2, "wrong usage")}
    # It takes no slot.
    assert not (tmp_path / "archive" / ".maxbrod").exists()
    with started(file, "--list", "--json") as process:
        listed = json.loads(process.communicate(timeout=60)[0])
    assert {job["name"]: job["when"] for job in listed["jobs"]} == {
        "good": "0 3 1 1 * Europe/Berlin",
        "bad": "every 30m",
    }
    assert all(job["next_ms"] is not None and job["last_exit_code"] is None for job in listed["jobs"])
