"""A run that stored nothing, or not everything, says so: recovery point, lag, failures, `ls`, `check`, metrics.

Everything is asked of what is committed, so that a process that starts afresh says the same.
"""

from __future__ import annotations

import random
import resource
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.archive.archive import open_archive
from maxbrod.backup.cli import print_summary
from maxbrod.backup.follow import Interval, follow
from maxbrod.backup.metrics import BackupMetrics
from maxbrod.backup.run import Backup
from maxbrod.check.run import check_archive
from maxbrod.errors import EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, UnavailableError
from maxbrod.inspect.listing import list_topics
from maxbrod.sandbox.topics import create_topic, delete_topic
from maxbrod.sandbox.traffic import Message, numbered, open_transaction, produce
from support.backups import back_up, config_of, kinds, settles
from support.sparkless import run_here, without_spark
from support.topics import wait_for_marker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from maxbrod.config import Config
    from maxbrod.sandbox.cluster import Cluster

KEEP = {"retention.ms": "-1"}
LARGE = [Message(value=random.Random(number).randbytes(10_000)) for number in range(40)]
NOBODY = "127.0.0.1:1"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can grow beyond 200 kB: the kernel refuses what does, as a full disk does, to anybody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def listed(config: Config) -> int | None:
    return list_topics(open_archive(str(config.archive))).recovery_point


def problems(config: Config) -> list[tuple[str, int | None, int | None, int | None]]:
    found = check_archive(open_archive(str(config.archive))).problems
    return [(str(each.kind), each.partition, each.first_offset, each.end_offset) for each in found]


def followed(config: Config, *steps: Callable[[], object], **options: Any) -> list[Interval]:
    """An interval for each step, which is made after it, and one more."""
    stop, intervals = threading.Event(), []
    after = iter([*steps, stop.set])

    def on_interval(interval: Interval) -> None:
        intervals.append(interval)
        next(after)()

    request = config.model_copy(update={"backup": replace(config.backup, every=0.01)})
    with without_spark():
        follow(request, stop=stop, on_interval=on_interval, **options)
    return intervals


def test_on_a_full_disk_the_recovery_point_stays_and_what_is_missing_is_named(
    cluster: Cluster, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_topic(cluster, topic, partitions=2, config=KEEP)
    produce(cluster, topic, numbered(10))
    config = config_of(cluster, tmp_path / "archive", topic)
    first = back_up(config)
    assert first.recovery_point_ms == first.started_at_ms == listed(config)
    produce(cluster, topic, LARGE)
    with full_disk():
        report = back_up(config)
    assert (report.exit_code, report.verdict, report.records) == (EXIT_FAILED, "failed", 0)
    assert report.recovery_point_ms == first.started_at_ms == listed(config)
    assert (report.waiting, [each.waiting for each in report.topics]) == (40, [40])
    print_summary(report)
    told = capsys.readouterr().out
    assert "without anything new" not in told
    assert "nothing new" not in told
    assert told.splitlines()[-1] == "failed: 2 problems above (1 'failed', 1 'storage')"
    assert "the disk is full" in told
    assert problems(config) == [("not archived", 0, 10, 50)]
    # It is told once, however often it is tried.
    with full_disk():
        assert settles(config)
    last = back_up(config)
    assert last.recovery_point_ms == last.started_at_ms == listed(config)
    assert (last.waiting, problems(config)) == (0, [])


def test_following_on_a_full_disk_counts_failures_and_tells_the_lag(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    produce(cluster, topic, numbered(10))
    config = config_of(cluster, tmp_path / "archive", topic)
    with full_disk():
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        intervals = followed(
            config,
            lambda: produce(cluster, topic, LARGE),
            lambda: None,
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)),
        )
    points = [each.recovery_point_ms for each in intervals]
    assert [each.failures for each in intervals] == [0, 1, 2, 0]
    assert [each.lag_offsets for each in intervals] == [0, 40, 40, 0]
    assert [each.exit_code for each in intervals] == [EXIT_DONE, EXIT_FAILED, EXIT_FAILED, EXIT_DONE]
    assert points[0] == points[1] == points[2] == intervals[0].report.started_at_ms  # type: ignore[union-attr]
    assert points[3] == intervals[3].report.started_at_ms == listed(config)  # type: ignore[union-attr]
    metrics = BackupMetrics()
    for each in intervals[:3]:
        metrics.observe(each)
    value = metrics.registry.get_sample_value
    assert value("maxbrod_backup_failures") == 2
    assert value("maxbrod_backup_intervals_total", {"result": "failed"}) == 2
    assert value("maxbrod_backup_lag_offsets", {"topic": topic}) == 40
    assert value("maxbrod_backup_recovery_point_timestamp_seconds") == (points[0] or 0) / 1000


