"""Ctrl-C, and a JVM that dies, end a query at once, and nobody sees a traceback. In processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from maxbrod.sandbox.process import wait_for
from support.table_queries import make

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.full

ENDLESS = "SELECT sum(r.id % 7 * o.offset) FROM range(1000000000000) r CROSS JOIN orders o WHERE o.offset < 30"


def with_worker(pid: int) -> list[psutil.Process]:
    """All that the process has started, once Spark has started Python to read."""
    family = psutil.Process(pid).children(recursive=True)
    return family if any("pyspark.daemon" in _command(each) for each in family) else []


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def started(archive: Path, *arguments: str) -> subprocess.Popen[str]:
    # Without its last segment the driver cannot hold the table, so that tasks in Python read what the query needs.
    max(archive.rglob("segments/orders/**/*.log")).unlink()
    return subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "query", str(archive), ENDLESS, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def test_a_jvm_that_is_killed_is_one_json_document_and_no_traceback(tmp_path: Path) -> None:
    process = started(make(tmp_path / "archive"), "--json")
    try:
        family = wait_for("a worker of Spark's", lambda: with_worker(process.pid), timeout_s=240)
        (jvm,) = (each for each in family if each.name() == "java")
        jvm.kill()
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    document = json.loads(out)
    told = (document["error"], document["exit_code"], document["retryable"])
    assert told == ("UnavailableError", 1, True), (document, err)
    assert (process.returncode, "Traceback" in err, "py4j" in err) == (1, False, False), err
    assert not psutil.wait_procs(family, timeout=60)[1]


def test_ctrl_c_ends_a_query_and_all_that_it_started(tmp_path: Path) -> None:
    process = started(make(tmp_path / "archive"), "--output", "json")
    try:
        family = wait_for("a worker of Spark's", lambda: with_worker(process.pid), timeout_s=240)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGINT
    assert (out, err) == ("", "")
    assert not psutil.wait_procs(family, timeout=60)[1]
