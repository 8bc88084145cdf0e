"""`maxbrod.restore` does for programs what the command does for people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import maxbrod
from maxbrod.errors import RefusedError, UsageError
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import read_all
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.work.progress import Progress


def test_a_program_restores_and_gets_a_report(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config={"retention.ms": "-1"})
    produce(cluster, topic, [each._replace(timestamp_ms=1000 + turn) for turn, each in enumerate(numbered(20))])
    back_up(config_of(cluster, tmp_path, topic))
    steps: list[Progress] = []
    with without_spark():
        report = maxbrod.restore(
            archive=tmp_path,
            bootstrap=cluster.bootstrap,
            topics=topic,
            rename=f"{topic}={topic}-new",
            since=1005,
            until=datetime.fromtimestamp(1.01, UTC),
            partitions="0",
            on_progress=steps.append,
        )
    assert isinstance(report, maxbrod.RestoreReport)
    assert (report.complete, report.records) == (True, 5)
    assert [value for _, value in read_all(cluster, f"{topic}-new")] == [each.value for each in numbered(5, first=5)]
    assert {step.phase for step in steps} >= {"planning", "restoring"}
    with without_spark(), pytest.raises(RefusedError, match="not empty"):
        maxbrod.restore(archive=tmp_path, bootstrap=cluster.bootstrap, topics=[topic])


def test_what_a_program_gets_wrong_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    for wrong, words in ({"colour": "red"}, "colour"), ({"offsets": "roughly"}, "roughly"), ({"since": "soon"}, "soon"):
        with pytest.raises(UsageError, match=words):
            maxbrod.restore(archive=tmp_path, bootstrap="127.0.0.1:1", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="archive"):
        maxbrod.restore(bootstrap="127.0.0.1:1")
