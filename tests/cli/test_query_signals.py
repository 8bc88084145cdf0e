"""Ctrl-C ends a query at once: nothing of it goes on, and nobody sees a traceback. In a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil

from datasource.test_query import make
from maxbrod.sandbox.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

ENDLESS = "SELECT sum(a.id * b.id % 7) FROM range(1000000000) a CROSS JOIN range(1000000000) b"


def test_ctrl_c_ends_a_query_and_all_that_it_started(tmp_path: Path) -> None:
    archive, log = make(tmp_path / "archive"), tmp_path / "spark.log"
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "query", str(archive), ENDLESS, "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "MAXBROD_SPARK_LOG": str(log)},
    )
    try:
        running = "Running task"
        wait_for("a task", lambda: log.exists() and running in log.read_text(errors="replace"), timeout_s=240)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode in {1, 130}
    assert (out, "Traceback" in err) == ("", False)
    assert not psutil.wait_procs(family, timeout=60)[1]
