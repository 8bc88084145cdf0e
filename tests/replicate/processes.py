"""Instances of ingress and egress in processes of their own, which tests stop, continue and kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.traffic import numbered, produce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster


def produce_small_batches(cluster: Cluster, topic: str, count: int, *, first: int = 0, **config: Any) -> None:
    produce(cluster, topic, numbered(count, first=first), batch_size=400, **config)


@contextmanager
def ingress_program(config: Config, *words: str, stop_at: int) -> Iterator[subprocess.Popen[str]]:
    document = config.model_dump(mode="json", include={"archive", "kafka", "replicate"})
    command = [sys.executable, "-m", "replicate.program", json.dumps(document), str(stop_at), *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def egress_program(config: Config, flag: Path) -> Iterator[subprocess.Popen[str]]:
    """It stops itself before it commits records, once `flag` exists, and tells what became of that run."""
    document = config.model_dump(mode="json", include={"archive", "kafka", "backup", "replicate"})
    command = [sys.executable, "-m", "replicate.egress_program", json.dumps(document), str(flag)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def told(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdout is not None
    states: dict[str, int] = json.loads(process.stdout.readline())
    return states


def wait_until_stopped(process: subprocess.Popen[str]) -> None:
    stat = Path(f"/proc/{process.pid}/stat")
    wait_for("a stopped process", lambda: stat.read_text().rpartition(") ")[2].startswith("T"), timeout_s=120)
