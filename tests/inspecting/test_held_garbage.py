"""What the store does not let go is held, with its bytes and its date, and stops no sweep."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.cli.main import run as command
from maxbrod.config import StorageConfig
from maxbrod.errors import EXIT_DONE
from maxbrod.inspect.garbage import GarbageReport, collect_garbage
from maxbrod.model import now_ms
from maxbrod.sandbox.s3 import S3Server
from maxbrod.storage.stores import open_storage
from maxbrod.work.held import HIDDEN
from support.immutable_s3 import LockingS3Server, VersionedS3Server
from support.native_archives import Making
from support.native_logs import data_batch

DAY_MS = 24 * 3600 * 1000
ORPHANS = [f"snapshots/run-{number}.json.zst" for number in range(5)]


def make(server: S3Server, options: StorageConfig) -> str:
    """An archive with a run."""
    url = f"{server.url}/archive"
    Making(url, options).run({0: [data_batch(0, 3)]}, run_id="run")
    return url


def put_old(server: S3Server, url: str, path: str, options: StorageConfig) -> None:
    """The server keeps objects as files, which can be made older than they are."""
    open_storage(url, options).put(path, b"garbage")
    when = time.time() - 2 * 24 * 3600
    os.utime(server.object_path(f"archive/{path}"), (when, when))


def sweep(url: str, options: StorageConfig) -> GarbageReport:
    return collect_garbage(open_archive(url, options), delete=True, trust_clock=True)


def test_a_locked_object_in_the_middle_of_a_sweep_is_held_until_its_date_and_the_others_go(
    locking_s3: LockingS3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, locking = locking_s3.config(), locking_s3.config(lock="30d", lock_mode="compliance")
    url = make(locking_s3, plain)
    for path in ORPHANS:
        put_old(locking_s3, url, path, locking if path == ORPHANS[2] else plain)
    report = sweep(url, plain)
    assert report.exit_code == EXIT_DONE
    assert [item.path for item in report.held_objects] == [ORPHANS[2]]
    held = report.held_objects[0]
    assert (held.size, report.held_bytes) == (7, 7)
    assert abs((held.until_ms or 0) - now_ms() - 30 * DAY_MS) < 600_000
    left = {info.path for info in open_storage(url, plain).list("snapshots")}
    assert left & set(ORPHANS) == {ORPHANS[2]}
    file = tmp_path / "maxbrod.yaml"
    file.write_text(json.dumps({"storage": locking_s3.storage_section()}))
    file.chmod(0o600)
    assert command(["gc", "-a", url, "-c", str(file), "--delete", "--trust-clock"]) == EXIT_DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "1 object of 7 B is held until" in said


def test_an_object_that_the_bucket_locks_by_itself_is_held_too(locking_s3: LockingS3Server) -> None:
    url = make(locking_s3, locking_s3.config())
    put_old(locking_s3, url, ORPHANS[0], locking_s3.config())
    locking_s3.lock_by_default("governance", 10)
    report = sweep(url, locking_s3.config())
    held, probe = sorted(report.held_objects, key=lambda item: item.path, reverse=True)
    assert (held.path, probe.path.split("/")[0]) == (ORPHANS[0], "probes")
    # Two days of the ten are over.
    assert abs((held.until_ms or 0) - now_ms() - 8 * DAY_MS) < 600_000


def test_in_a_bucket_that_keeps_versions_a_deletion_frees_nothing_and_the_report_says_so(
    versioned_s3: VersionedS3Server,
) -> None:
    plain, locking = versioned_s3.config(), versioned_s3.config(lock="30d")
    url = make(versioned_s3, plain)
    for path in ORPHANS[:2]:
        put_old(versioned_s3, url, path, locking if path == ORPHANS[1] else plain)
    report = sweep(url, plain)
    assert {info.path for info in open_storage(url, plain).list("snapshots")} & set(ORPHANS) == set()
    assert [(item.path, item.reason) for item in report.held_objects] == [(path, HIDDEN) for path in ORPHANS[:2]]
    assert [item.until_ms is None for item in report.held_objects] == [True, False]
    assert report.held_bytes == report.bytes == 14


@pytest.mark.parametrize("means", ["policy", "create_only"])
def test_who_may_delete_nothing_is_told_what_stays(locking_s3: LockingS3Server, means: str) -> None:
    url = make(locking_s3, locking_s3.config())
    for path in ORPHANS:
        put_old(locking_s3, url, path, locking_s3.config())
    section: dict[str, Any] = {**locking_s3.storage_section(), "create_only": True}
    if means == "policy":
        section = locking_s3.add_user("writer", allowed=("s3:ListBucket", "s3:GetObject", "s3:PutObject"))
    report = sweep(url, StorageConfig.model_validate(section))
    held = {item.path: item for item in report.held_objects}
    assert set(ORPHANS) <= set(held)
    assert [item.until_ms for item in held.values()] == [None] * len(held)
    assert {item.path for item in open_storage(url, locking_s3.config()).list("snapshots")} >= set(ORPHANS)
