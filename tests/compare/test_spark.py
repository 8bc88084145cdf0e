"""A comparison on real Spark, by processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import Command

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster


@pytest.mark.usefixtures("spark")
def test_spark_workers_see_what_is_equal_and_what_is_not(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2)
    produce(cluster, topic, numbered(50))
    produce(cluster, topic, numbered(50), partition=1)
    assert back_up(config_of(cluster, tmp_path, topic)).complete
    command = Command(cluster, tmp_path, capsys)
    assert command.json("restore", "--suffix", "-new")["complete"]
    assert command.json("compare", "--suffix", "-new")["equal"]
    produce(cluster, f"{topic}-new", numbered(1), partition=1)
    report = command.json("compare", "--suffix", "-new", "--offsets", "append", exits=3)
    assert [each["equal"] for each in report["partitions"]] == [True, False]
    assert [each["target_offset"] for each in report["differences"]] == [50]
