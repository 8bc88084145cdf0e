"""`restore --order`: urgent topics are complete and usable while the rest is restored."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maxbrod
from maxbrod.errors import IncompleteError, UsageError
from maxbrod.restore.plan.request import in_stages
from maxbrod.sandbox.topics import create_topic, delete_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce
from support.backups import back_up, config_of
from support.restores import read_all
from support.sparkless import without_spark

if TYPE_CHECKING:
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.work.progress import Progress


def test_the_first_pattern_that_matches_decides_and_the_rest_comes_last() -> None:
    names = {"orders", "orders-old", "payments", "clicks", "views"}
    assert in_stages(["payments", "orders*", "*s"], names) == [
        frozenset({"payments"}),
        frozenset({"orders", "orders-old"}),
        frozenset({"clicks", "views"}),
    ]
    assert in_stages([], names) == [names]


@given(st.lists(st.sampled_from(["a", "b*", "/[ab].*/", "*"])), st.sets(st.text("abc", min_size=1, max_size=3)))
def test_every_topic_is_in_one_stage(order: list[str], names: set[str]) -> None:
    stages = in_stages(order, names)
    assert sorted(name for stage in stages for name in stage) == sorted(names)
    assert all(stages)


def test_an_urgent_topic_is_usable_before_the_rest_and_a_stopped_restore_goes_on(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """Its own compaction is in force again, although the other topic has no record yet."""
    urgent, large = f"{topic}-z-urgent", f"{topic}-a-large"
    for name in (urgent, large):
        create_topic(cluster, name, config={"cleanup.policy": "compact"})
        produce(cluster, name, numbered(20))
    back_up(config_of(cluster, tmp_path, f"{topic}-*"))
    before = {name: read_all(cluster, name) for name in (urgent, large)}
    for name in before:
        delete_topic(cluster, name)
    request: dict[str, Any] = {"archive": tmp_path, "bootstrap": cluster.bootstrap, "topics": [f"{topic}-*"]}
    with without_spark(), pytest.raises(UsageError, match="no-such"):
        maxbrod.restore(**request, order=["no-such"])

    stop = threading.Event()

    def stop_after_the_first(step: Progress) -> None:
        if step.phase == "releasing topics":
            stop.set()

    with without_spark(), pytest.raises(IncompleteError, match="stopped"):
        maxbrod.restore(**request, order=["*-urgent"], on_progress=stop_after_the_first, stop=stop)
    assert read_all(cluster, urgent) == before[urgent]
    assert offsets(cluster, large)[1] == 0
    with without_spark():
        report = maxbrod.restore(**request, order=["*-urgent"])
    assert (report.complete, report.resumed, report.records) == (True, True, 40)
    assert list(report.usable_at_ms) == [urgent, large]
    assert report.started_at_ms <= report.usable_at_ms[urgent] <= report.usable_at_ms[large] <= report.finished_at_ms
    assert {name: read_all(cluster, name) for name in before} == before
