"""Compaction by key of a real topic on Spark: what is left restores, is queried and is rebuilt, beside live readers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.cli.main import run
from maxbrod.inspect.garbage import collect_garbage
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import Message, produce, produce_transaction
from support.backups import back_up, config_of
from support.keyed_archives import compact_keys
from support.keyed_archives import without_spark as without_spark_by_key
from support.restores import Command, read_all
from support.sparkless import run_here
from support.sparkless import without_spark as comparing_without_spark
from support.sparkless import without_spark as restoring_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

KEYS = 10


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with comparing_without_spark(), restoring_without_spark():
        yield


def fill(cluster: Cluster, topic: str) -> None:
    """Two runs' worth: each key 20 times, aborted records after the newest, a tombstone that is still to be kept."""
    for turn in range(10):
        messages = [Message(key=b"k%d" % each, value=b"%d-%d" % (turn, each)) for each in range(KEYS)]
        produce(cluster, topic, messages)
    aborted = [Message(key=b"k%d" % each, value=b"aborted") for each in range(KEYS)]
    produce_transaction(cluster, topic, aborted, transactional_id=topic, commit=False)
    produce(cluster, topic, [Message(key=b"k0", value=None)])


def newest(records: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return records[-KEYS:]


def test_a_real_topic_that_was_compacted_by_key_restores_is_queried_and_is_rebuilt(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    archive, command = tmp_path / "archive", Command(cluster, tmp_path / "archive", capsys)
    config = config_of(cluster, archive, topic)
    fill(cluster, topic)
    before = back_up(config).run_id
    everything = read_all(cluster, topic, isolation_level="read_committed")
    report = compact_keys(str(archive), session=spark)
    # Every key stays once, k0 as a tombstone, which is younger than delete.retention.ms. Aborted records never win.
    assert (report.faults, report.total("removed")) == ((), offsets(cluster, topic)[1] - KEYS)
    collect_garbage(open_archive(str(archive)), delete=True)

    command("restore", "--suffix", "-now", "--offsets", "exact")
    assert read_all(cluster, f"{topic}-now") == newest(everything)
    command("restore", "--suffix", "-then", "--offsets", "exact", "--as-of", str(before))
    assert read_all(cluster, f"{topic}-then") == everything
    sql = f"SELECT count(*), count(value), count(DISTINCT key) FROM `{topic}`"
    assert run(["query", str(archive), sql, "--output", "csv"]) == 0
    assert capsys.readouterr().out.split()[-1] == f"{KEYS},{KEYS - 1},{KEYS}"

    # The objects before the compaction still exist, for points in time: a rebuild does not return to them.
    shutil.rmtree(archive / "catalog")
    command("repair", "--apply")
    assert run(["check", "-a", str(archive)]) == 0
    capsys.readouterr()
    command("restore", "--suffix", "-rebuilt", "--offsets", "exact")
    assert read_all(cluster, f"{topic}-rebuilt") == newest(everything)
    assert compact_keys(str(archive), session=spark).total("removed") == 0
    produce(cluster, topic, [Message(key=b"k1", value=b"new")])
    assert back_up(config).records == 1


def test_a_restore_that_has_planned_before_lifecycle_verbs_restores_what_it_planned(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between its plan and its first byte: compaction by key, a prune of all that may go, and a gc."""
    create_topic(cluster, topic, config={"cleanup.policy": "compact"})
    archive = tmp_path / "archive"
    for _ in range(2):
        fill(cluster, topic)
        back_up(config_of(cluster, archive, topic))
    everything = read_all(cluster, topic, isolation_level="read_committed")
    without_spark_by_key(monkeypatch)
    ran: list[object] = []

    def job(*arguments: Any, **options: Any) -> Any:
        if not ran:
            ran.append(compact_keys(str(archive)).run_id)
            assert run(["prune", "-a", str(archive), "--topic-bytes", "0", "--apply"]) == 0
            collect_garbage(open_archive(str(archive)), delete=True)
        return run_here(*arguments, **options)

    with restoring_without_spark(job):
        Command(cluster, archive, capsys)("restore", "--suffix", "-live", "--offsets", "exact")
    assert ran[0] is not None
    assert read_all(cluster, f"{topic}-live") == everything