def test_a_store_that_takes_objects_but_no_commit_leaves_the_point_and_the_lag_true(
    cluster: Cluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_topic(cluster, topic, config=KEEP)
    produce(cluster, topic, numbered(10))
    config = config_of(cluster, tmp_path / "archive", topic)
    first = back_up(config)
    produce(cluster, topic, numbered(5))

    def fail(*_: object, **__: object) -> None:
        raise UnavailableError("the store is away")

    with without_spark(), Backup(config) as backup:
        with monkeypatch.context() as patched:
            patched.setattr("maxbrod.catalog.catalog.Catalog.commit", fail)
            with pytest.raises(UnavailableError):
                backup.run()
        assert (backup.recovery_point_ms, backup.lags) == (first.started_at_ms, {topic: 5})
        assert backup.run().waiting == 0


def test_without_a_broker_the_archive_tells_the_point_and_nobody_knows_the_lag(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, config=KEEP)
    produce(cluster, topic, numbered(10))
    config = config_of(cluster, tmp_path / "archive", topic)
    first = back_up(config)
    kafka = config.kafka.model_copy(update={"bootstrap": NOBODY})  # type: ignore[union-attr]
    # Another process: what it says it has from the archive.
    away = config.model_copy(update={"kafka": kafka, "patience": 0.5})
    (interval,) = followed(away)
    assert (interval.report, interval.failures, interval.lag_offsets) == (None, 1, None)
    assert interval.recovery_point_ms == first.started_at_ms
    others = away.model_copy(update={"backup": replace(away.backup, topics=("other-*",))})
    assert followed(others)[0].recovery_point_ms is None
    # Stopped while it waits for one: the same, and nothing is said to be new or not.
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    patient = away.model_copy(update={"patience": 60.0})
    report = back_up(patient, stop=stop)
    assert (kinds(report), report.exit_code) == (["stopped"], EXIT_INCOMPLETE)
    assert (report.recovery_point_ms, report.waiting, report.topics) == (first.started_at_ms, None, ())


def test_a_run_that_is_stopped_half_way_has_the_point_of_its_oldest_partition(
    cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    create_topic(cluster, topic, partitions=3, config=KEEP)
    for partition in range(3):
        produce(cluster, topic, numbered(10), partition=partition)
    # Each partition is a wave of its own, with a commit after it.
    config, stop = config_of(cluster, tmp_path / "archive", topic, commit_bytes=1), threading.Event()

    def job(*arguments: Any, **options: Any) -> Any:
        stop.set()
        return run_here(*arguments, **options)

    with without_spark(job), Backup(config, stop=stop) as backup:
        report = backup.run()
    assert (report.exit_code, report.records, report.waiting) == (EXIT_INCOMPLETE, 10, 20)
    assert report.recovery_point_ms is None
    assert listed(config) is None
    assert [each[:1] for each in problems(config)] == [("not archived",)] * 2
    last = back_up(config)
    assert last.recovery_point_ms == last.started_at_ms == listed(config)
    # A run of other topics changes nothing about these.
    other = f"{topic}-other"
    create_topic(cluster, other, config=KEEP)
    third = back_up(config_of(cluster, tmp_path / "archive", other))
    assert third.recovery_point_ms == third.started_at_ms
    assert listed(config) == last.started_at_ms
    # What the cluster has no more can get no older.
    delete_topic(cluster, topic)
    fourth = back_up(config_of(cluster, tmp_path / "archive", other))
    assert listed(config) == fourth.recovery_point_ms == fourth.started_at_ms


def test_an_open_transaction_holds_the_point_where_it_began(cluster: Cluster, topic: str, tmp_path: Path) -> None:
    create_topic(cluster, topic, config=KEEP)
    config = config_of(cluster, tmp_path / "archive", topic)
    first = back_up(config)
    with open_transaction(cluster, topic, numbered(3), transactional_id=f"hangs-{topic}"):
        behind = produce(cluster, topic, numbered(2))
        report = back_up(config)
        again = back_up(config)
    # Records that others wrote behind its first one wait as well, though they are no part of it.
    assert (report.exit_code, report.waiting) == (EXIT_DONE, 5)
    assert first.recovery_point_ms is not None
    assert report.recovery_point_ms is not None
    assert first.recovery_point_ms <= report.recovery_point_ms < report.started_at_ms
    assert again.recovery_point_ms == report.recovery_point_ms
    wait_for_marker(cluster, topic, behind)
    last = back_up(config)
    assert (last.recovery_point_ms, last.waiting) == (last.started_at_ms, 0)
