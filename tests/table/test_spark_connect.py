"""The table and its stream over Spark Connect: a real server, and a client that has nothing of Spark but that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from native_logs import data_batch

from maxbrod.layouts.kafka.slices import SegmentLimits
from table.archives import write

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.full

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
PROGRAM = [sys.executable, "-m", "table.drivers"]


@contextmanager
def server() -> Iterator[str]:
    """Its port. Nothing of it is left afterwards."""
    with subprocess.Popen(
        [*PROGRAM, "serve"], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server has not started"
        started = psutil.Process(process.pid).children(recursive=True)
        try:
            yield port
        finally:
            process.stdin.close()
            process.wait()
    assert psutil.wait_procs(started, timeout=60)[1] == []


def test_the_table_and_its_stream_work_over_spark_connect(tmp_path: Path) -> None:
    batches = [data_batch(base, 5) for base in range(0, 100, 5)]
    write(tmp_path / "whole", batches, limits=SegmentLimits(records_max=10))
    rows = write(tmp_path / "sparse", batches, limits=SegmentLimits(records_max=10))
    for row in rows:
        if not row.base_offset <= 57 < row.end_offset:
            (tmp_path / "sparse" / row.path).unlink()
    with server() as port:
        arguments = ["connect", port, *(str(tmp_path / name) for name in ("whole", "sparse", "scratch"))]
        client = subprocess.run([*PROGRAM, *arguments], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert client.returncode == 0, client.stderr
    assert json.loads(client.stdout) == {
        "unregistered": 10,
        "asked": [{"records": 100, "value": "value", "told": 100}],
        "point": [57],
        "twice": [30, 100, 10, 7] * 3,
        "written": 100,
        "stream": [*range(100)],
        "batches": 2,
    }
