"""A whole life of an encrypted archive, by the command line, with a real cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.cli.main import run
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from maxbrod.storage.sealing.identity import create_key_files
from support.restore_oracle import assert_restored, log_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

KAFKA = frozenset({"backup", "restore", "compare", "replicate"})


def host(cluster: Cluster, folder: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`maxbrod` on a host that has this key."""

    def call(*words: str, exits: int = 0) -> dict[str, Any]:
        place = ["--archive", str(folder / "archive"), "--archive-key", str(key), "--json"]
        work = ["--bootstrap", cluster.bootstrap] if words[0] in KAFKA else []
        code = run([*words, *place, *work])
        said = capsys.readouterr()
        assert code == exits, said
        document: dict[str, Any] = json.loads(said.out)
        return document

    return call


def damaged_by_one_bit(archive: Path, owner: Callable[..., Any]) -> int:
    """The records that a deep repair takes out after a bit of one segment was flipped."""
    segment = min((archive / "packs").rglob("*.log*"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    told = owner("check", "--deep", exits=4)
    assert "was altered" in json.dumps(told)
    repaired = owner("repair", "--deep", "--apply", exits=4)
    return sum(lost["end_offset"] - lost["first_offset"] for lost in repaired["notices"] if lost["topic"])


def test_a_host_with_the_public_key_backs_up_again_and_again_and_reads_no_record(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_key_files(tmp_path / "ops.key", "ops")
    writer = host(cluster, tmp_path, tmp_path / "ops.key.pub", capsys)
    owner = host(cluster, tmp_path, tmp_path / "ops.key", capsys)
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    produce(cluster, topic, numbered(200))
    writer("backup", "--topic", topic)
    produce(cluster, topic, numbered(100))
    second = writer("backup", "--topic", topic)
    assert second["records"] == 100
    log = log_of(cluster, topic)

    for words in (
        ("restore", "--topic", topic, "--rename", f"{topic}={topic}-x", "--yes"),
        ("compare", "--topic", topic),
        ("compact",),
        ("check", "--deep"),
    ):
        told = writer(*words, exits=5)
        assert "is a public one: it can write, and cannot read records" in told["message"], words

    assert owner("check", "--deep")["exit_code"] == 0
    target = f"{topic}-restored"
    owner("restore", "--topic", topic, "--rename", f"{topic}={target}", "--yes")
    assert_restored(cluster, target, log)
    owner("compare", "--topic", topic)
    writer("replicate", "egress", "--topic", topic, "--once")
    assert damaged_by_one_bit(tmp_path / "archive", owner) == 200
    for path in (tmp_path / "archive").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert topic.encode() not in data
            assert topic not in str(path.relative_to(tmp_path))
            assert path.parent.name == "keys" or data.startswith(b"MXBS"), path


def test_spark_reads_an_encrypted_archive_as_a_table(
    spark: Any, cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_key_files(tmp_path / "ops.key", "ops")
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    produce(cluster, topic, numbered(50))
    host(cluster, tmp_path, tmp_path / "ops.key.pub", capsys)("backup", "--topic", topic)
    reader = spark.read.format("maxbrod").option("topics", topic)
    reader = reader.option("storage.encryption.key_file", str(tmp_path / "ops.key"))
    assert {row.offset for row in reader.load(str(tmp_path / "archive")).select("offset").collect()} == set(range(50))
