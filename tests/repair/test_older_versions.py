"""After a hostile deletion an archive comes back from the older versions of its bucket.

The bucket is moto's: versitygw 1.8.0 gives an older version the time at which it was replaced.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from maxbrod.cli.main import run as command
from maxbrod.config import Config
from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, CorruptDataError, NoArchiveError, RefusedError
from maxbrod.model import now_ms
from maxbrod.repair.plan.older_versions import plan_return
from maxbrod.repair.report import Action, RepairReport
from maxbrod.repair.run import repair_archive
from maxbrod.sandbox.proxy.faults import AnswerError, HttpMatch
from maxbrod.sandbox.proxy.server import FaultProxy
from maxbrod.sandbox.s3 import S3Server
from maxbrod.storage.bucket import Bucket, ObjectVersion
from maxbrod.work.work import Work
from support.aws import REGION, Aws, aws_server
from support.kill_sweeps import Killed
from support.native_archives import Making, Seen, look
from support.native_logs import data_batch
from support.storages import s3_options

_NUMBERS = count()


def history(path: str, *events: tuple[int, bytes | None]) -> list[ObjectVersion]:
    """The versions of an object, from (time, bytes), newest first; None: it was deleted."""
    return [
        ObjectVersion(
            path=path,
            version=str(next(_NUMBERS)),
            modified_ms=at_ms,
            size=0 if data is None else len(data),
            etag=None if data is None else data.hex(),
            is_newest=number == 0,
            is_marker=data is None,
        )
        for number, (at_ms, data) in enumerate(reversed(events))
    ]


def test_each_object_becomes_what_it_was_before_the_time() -> None:
    stories: dict[str, list[tuple[int, bytes | None]]] = {
        "catalog/added": [(20, b"forged")],
        "catalog/back": [(1, b"good"), (20, b"bad")],
        "segments/deleted": [(1, b"good"), (20, None), (21, None)],
        "segments/deleted-before": [(1, b"old"), (2, None)],
        "segments/later": [(20, b"of a later backup")],
        "segments/overwritten": [(1, b"old"), (5, b"good"), (20, b"bad"), (21, None)],
        "segments/restored": [(1, b"good"), (20, None), (30, b"good")],
        "segments/same": [(1, b"good")],
    }
    versions = [version for path, events in stories.items() for version in history(path, *events)]
    plan = plan_return(versions, before_ms=10)
    assert {item.path: (bytes.fromhex(item.chosen.etag or ""), len(item.markers)) for item in plan.returns} == {
        "catalog/back": (b"good", 0),
        "segments/deleted": (b"good", 2),
        "segments/overwritten": (b"good", 0),
    }
    assert plan.hidden == ("catalog/added",)
    assert (plan.unchanged, plan.later) == (2, 1)


class Attacked:
    """An archive of three runs in a bucket with versions, and the time before anybody touched it."""

    def __init__(self, server: Aws) -> None:
        bucket = f"bucket-{uuid.uuid4().hex[:8]}"
        server.bucket(bucket)
        server.client("s3").put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        self.server, self.url, self.options = server, f"s3://{bucket}/archive", server.storage_config
        making = Making(self.url, self.options)
        for number in range(3):
            making.run({0: [data_batch(3 * number, 3)], 1: [data_batch(3 * number, 3)]}, packed=number == 1)
        self.before = self.seen()
        self.paths = [info.path for info in making.archive.storage.list()]
        self.storage = making.archive.storage
        # S3 counts seconds: the attack comes in a later one.
        time.sleep(1.1 - time.time() % 1)
        self.time_ms = now_ms() // 1000 * 1000

    def section(self, endpoint: str | None = None) -> dict[str, Any]:
        keys = {"access_key_id": "testing", "secret_access_key": "testing"}
        return {"s3": {"endpoint": endpoint or self.server.endpoint, "region": REGION, **keys}}

    def repair(self, endpoint: str | None = None, **options: Any) -> RepairReport:
        config = Config.model_validate(
            {
                "archive": self.url,
                "storage": self.section(endpoint),
                "repair": {"versions_before": str(self.time_ms), **options},
            }
        )
        with Work(config) as work:
            return repair_archive(work)

    def seen(self) -> Seen:
        return look(self.url, self.options)


@pytest.fixture(scope="module")
def server() -> Iterator[Aws]:
    with aws_server() as aws:
        yield aws


@pytest.fixture
def attacked(server: Aws) -> Attacked:
    return Attacked(server)


def test_after_markers_over_everything_the_archive_is_what_it_was(attacked: Attacked) -> None:
    attacked.storage.delete(attacked.paths)
    with pytest.raises(NoArchiveError):
        attacked.seen()
    planned = attacked.repair()
    assert (planned.exit_code, planned.applied) == (EXIT_CORRUPT, False)
    assert planned.older_versions is not None
    assert (planned.older_versions.objects, planned.older_versions.copied) == (len(attacked.paths), 0)
    assert list(attacked.storage.list()) == []

    done = attacked.repair(apply=True)
    assert (done.exit_code, done.action) == (EXIT_DONE, Action.BROUGHT_BACK)
    assert attacked.seen() == attacked.before
    assert [info.path for info in attacked.storage.list()] == attacked.paths
    again = attacked.repair(apply=True)
    assert (again.exit_code, again.action) == (EXIT_DONE, Action.NONE)


def test_overwritten_objects_and_forged_entries_of_the_catalog_are_undone(attacked: Attacked) -> None:
    segment = next(path for path in attacked.paths if path.startswith("segments/"))
    entries = sorted(path for path in attacked.paths if path.endswith(".json"))
    attacked.storage.replace(segment, b"ransom")
    attacked.storage.replace(entries[-1], b"ransom")
    forged = entries[-1].replace(f"{len(entries) - 1:020}", f"{len(entries):020}")
    assert forged not in attacked.paths
    attacked.storage.put(forged, b"{}")
    attacked.storage.put("ransom/note.txt", b"pay")
    with pytest.raises(CorruptDataError):
        attacked.seen()
    done = attacked.repair(apply=True)
    assert done.exit_code == EXIT_DONE
    found = done.older_versions
    assert found is not None
    assert (found.objects, found.copied, found.hidden, found.later) == (2, 2, 1, 1)
    assert attacked.seen() == attacked.before


def test_without_the_right_to_remove_markers_objects_are_copied(attacked: Attacked) -> None:
    attacked.storage.delete(attacked.paths)
    host, _, port = attacked.server.endpoint.removeprefix("http://").partition(":")
    with FaultProxy((host, int(port)), protocol="http") as proxy:
        denied = proxy.add(AnswerError(on=HttpMatch("DELETE"), status=403, code="AccessDenied", message="no"))
        report = attacked.repair(proxy.endpoint, apply=True)
        assert proxy.fired[denied] > 0
    assert report.exit_code == EXIT_DONE
    assert attacked.seen() == attacked.before


def test_a_return_that_was_killed_goes_on(attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    attacked.storage.delete(attacked.paths)
    numbers, remove = count(), Bucket.remove_version

    def killed(bucket: Bucket, version: ObjectVersion) -> None:
        if next(numbers) >= 3:
            raise Killed
        remove(bucket, version)

    with monkeypatch.context() as patched:
        patched.setattr(Bucket, "remove_version", killed)
        with pytest.raises(Killed):
            attacked.repair(apply=True)
    # The catalog comes last, so that nobody sees an archive without its objects.
    assert not [info.path for info in attacked.storage.list("catalog")]
    assert attacked.repair(apply=True).exit_code == EXIT_DONE
    assert attacked.seen() == attacked.before


def test_where_there_are_no_older_versions_the_command_refuses(s3: S3Server, tmp_path: Path) -> None:
    Making(str(tmp_path / "archive")).run({0: [data_batch(0, 3)]})
    Making(f"{s3.url}/archive", s3_options(s3)).run({0: [data_batch(0, 3)]})
    places = {str(tmp_path / "archive"): {}, f"{s3.url}/archive": s3.storage_section()}
    for url, storage in places.items():
        section = {"archive": url, "storage": storage, "repair": {"versions_before": str(now_ms())}}
        with Work(Config.model_validate(section)) as work, pytest.raises(RefusedError, match="versions"):
            repair_archive(work)


def test_a_time_before_the_archive_or_in_the_future_is_refused(attacked: Attacked) -> None:
    attacked.storage.delete(attacked.paths)
    for time_ms in (1000, now_ms() + 3_600_000):
        with pytest.raises(RefusedError):
            attacked.repair(versions_before=str(time_ms), apply=True)
    assert list(attacked.storage.list()) == []


def test_the_command_says_what_comes_back(
    attacked: Attacked, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attacked.storage.delete(attacked.paths)
    file = tmp_path / "maxbrod.yaml"
    file.write_text(json.dumps({"storage": attacked.section()}))
    file.chmod(0o600)
    line = ["repair", "-a", attacked.url, "-c", str(file), "--versions-before", str(attacked.time_ms)]
    assert command(line) == EXIT_CORRUPT
    said = capsys.readouterr().out
    assert f"{len(attacked.paths)} objects of" in said
    assert "would come back" in said
    assert "repeat with --apply" in said
    assert command([*line, "--apply", "--json"]) == EXIT_DONE
    assert json.loads(capsys.readouterr().out)["older_versions"]["objects"] == len(attacked.paths)
