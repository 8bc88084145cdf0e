"""kill -9 of the driver before and after every put and around every commit: nothing half, nothing twice, goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backup.ledger import Ledger
from backup.oracle import Holding, read_archive
from fixtures_storage import s3_options
from maxbrod.sandbox.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.config import StorageConfig
    from maxbrod.sandbox.cluster import Cluster

POINTS_MAX = 200


class Runner:
    """Runs of `backup.killed`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, archive: str, point: int = -1) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{archive} {point}\n")
        self._process.stdin.flush()
        said = ""
        while (line := self._process.stdout.readline().strip()) != ".":
            assert line or self._process.poll() is None
            said = line
        return said


@contextmanager
def runner(cluster: Cluster, topic: str, storage: dict[str, Any], **wish: Any) -> Iterator[Runner]:
    config = {"kafka": {"bootstrap": cluster.bootstrap}, "storage": storage, "backup": {"topics": [topic], **wish}}
    with subprocess.Popen(
        [sys.executable, "-m", "backup.killed"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(config)}\n")
        yield Runner(process)
        process.stdin.close()


def holding(archive: str, options: StorageConfig | None) -> Holding | None:
    """What a reader sees; None while there is no archive yet."""
    try:
        return read_archive(archive, options)
    except Exception as error:
        if "TableNotFound" not in type(error).__name__:
            raise
        return None


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_killed_at_any_point_a_backup_leaves_a_true_archive_and_the_next_run_completes_it(
    cluster: Cluster, topic: str, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    create_topic(cluster, topic, partitions=2, config={"retention.ms": "-1"})
    ledger = Ledger()
    ledger.write(cluster, topic, 240, batch=20)
    ledger.write(cluster, topic, 30, partition=1)
    place, options, storage = str(tmp_path), None, {}
    if kind == "s3":
        server = request.getfixturevalue("s3")
        place, options = server.url, s3_options(server)
        keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key}
        storage = {"s3": {"endpoint": server.endpoint, "region": server.region, **keys}}
    met: list[str] = []
    with runner(cluster, topic, storage, commit_bytes=12_000, segment_records=60) as driver:
        for point in range(POINTS_MAX):
            archive = f"{place}/archive-{point}"
            met.append(driver.run(archive, point))
            seen = holding(archive, options)
            if seen is not None:
                seen.assert_prefix_of(ledger)
            assert driver.run(archive) == "0", met[-1]
            read_archive(archive, options).assert_equals(ledger)
            if not met[-1].startswith("killed"):
                break
    assert met[-1] == "0"
    for call in ("create_table", "commit", "write", "create_write_transaction"):
        assert {f"killed before {call}", f"killed after {call}"} <= set(met)
    # Several objects, and more than one commit.
    assert met.count("killed after commit") >= 4
    assert met.count("killed after create_write_transaction") >= 2
