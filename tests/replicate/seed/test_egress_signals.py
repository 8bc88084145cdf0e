"""Egress into a tree as users run it, with Spark: ended by SIGTERM, killed in the middle of its work, and run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import EXIT_DONE
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import create_topic
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from support.seed_trees import KEPT, REGION, Link, egress_config, ranges, write_segments

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster

pytestmark = pytest.mark.full

PARTITIONS = 3


def test_an_egress_on_spark_that_is_ended_or_killed_leaves_a_tree_that_lacks_and_doubles_nothing(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=PARTITIONS)
    tree = tmp_path / "tree"
    link = Link(cluster, topic, tree).created(PARTITIONS)
    config = egress_config(cluster, tree, topic, roll_records=40)
    settings = tmp_path / "maxbrod.yaml"
    settings.write_text("spark: {master: 'local[1]'}\n")
    command = ("--bootstrap", cluster.bootstrap, "-a", str(tree), "-c", str(settings), "--topic", topic)
    limits = ("--region", REGION, "--group", config.egress_tree.group, "--roll-records", "40", "--every", "0.3s")

    _produce(cluster, topic, 50, first=0)
    with _started(*command, *limits) as process:
        wait_for("segments of all partitions", lambda: len(_all(tree, topic)) >= 2 * PARTITIONS, timeout_s=240)
        _produce(cluster, topic, 10, first=50)  # less than is due
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=240)
    assert process.returncode == EXIT_DONE, err
    assert {end for _, end in _all(tree, topic)} >= {59, 62}, "at SIGTERM everything that waits is written"

    before = len(_all(tree, topic))
    _produce(cluster, topic, 400, first=60)
    with _started(*command, *limits) as process:
        wait_for("a segment of the second process", lambda: len(_all(tree, topic)) > before, timeout_s=240)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    assert write_segments(config).exit_code == EXIT_DONE
    assert link.run().exit_code == EXIT_DONE
    for partition in range(PARTITIONS):
        found = ranges(tree, topic, partition)
        assert len({start for start, _ in found}) == len(found)
        arrived = link.arrived(partition).select(list(KEPT)).to_pylist()
        assert arrived == link.arrived(partition, topic=topic).select(list(KEPT)).to_pylist()
        assert len(arrived) == 460


def _produce(cluster: Cluster, topic: str, count: int, *, first: int) -> None:
    for partition in range(PARTITIONS):
        produce(cluster, topic, numbered(count, first=first), partition=partition)
    produce_transaction(cluster, topic, numbered(2, first=9000), transactional_id=topic, commit=False)


def _all(tree: Path, topic: str) -> list[tuple[int, int]]:
    return [each for partition in range(PARTITIONS) for each in ranges(tree, topic, partition)]


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, in a group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "maxbrod", "replicate", "egress-tree", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        with process:
            yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
