"""What Prometheus is told: the names that alerts rest on."""

from __future__ import annotations

import math
import urllib.request
from dataclasses import replace

import pytest

from maxbrod.backup.follow import Interval
from maxbrod.backup.metrics import BackupMetrics
from maxbrod.backup.report import BackupReport, TopicReport
from maxbrod.cli.health import Health, serving
from maxbrod.errors import UnavailableError, UsageError
from maxbrod.notices import Notice


def report(*notices: Notice, waiting: int = 0) -> BackupReport:
    topic = TopicReport(
        topic="orders", topic_id="x", partitions=2, records=10, bytes=50, raw_bytes=200, waiting=waiting
    )
    return BackupReport(
        run_id="run",
        archive="/archive",
        started_at_ms=1000,
        finished_at_ms=3500,
        topics=(topic,),
        notices=notices,
        objects=1,
        version=1,
        committed=True,
        recovery_point_ms=1000,
    )


def interval(told: BackupReport | None, *, failures: int = 0) -> Interval:
    return Interval(
        number=1,
        started_at_ms=1000,
        finished_at_ms=3500,
        report=told,
        error=None if told is not None else UnavailableError("away"),
        recovery_point_ms=1000,
        failures=failures,
        lags=None if told is None else {each.topic: each.waiting for each in told.topics},
    )


@pytest.fixture
def metrics() -> BackupMetrics:
    made = BackupMetrics()
    made.observe(interval(report()))
    made.observe(interval(None, failures=1))
    made.observe(interval(report(Notice(kind="corrupt", message="x", exit_code=4), waiting=7)))
    return made


def test_every_interval_counts_by_how_it_ended(metrics: BackupMetrics) -> None:
    values = {
        "maxbrod_backup_records_total": 20.0,
        "maxbrod_backup_read_bytes_total": 400.0,
        "maxbrod_backup_stored_bytes_total": 100.0,
        "maxbrod_backup_last_success_timestamp_seconds": 3.5,
        "maxbrod_backup_recovery_point_timestamp_seconds": 1.0,
        "maxbrod_backup_failures": 0.0,
        "maxbrod_backup_duration_seconds_count": 3.0,
    }
    assert {name: metrics.registry.get_sample_value(name) for name in values} == values
    for result in ("complete", "incomplete", "failed"):
        assert metrics.registry.get_sample_value("maxbrod_backup_intervals_total", {"result": result}) == 1.0
    assert metrics.registry.get_sample_value("maxbrod_backup_lag_offsets", {"topic": "orders"}) == 7.0
    assert metrics.registry.get_sample_value("maxbrod_backup_notices_total", {"kind": "corrupt"}) == 1.0


def test_a_run_that_a_stop_has_cut_short_is_no_success() -> None:
    stopped = interval(report(Notice(kind="stopped", message="x", exit_code=3)))
    assert (stopped.exit_code, stopped.verdict) == (3, "incomplete")
    made = BackupMetrics()
    made.observe(stopped)
    assert not made.registry.get_sample_value("maxbrod_backup_last_success_timestamp_seconds")
    assert made.registry.get_sample_value("maxbrod_backup_intervals_total", {"result": "incomplete"}) == 1.0


def test_what_nobody_knows_is_never_shown_as_good(metrics: BackupMetrics) -> None:
    value = metrics.registry.get_sample_value
    metrics.observe(replace(interval(None, failures=1), recovery_point_ms=None))
    lag = value("maxbrod_backup_lag_offsets", {"topic": "orders"})
    assert lag is not None
    assert math.isnan(lag)
    # Whoever subtracts it from the time gets an age that is too high, not none.
    assert value("maxbrod_backup_recovery_point_timestamp_seconds") == 0.0
    full = Notice(kind="storage", message="the disk is full", exit_code=1)
    metrics.observe(interval(report(full, waiting=9), failures=2))
    assert value("maxbrod_backup_lag_offsets", {"topic": "orders"}) == 9.0
    assert value("maxbrod_backup_intervals_total", {"result": "failed"}) == 3.0
    assert value("maxbrod_backup_failures") == 2.0


def test_they_are_served_on_loopback_for_as_long_as_asked(metrics: BackupMetrics) -> None:
    with serving(metrics.registry, Health(), 0, "127.0.0.1") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        assert "maxbrod_backup_records_total 20.0" in text
        # A registry of its own: nothing about the process.
        assert "python_gc" not in text
        with (
            pytest.raises(UsageError, match="cannot be served"),
            serving(metrics.registry, Health(), port, "127.0.0.1"),
        ):
            pass
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")
