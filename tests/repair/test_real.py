"""A lost catalog of a real archive is rebuilt on Spark: everything restores as before, and the next backup goes on."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.backup import archive_state
from maxbrod.backup import run as engine
from maxbrod.backup.plan.ranges import plan_tasks
from maxbrod.cli.main import run
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import Message, numbered, produce, produce_transaction
from support.backups import back_up, config_of
from support.restores import Command
from support.sparkless import without_spark as backing_up_without_spark
from support.sparkless import without_spark as comparing_without_spark
from support.sparkless import without_spark as restoring_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Each run stores its snapshot: those that share one are recorded by the catalog alone.
    monkeypatch.setattr(archive_state, "_SHARED_MS", 0)
    # Real segments need not be large to be real.
    monkeypatch.setattr(engine, "plan_tasks", partial(plan_tasks, pack_bytes_max=64 << 10))
    with backing_up_without_spark(), comparing_without_spark(), restoring_without_spark():
        yield


def test_a_lost_catalog_is_rebuilt_everything_restores_as_before_and_the_next_backup_goes_on(
    cluster: Cluster, topic: str, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    del spark  # the command finds it
    small, large, state = (f"{topic}-{kind}" for kind in ("small", "large", "state"))
    create_topic(cluster, small, partitions=3)
    create_topic(cluster, large)
    create_topic(cluster, state, config={"cleanup.policy": "compact"})
    archive, command = tmp_path / "archive", Command(cluster, tmp_path / "archive", capsys)
    config = config_of(cluster, archive, small, large, state)
    runs = []
    for number in range(2):
        for partition in range(3):
            produce(cluster, small, numbered(20, first=20 * number), partition=partition)
        produce(cluster, large, [Message(value=bytes([number, each]) * 4096) for each in range(40)])
        produce_transaction(cluster, small, numbered(5), transactional_id=topic, commit=False)
        produce_transaction(cluster, small, numbered(5), transactional_id=topic)
        produce(cluster, state, numbered(30, keys=5))
        runs.append(back_up(config).run_id)
    assert {each.name for each in archive.iterdir()} >= {"packs", "segments"}
    compared = command.json("compare")
    assert compared["equal"]

    shutil.rmtree(archive / "catalog")
    assert run(["repair", "-a", str(archive), "--apply"]) == 0
    assert "2 runs\n" in capsys.readouterr().out
    assert run(["check", "-a", str(archive)]) == 0
    capsys.readouterr()
    command("restore", "--suffix", "-now", "--offsets", "exact")
    again = command.json("compare", "--suffix", "-now")
    assert (again["equal"], again["source_records"]) == (True, compared["source_records"])
    command("restore", "--topic", large, "--suffix", "-then", "--offsets", "exact", "--as-of", str(runs[0]))
    assert (offsets(cluster, f"{large}-then"), offsets(cluster, f"{large}-now")) == ((0, 40), (0, 80))

    assert back_up(config).records == 0
    produce(cluster, large, numbered(7))
    assert back_up(config).records == 7

    # A pack is lost: its offsets are named, and read again from the source.
    min((archive / "packs").iterdir()).unlink()
    assert f"corrupt: {small}-" in command("repair", "--apply")
    assert "nothing to repair" in command("repair")
    assert command.json("compare")["equal"]
