"""A whole life of an archive with a signed catalog, by the command line, with a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.errors import EXIT_CORRUPT
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.signature import create_signing_key
from support.restore_oracle import assert_restored, log_of
from support.signing_keys import public_half

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


def test_what_every_verb_writes_with_the_key_is_proven_and_restored(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    key = tmp_path / "catalog.key"
    create_signing_key(key)

    def call(*words: str, exits: int = 0) -> dict[str, Any]:
        place = ["--archive", str(tmp_path / "archive"), "--signing-key", str(key), "--json"]
        work = ["--bootstrap", cluster.bootstrap] if words[0] in {"backup", "restore"} else []
        code = run([*words, *place, *work])
        said = capsys.readouterr()
        assert code == exits, said
        document: dict[str, Any] = json.loads(said.out)
        return document

    def proven(exits: int = 0) -> dict[str, Any]:
        found = call("check", "--deep", "--engine", "local", "--signature", str(public_half(key)), exits=exits)
        return dict(found["signature"])

    create_topic(cluster, topic, config={"retention.ms": "-1"})
    produce(cluster, topic, numbered(200))
    call("backup", "--topic", topic, "--engine", "local")
    first = proven()
    produce(cluster, topic, numbered(100))
    call("backup", "--topic", topic, "--engine", "local")
    call(
        "compact", "--min-segment-count", "2", "--min-segment-size", "1", "--min-segment-age", "0s", "--engine", "local"
    )
    call("hold", "add", "--topic", topic, "--why", "audit")
    second = proven()
    assert second["pinned_version"] == first["signed_version"]
    assert second["signed_version"] >= first["signed_version"] + 3
    for found in (first, second):
        assert (found["unsigned"], found["weak_slices"], found["snapshots_unproven"]) == ([], 0, 0)
    assert second["snapshots"] > 0
    log, target = log_of(cluster, topic), f"{topic}-restored"
    call("restore", "--topic", topic, "--rename", f"{topic}={target}", "--yes", "--engine", "local")
    assert_restored(cluster, target, log)
    newest = max((tmp_path / "archive/catalog/segments/_delta_log").glob("*.json"))
    newest.unlink()
    proven(exits=EXIT_CORRUPT)
