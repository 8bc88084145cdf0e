"""The rights that docs/backup.md asks for are enough for everything, and no secret comes out anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)

from maxbrod.archive.archive import open_archive
from maxbrod.archive.snapshots import last_snapshot_run, read_snapshot
from maxbrod.cli.main import run
from maxbrod.sandbox.cli import write_client_files
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.spec import CLIENTS_DIR
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, open_transaction, produce
from support.clusters import start_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

PASSWORDS = {"admin": "admin-s3cret", "backup": "backup-s3cret"}

# As the table of docs/backup.md has it.
RIGHTS = (
    (ResourceType.TOPIC, "*", ACLOperation.READ),
    (ResourceType.TOPIC, "*", ACLOperation.DESCRIBE_CONFIGS),
    (ResourceType.GROUP, "*", ACLOperation.DESCRIBE),
    (ResourceType.CLUSTER, "kafka-cluster", ACLOperation.DESCRIBE),
    (ResourceType.CLUSTER, "kafka-cluster", ACLOperation.DESCRIBE_CONFIGS),
    (ResourceType.TRANSACTIONAL_ID, "*", ACLOperation.DESCRIBE),
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guarded")
    with start_cluster(folder, listeners=["SASL_PLAINTEXT"], users=PASSWORDS, authorizer=True) as started:
        write_client_files(started)
        yield started


def grant(cluster: Cluster) -> None:
    acls = [
        ACL("User:backup", "*", operation, ACLPermissionType.ALLOW, pattern)
        for kind, name, operation in RIGHTS
        for pattern in [ResourcePattern(kind, name, ACLResourcePatternType.LITERAL)]
    ]
    with cluster.admin() as admin:
        admin.create_acls(acls)


@pytest.mark.usefixtures("spark")
def test_the_rights_of_the_runbook_are_enough_for_everything(
    guarded: Cluster, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    create_topic(guarded, topic)
    produce(guarded, topic, numbered(10))
    arguments = ["--bootstrap", guarded.bootstrap_for("SASL_PLAINTEXT"), "--archive", str(tmp_path / "archive")]
    properties = guarded.directory / CLIENTS_DIR / "sasl_plaintext-backup.properties"
    command = ["backup", *arguments, "--command-config", str(properties), "--topic", topic, "--json"]

    # Without any right there is nothing to see, and that is said.
    assert run(command) == 2
    grant(guarded)
    wait_for("the broker to know the ACLs", lambda: run(command) == 0, timeout_s=60)
    capfd.readouterr()
    with open_transaction(guarded, topic, numbered(3), transactional_id="hanging"):
        assert run(command) == 0
    report = json.loads(capfd.readouterr().out)
    assert [notice["kind"] for notice in report["notices"]] == ["open transaction"]
    assert "hanging" in report["notices"][0]["message"]

    archive = open_archive(str(tmp_path / "archive"))
    last = last_snapshot_run(archive.catalog.runs())
    assert last is not None
    state = read_snapshot(archive.storage, last).cluster
    assert state["gaps"] == []
    assert {acl["principal"] for acl in state["acls"]} == {"User:backup"}
    everything = json.dumps([report, state])
    assert not [password for password in PASSWORDS.values() if password in everything]
