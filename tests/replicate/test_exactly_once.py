"""Exactly once, whoever writes and whenever it dies: two writers, kill -9, a writer that wakes up late."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from replicate.engine import SUFFIX, archive, link_config, only, take_in
from replicate.test_ingress import assert_mirrored

from maxbrod.config import KafkaConfig
from maxbrod.kafka.wire.client import KafkaClient
from maxbrod.model import TopicPartition
from maxbrod.replicate.ingress.run import Ingress
from maxbrod.replicate.link import State
from maxbrod.replicate.promote import promote
from maxbrod.sandbox.topics import create_topic, offsets
from maxbrod.sandbox.traffic import numbered, produce, produce_transaction
from maxbrod.sandbox.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster

_RATE = 100_000


def _produce_small_batches(cluster: Cluster, topic: str, count: int) -> None:
    produce(cluster, topic, numbered(count), batch_size=400)


def test_two_racing_writers_append_every_record_once(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """Both read the same log end and send the same offsets. Batches need not be cut alike: one joins them."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, rate_bytes_per_s=_RATE)
    _produce_small_batches(cluster, topic, 3000)
    archive(config)
    failures: list[BaseException] = []
    wrote: list[int] = []

    def write(own: Config) -> None:
        try:
            with Ingress(own) as ingress:
                report = ingress.run()
                while only(report).state is State.CATCHING_UP:
                    report = ingress.run()
                wrote.append(report.appended)
                assert only(report).state is State.IN_STEP, only(report)
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            failures.append(error)

    writers = [threading.Thread(target=write, args=(config,)) for _ in range(2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert not failures
    assert_mirrored(cluster, topic)


def test_an_ingress_killed_at_any_point_continues_from_the_destination(
    cluster: Cluster, tmp_path: Path, topic: str
) -> None:
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, rate_bytes_per_s=_RATE)
    _produce_small_batches(cluster, topic, 2000)
    produce_transaction(cluster, topic, numbered(20, first=2000), transactional_id=topic, commit=False)
    _produce_small_batches(cluster, topic, 500)
    archive(config)
    reached = 0
    for _ in range(2):
        with _ingress(config) as process:
            _tell(process)
            wait_for("more records", lambda: _end(cluster, topic) > reached + 300, timeout_s=120)
            process.kill()
        reached = _end(cluster, topic)
        assert reached < offsets(cluster, topic)[1], "it was killed too late to prove anything"
    assert only(take_in(config)).state is State.IN_STEP
    _assert_same(cluster, topic)


def test_a_writer_that_wakes_up_late_never_doubles_a_record(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """One is stopped in the middle of its work, another one finishes and goes on, the first one continues."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, rate_bytes_per_s=_RATE)
    _produce_small_batches(cluster, topic, 2000)
    archive(config)
    with _ingress(config) as process:
        _tell(process)
        wait_for("some records", lambda: _end(cluster, topic) > 300, timeout_s=120)
        os.kill(process.pid, signal.SIGSTOP)
        assert _end(cluster, topic) < 2000
        assert only(take_in(config)).state is State.IN_STEP
        produce(cluster, topic, numbered(100, first=2000))
        archive(config)
        take_in(config)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        states = json.loads(process.stdout.readline())
        assert set(states) == {State.CATCHING_UP}, "the broker refused what it sent"
        _tell(process)
        assert set(json.loads(process.stdout.readline())) == {State.IN_STEP}
    assert_mirrored(cluster, topic)


def test_a_promoted_mirror_takes_nothing_more_from_its_link(cluster: Cluster, tmp_path: Path, topic: str) -> None:
    """Not even from an ingress that was stopped before the promotion and continues after it."""
    create_topic(cluster, topic)
    config = link_config(cluster, tmp_path / "archive", topic, rate_bytes_per_s=_RATE)
    _produce_small_batches(cluster, topic, 2000)
    archive(config)
    with _ingress(config) as process:
        _tell(process)
        wait_for("some records", lambda: _end(cluster, topic) > 300, timeout_s=120)
        os.kill(process.pid, signal.SIGSTOP)
        report = promote(config)
        (partition,) = report.partitions
        assert report.fenced
        assert 300 < partition.end < 2000
        assert partition.lag_records == 2000 - partition.end
        assert report.exit_code == 3
        end = _end(cluster, topic)
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert set(json.loads(process.stdout.readline())) == {State.FAULTED}
    assert _end(cluster, topic) == end
    produce(cluster, topic + SUFFIX, numbered(1, first=9000))
    assert only(take_in(config)).state is State.PROMOTED
    assert promote(config).partitions[0].end == end + 1, "it may be repeated, and adds nothing"


def _assert_same(cluster: Cluster, topic: str) -> None:
    """As `assert_mirrored`, for a source with aborted records, which a mirror does not have."""
    from restore.oracle import log_of

    assert offsets(cluster, topic + SUFFIX) == offsets(cluster, topic)
    wanted = {at: each for at, each in log_of(cluster, topic).items() if not 2000 <= at < 2020}
    assert log_of(cluster, topic + SUFFIX) == wanted


def _end(cluster: Cluster, topic: str) -> int:
    from maxbrod.kafka.fetch.log_ends import log_ends

    where = TopicPartition(topic=topic + SUFFIX, partition=0)
    with KafkaClient(KafkaConfig(bootstrap=cluster.bootstrap)) as client:
        if where.topic not in client.metadata([where.topic]).topics:
            return 0
        return log_ends(client, [where])[where]


@contextmanager
def _ingress(config: Config) -> Iterator[subprocess.Popen[str]]:
    document = config.model_dump(mode="json", include={"archive", "kafka", "replicate"})
    command = [sys.executable, "-m", "replicate.program", json.dumps(document)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
