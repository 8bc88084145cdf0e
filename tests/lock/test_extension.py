"""The locks of what an archive needs are extended, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from maxbrod.cli.main import run as command
from maxbrod.config import Config, StorageConfig
from maxbrod.errors import EXIT_DONE, EXIT_INCOMPLETE, RefusedError, UsageError
from maxbrod.lock.report import LockReport
from maxbrod.lock.verb import extend_archive_locks, show_archive_locks
from maxbrod.model import now_ms
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch, Latency, Watch
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.sandbox.s3 import S3Server
from maxbrod.storage.bucket import Bucket, ObjectLock
from maxbrod.storage.sealing.identity import new_identity
from maxbrod.storage.stores import open_bucket, open_storage
from maxbrod.work.work import Work
from support.immutable_s3 import LockingS3Server
from support.native_archives import Making
from support.native_logs import data_batch
from support.storages import s3_options

DAY_MS = 24 * 3600 * 1000
SETTING = HttpMatch("PUT", r"\?retention")


@dataclass
class Locked:
    """An archive of two runs, locked for a day, and an object that no row names."""

    server: LockingS3Server
    url: str
    making: Making

    def config(self, *, endpoint: str | None = None, **options: Any) -> Config:
        return Config.model_validate(
            {"archive": self.url, "storage": self.server.storage_section(endpoint=endpoint), "lock": options}
        )

    def extend(self, *, endpoint: str | None = None, **options: Any) -> LockReport:
        with Work(self.config(endpoint=endpoint, **options)) as work:
            return extend_archive_locks(work)

    def ends(self) -> dict[str, int]:
        """When the lock of each object ends."""
        bucket = open_bucket(self.url, self.server.config())
        assert bucket is not None
        paths = [info.path for info in self.making.archive.storage.list()]
        return {path: lock.until_ms for path in paths if (lock := bucket.lock_of(path)) is not None}


@pytest.fixture
def locked(locking_s3: LockingS3Server) -> Locked:
    url = f"{locking_s3.url}/archive"
    making = Making(url, locking_s3.config(lock="1d"))
    making.run({0: [data_batch(0, 3)]}, packed=False)
    making.run({0: [data_batch(3, 3)]}, packed=False)
    making.run({0: [data_batch(6, 3)]}, packed=False, commit=False)
    return Locked(locking_s3, url, making)


def test_what_the_archive_needs_is_extended_and_garbage_is_not(locked: Locked) -> None:
    before = locked.ends()
    report = locked.extend(for_="30d")
    assert (report.exit_code, report.refused, report.left) == (EXIT_DONE, (), 0)
    assert report.until_ms is not None
    after = locked.ends()
    extended = {path for path, end in after.items() if end == report.until_ms}
    assert extended == set(before) - {path for path in before if after[path] == before[path]}
    assert (report.extended.objects, report.needed.objects) == (len(extended), len(extended))
    assert report.not_needed.objects == len(before) - len(extended)
    assert {path.split("/")[0] for path in extended} == {"catalog", "ledger", "segments"}
    assert sum(path.startswith("segments/") for path in extended) == 2
    assert report.first_end_ms == report.until_ms

    again = locked.extend(until=str(report.until_ms))
    assert (again.extended.objects, again.lasting.objects) == (0, len(extended))


def test_no_lock_is_shortened_and_a_dry_run_changes_nothing(locked: Locked) -> None:
    locked.extend(for_="30d")
    before = locked.ends()
    assert locked.extend(for_="2d").extended.objects == 0
    planned = locked.extend(for_="60d", dry_run=True)
    assert planned.extended.objects == planned.needed.objects
    assert locked.ends() == before


def test_objects_without_a_lock_get_one_of_the_mode_that_is_asked_for(locking_s3: LockingS3Server) -> None:
    url = f"{locking_s3.url}/plain"
    making = Making(url, locking_s3.config())
    making.run({0: [data_batch(0, 3)]})
    plain = Locked(locking_s3, url, making)
    config = Config.model_validate(
        {
            "archive": url,
            "storage": {**locking_s3.storage_section(), "lock_mode": "compliance"},
            "lock": {"for_": "10d"},
        }
    )
    with Work(config) as work:
        shown = show_archive_locks(work)
        report = extend_archive_locks(work)
    assert shown.unlocked == shown.needed
    assert report.extended == report.needed
    bucket = open_bucket(url, locking_s3.config())
    assert bucket is not None
    assert {lock.mode for path in plain.ends() if (lock := bucket.lock_of(path)) is not None} == {"compliance"}


def test_an_encrypted_archive_is_locked_with_its_keys_and_under_its_hidden_names(locking_s3: LockingS3Server) -> None:
    identity = new_identity()
    url, keys = f"{locking_s3.url}/secret", {"secret_key": identity.private_text}
    section = {**locking_s3.storage_section(), "encryption": keys}
    making = Making(url, StorageConfig.model_validate({**section, "create_only": True}))
    making.run({0: [data_batch(0, 3)]}, packed=False)
    config = Config.model_validate({"archive": url, "storage": section, "lock": {"for_": "10d"}})
    with Work(config) as work:
        report = extend_archive_locks(work)
    assert (report.refused, report.gone, report.extended) == ((), 0, report.needed)
    bucket = open_bucket(url, locking_s3.config())
    assert bucket is not None
    stored = [info.path for info in open_storage(url, locking_s3.config()).list()]
    unlocked = {path.split("/")[0] for path in stored if bucket.lock_of(path) is None}
    assert unlocked == {"probes"}
    assert {"keys", "segments"} <= {path.split("/")[0] for path in stored}
    assert not any("orders" in path for path in stored)


def test_a_refused_lock_stops_no_other_and_is_told(locked: Locked) -> None:
    with FaultProxy(locked.server.address, protocol="http") as proxy:
        segment = next(path for path in locked.ends() if path.startswith("segments/"))
        refusal = AnswerError(
            on=HttpMatch("PUT", rf"{segment}\?retention"), status=403, code="AccessDenied", message="no"
        )
        proxy.add(refusal)
        report = locked.extend(endpoint=proxy.endpoint, for_="30d")
    assert report.exit_code == EXIT_INCOMPLETE
    assert [refused.path for refused in report.refused] == [segment]
    assert "s3:PutObjectRetention" in report.refused[0].reason
    assert report.extended.objects == report.needed.objects - 1
    assert locked.extend(until=str(report.until_ms)).extended.objects == 1


def test_two_at_once_leave_every_lock_at_the_later_time(locked: Locked) -> None:
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda days: locked.extend(for_=f"{days}d"), [30, 40]))
    assert [report.exit_code for report in reports] == [EXIT_DONE] * 2
    ends = locked.ends()
    assert sum(end == reports[1].until_ms for end in ends.values()) == reports[1].needed.objects


def test_a_lock_that_somebody_else_extends_meanwhile_is_left_and_counts(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(path for path in locked.ends() if path.startswith("segments/"))
    set_lock, later_ms = Bucket.set_lock, now_ms() // 1000 * 1000 + 90 * DAY_MS

    def overtaken(bucket: Bucket, where: str, lock: ObjectLock) -> None:
        if where == path:
            set_lock(bucket, where, replace(lock, until_ms=later_ms))
        set_lock(bucket, where, lock)

    monkeypatch.setattr(Bucket, "set_lock", overtaken)
    report = locked.extend(for_="30d")
    assert (report.exit_code, report.refused, report.lasting.objects) == (EXIT_DONE, (), 1)
    assert locked.ends()[path] == later_ms


def test_what_a_killed_command_has_not_reached_the_next_one_extends(locked: Locked, tmp_path: Path) -> None:
    file = tmp_path / "maxbrod.yaml"
    with FaultProxy(locked.server.address, protocol="http") as proxy:
        # JSON is YAML.
        file.write_text(json.dumps({"storage": locked.server.storage_section(endpoint=proxy.endpoint)}))
        file.chmod(0o600)
        set_one = proxy.add(Watch(on=SETTING))
        proxy.add(Latency(on=SETTING, after=2, request_s=30))
        line = [sys.executable, "-m", "maxbrod", "lock", "extend", locked.url, "--for", "30d", "-c", str(file)]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, "MAXBROD_CONFIG": ""})
        try:
            proxy.wait_for(set_one, times=3, timeout_s=60)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    report = locked.extend(for_="30d")
    assert report.exit_code == EXIT_DONE
    assert 0 < report.extended.objects <= report.needed.objects
    assert sum(end >= (report.until_ms or 0) - 600_000 for end in locked.ends().values()) == report.needed.objects


def test_where_nothing_can_be_locked_the_command_says_so(s3: S3Server, tmp_path: Path) -> None:
    Making(f"{s3.url}/archive", s3_options(s3)).run({0: [data_batch(0, 3)]})
    section = {"archive": f"{s3.url}/archive", "storage": s3_options(s3), "lock": {"for_": "1d"}}
    with Work(Config.model_validate(section)) as work:
        with pytest.raises(RefusedError, match="no Object Lock"):
            extend_archive_locks(work)
        shown = show_archive_locks(work)
    assert (shown.object_lock, shown.unlocked) == (False, shown.needed)
    Making(str(tmp_path / "archive")).run({0: [data_batch(0, 3)]})
    folder = Config.model_validate({"archive": str(tmp_path / "archive"), "lock": {"for_": "1d"}})
    with Work(folder) as work, pytest.raises(UsageError, match="no locks"):
        extend_archive_locks(work)


@pytest.mark.parametrize("times", [{}, {"for_": "1d", "until": "2030-01-01T00:00Z"}, {"until": "2020-01-01T00:00Z"}])
def test_a_time_that_is_none_or_two_or_past_is_refused(times: dict[str, str]) -> None:
    config = Config.model_validate({"archive": "s3://bucket/archive", "storage": StorageConfig(), "lock": times})
    with Work(config) as work, pytest.raises(UsageError):
        extend_archive_locks(work)


def test_the_command_says_in_words_what_the_bucket_does(
    locked: Locked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked.server.lock_by_default("governance", 7)
    file = tmp_path / "maxbrod.yaml"
    file.write_text(json.dumps({"storage": locked.server.storage_section()}))
    file.chmod(0o600)
    assert command(["lock", "show", locked.url, "-c", str(file)]) == EXIT_DONE
    said = capsys.readouterr().out
    assert "locks every new object for 7 days (governance); it keeps no older versions" in said
    assert "the first lock ends at" in said
