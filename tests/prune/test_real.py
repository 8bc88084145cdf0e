"""A pruned archive of a real cluster: backups go on, a restore begins at what is left, and an undo makes it whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.cli.main import run
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command
from support.sparkless import without_spark
from support.sparkless import without_spark as restoring_without_spark

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    with without_spark(), restoring_without_spark():
        yield


def test_backups_restores_and_comparisons_of_a_pruned_archive(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    for _ in range(3):
        produce(cluster, topic, numbered(40))
        assert back_up(config_of(cluster, tmp_path, topic)).complete
    assert run(["prune", "-a", str(tmp_path), "--topic-bytes", "0", "--apply"]) == 0
    produce(cluster, topic, numbered(40))
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    capsys.readouterr()
    # The source still has what was pruned: that is no difference.
    compared = command.json("compare")
    assert (compared["equal"], compared["source_records"]) == (True, 80)
    told = command("restore", "--suffix", "-left", "--offsets", "exact")
    assert f"{topic}-0: 80 offsets were pruned from the archive; the first one left is 80" in told
    assert offsets(cluster, f"{topic}-left") == (80, 160)
    assert command.json("compare", "--suffix", "-left")["equal"]

    # A backup has committed since.
    assert run(["prune", "-a", str(tmp_path), "--undo", "--apply"]) == 0
    capsys.readouterr()
    command("restore", "--suffix", "-all", "--offsets", "exact")
    assert offsets(cluster, f"{topic}-all") == (0, 160)
    report = command.json("compare", "--suffix", "-all")
    assert (report["equal"], report["source_records"]) == (True, 160)
    assert run(["check", "-a", str(tmp_path)]) == 0


def test_a_restore_as_of_a_run_whose_records_were_pruned_is_refused_or_incomplete(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    first = None
    for _ in range(2):
        produce(cluster, topic, numbered(20))
        report = back_up(config_of(cluster, tmp_path, topic))
        first = first or report.run_id
    assert first is not None
    assert run(["prune", "-a", str(tmp_path), "--topic-bytes", "0", "--apply"]) == 0
    capsys.readouterr()
    command = Command(cluster, tmp_path, capsys)
    then = ["restore", "--as-of", first, "--suffix", "-then"]
    command(*then, exits=3)
    assert "records that are asked for were pruned since, among offsets 0 to 20" in command.said
    assert command.json(*then, exits=3)["obstacles"][0]["kind"] == "pruned"
    assert not command.json("compare", "--as-of", first, exits=3)["equal"], "the source still has them"
    restored = command.json(*then, "--accept-gaps")
    assert (restored["complete"], restored["records"], len(restored["accepted_gaps"])) == (False, 0, 1)
    # The present has given them up on purpose.
    assert command.json("restore", "--suffix", "-now")["complete"]
    assert command.json("compare")["equal"]
