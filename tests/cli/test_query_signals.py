"""Ctrl-C ends a query at once: nothing of it goes on, and nobody sees a traceback. In a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from datasource.test_query import make
from maxbrod.sandbox.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

ENDLESS = "SELECT sum(r.id % 7 * o.offset) FROM range(1000000000000) r CROSS JOIN orders o"


def with_worker(pid: int) -> list[psutil.Process]:
    """All that the process has started, once Spark has started Python to read."""
    family = psutil.Process(pid).children(recursive=True)
    return family if any("pyspark.daemon" in _command(each) for each in family) else []


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def test_ctrl_c_ends_a_query_and_all_that_it_started(tmp_path: Path) -> None:
    archive = make(tmp_path / "archive")
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "query", str(archive), ENDLESS, "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        family = wait_for("a worker of Spark's", lambda: with_worker(process.pid), timeout_s=240)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert (out, err) == ("", "")
    assert not psutil.wait_procs(family, timeout=60)[1]
