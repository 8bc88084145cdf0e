"""Starts `backup.program` and talks to it: backups in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.s3 import LyingS3Server, S3Server


def s3_section(server: S3Server | LyingS3Server, *, endpoint: str | None = None, **storage: Any) -> dict[str, Any]:
    """The section `storage` of a configuration, with its secrets."""
    keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
    return {"s3": {"endpoint": endpoint or server.endpoint, "region": server.region, **keys}, **storage}


class Driver:
    """Runs one backup at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, archive: object, point: int = -1) -> dict[str, Any]:
        self.start(archive, point)
        return self.wait()

    def start(self, archive: object, point: int = -1) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{archive} {point}\n")
        self._process.stdin.flush()

    def wait(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        said: dict[str, Any] = {}
        while (line := self._process.stdout.readline().strip()) != ".":
            assert line, "the program has died"
            said = json.loads(line)
        return said


@contextmanager
def driver(cluster: Cluster, topic: str, storage: dict[str, Any] | None = None, **request: Any) -> Iterator[Driver]:
    """`request` is the section `backup`."""
    config = {
        "kafka": {"bootstrap": cluster.bootstrap},
        "storage": storage or {},
        "backup": {"topics": [topic], **request},
    }
    with subprocess.Popen(
        [sys.executable, "-m", "backup.program"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(config)}\n")
        process.stdin.flush()
        try:
            yield Driver(process)
        finally:
            process.stdin.close()
