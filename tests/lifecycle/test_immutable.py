"""A whole life of an archive where a writer can delete nothing: by a policy, by locks, or because it only creates."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.backup.follow import Interval, follow
from maxbrod.cli.main import run
from maxbrod.config import Config, StorageConfig
from maxbrod.errors import ForbiddenError
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import Message, numbered, produce
from maxbrod.storage.stores import open_storage
from support.restore_oracle import assert_restored, log_of
from support.sparkless import without_spark

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster
    from support.immutable_s3 import CreateOnlyS3, LockingS3Server

KINDS = ("create only", "no right to delete", "locked")
READ_WRITE = ("s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload")


@dataclass(frozen=True)
class Place:
    url: str
    storage: dict[str, Any]
    owner: dict[str, Any]
    """The storage of somebody who may do everything."""
    refused: Callable[[], int]
    """The requests of the writer that were refused."""


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "create only":
        store: CreateOnlyS3 = request.getfixturevalue("create_only_s3")
        section = store.section(create_only=True)
        return Place(store.url, section, store.server.storage_section(), store.refused)
    server: LockingS3Server = request.getfixturevalue("locking_s3")
    section = {**server.storage_section(), "lock": "1d", "lock_mode": "compliance"}
    if request.param == "no right to delete":
        section = server.add_user("writer", allowed=READ_WRITE)
    return Place(f"{server.url}/archive", section, server.storage_section(), lambda: 0)


def test_an_archive_lives_where_nothing_can_be_deleted(
    place: Place, cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = {"archive": place.url, "kafka": {"bootstrap": cluster.bootstrap}, "storage": place.storage}
    section["spark"] = {"engine": "local"}
    file = tmp_path / "maxbrod.yaml"
    file.write_text(json.dumps(section))
    file.chmod(0o600)

    def maxbrod(*words: str) -> dict[str, Any]:
        code = run([*words, "--config", str(file), "--json"])
        said = capsys.readouterr()
        assert code == 0, said
        document: dict[str, Any] = json.loads(said.out)
        return document

    create_topic(cluster, topic, config={"retention.ms": "-1"})
    # More than one part of an upload, in one object.
    produce(cluster, topic, [Message(value=os.urandom(500_000)) for _ in range(20)])
    maxbrod("backup", "--topic", topic)
    produce(cluster, topic, numbered(300))
    stop = threading.Event()

    def ended(_: Interval) -> None:
        stop.set()

    config = Config.model_validate({**section, "backup": {"topics": [topic], "every": 1, "follow": True}})
    with without_spark():
        follow(config, stop=stop, on_interval=ended)
    owned = open_storage(place.url, config.storage.model_validate(place.owner))
    assert max(info.size for info in owned.list("segments")) > 9_000_000
    written = log_of(cluster, topic)

    maxbrod("check", "--deep")
    maxbrod("restore", "--topic", topic, "--rename", f"{topic}={topic}.restored")
    assert_restored(cluster, f"{topic}.restored", written)
    maxbrod("compact", "--min-segment-count", "2", "--min-segment-size", "1", "--min-segment-age", "0s")
    held = maxbrod("gc", "--delete")["held_objects"]
    # The probe of the store's clock, at least, and what it says of it.
    assert {item["path"].split("/")[0] for item in held} >= {"probes"}
    assert place.refused() == 0
    maxbrod("check", "--deep")
    if place.storage.get("create_only"):
        assert len(list(owned.list("probes"))) <= 3


def documented_roles(server: LockingS3Server) -> dict[str, dict[str, Any]]:
    """Users with the policies that docs/protection.md has for each role; the section `storage` for each."""
    page = (Path(__file__).parents[2] / "docs/protection.md").read_text()
    found = re.findall(r"^\*\*(\w+)\*\*: .*?```json\n(.*?)```", page, re.DOTALL | re.MULTILINE)
    statements = {}
    for role, text in found:
        here = text.replace("PRINCIPAL", role).replace("BUCKET", server.bucket).replace("PREFIX", "archive")
        # The server does not know Amazon's conditions; the proxy of the test above enforces them.
        statements[role] = [item for item in json.loads(here)["Statement"] if "Condition" not in item]
    return server.add_users(statements)


def test_each_role_of_the_documentation_can_do_its_work_and_no_more(
    locking_s3: LockingS3Server, cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, roles = f"{locking_s3.url}/archive", documented_roles(locking_s3)
    assert set(roles) == {"backup", "restore", "check", "maintenance"}

    def maxbrod(role: str, *words: str, **storage: Any) -> dict[str, Any]:
        section = {"archive": url, "kafka": {"bootstrap": cluster.bootstrap}, "spark": {"engine": "local"}}
        file = tmp_path / f"{role}.yaml"
        file.write_text(json.dumps({**section, "storage": {**roles[role], **storage}}))
        file.chmod(0o600)
        code = run([*words, "--config", str(file), "--json"])
        said = capsys.readouterr()
        assert code == 0, (role, words, said)
        document: dict[str, Any] = json.loads(said.out)
        return document

    create_topic(cluster, topic, config={"retention.ms": "-1"})
    for first in (0, 100):
        produce(cluster, topic, numbered(100, first=first))
        maxbrod("backup", "backup", "--topic", topic, create_only=True)
    written = log_of(cluster, topic)
    maxbrod("check", "check", "--deep")
    maxbrod("check", "ls")
    maxbrod("restore", "restore", "--topic", topic, "--rename", f"{topic}={topic}.restored")
    assert_restored(cluster, f"{topic}.restored", written)
    maxbrod("maintenance", "compact", "--min-segment-count", "2", "--min-segment-size", "1", "--min-segment-age", "0s")
    assert maxbrod("maintenance", "gc", "--delete")["held_objects"] == []
    assert maxbrod("maintenance", "lock", "extend", "--for", "1d")["refused"] == []

    storages = {role: open_storage(url, StorageConfig.model_validate(section)) for role, section in roles.items()}
    path = next(info.path for info in storages["check"].list("catalog"))
    for role in ("backup", "restore", "check"):
        assert [item.path for item in storages[role].delete([path])] == [path], role
    for role in ("restore", "check"):
        with pytest.raises(ForbiddenError):
            storages[role].put("segments/forged", b"x")
