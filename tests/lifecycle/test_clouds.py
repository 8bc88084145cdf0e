"""A whole life of an archive in Azure and in Google Cloud Storage, by the command line, with a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.gcs import GcsDouble
from support.restore_oracle import assert_restored, log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from support.clouds import Cloud

READING = frozenset({"get", "list"})
WRITING = READING | {"create"}
CHANGING = WRITING | {"delete"}
NEEDED = {
    **dict.fromkeys(("compare", "replicate"), READING),
    **dict.fromkeys(("check", "restore"), WRITING),
    **dict.fromkeys(("backup", "gc", "repair", "compact"), CHANGING),
}
"""The rights that a verb uses, as the page about storage lists them."""


def verbs(cloud: Cloud, cluster: Cluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`maxbrod`, with this archive and this cluster."""
    config = {"archive": cloud.url, "kafka": {"bootstrap": cluster.bootstrap}, "storage": cloud.section()}
    file = folder / "maxbrod.yaml"
    file.write_text(json.dumps({**config, "spark": {"engine": "local"}}))

    def call(*words: str, exits: int = 0) -> dict[str, Any]:
        if isinstance(cloud.server, GcsDouble):
            cloud.server.used.clear()
        code = run([*words, "--config", str(file), "--json"])
        said = capsys.readouterr()
        assert code == exits, said
        if isinstance(cloud.server, GcsDouble):
            needed = {right.rpartition(".")[2] for right in cloud.server.used}
            assert needed == NEEDED[words[0]], f"other rights than docs/storage.md has for {words[0]}"
        document: dict[str, Any] = json.loads(said.out)
        return document

    return call


@pytest.mark.parametrize("cloud", ["azure", "gcs"], indirect=True)
def test_an_archive_lives_in_every_cloud(
    cloud: Cloud, cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maxbrod = verbs(cloud, cluster, tmp_path, capsys)
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    for first in (0, 300):
        produce(cluster, topic, numbered(300, first=first), batch_size=400)
        maxbrod("backup", "--topic", topic)
    maxbrod("check", "--deep")
    written = log_of(cluster, topic)

    maxbrod("restore", "--topic", topic, "--rename", f"{topic}={topic}.restored")
    assert_restored(cluster, f"{topic}.restored", written)
    maxbrod("compare", "--topic", topic)
    maxbrod("replicate", "ingress", "--topic", topic, "--rename", f"{topic}={topic}.mirror", "--link", topic, "--once")
    assert_restored(cluster, f"{topic}.mirror", written)

    storage = cloud.open()
    storage.put("segments/nobody/has/named/this.log", b"")
    maxbrod("gc", "--delete")
    assert storage.head("segments/nobody/has/named/this.log").size == 0, "it is younger than the grace period"

    storage.delete(["segments/nobody/has/named/this.log", *(info.path for info in storage.list("catalog"))])
    # Exit 3: which run was the last, only the lost catalog knew.
    maxbrod("repair", "--apply", exits=3)
    maxbrod("check", "--deep")
    maxbrod("compact")
    maxbrod("check", "--deep")
    assert not [info.path for info in storage.list("probes")]
