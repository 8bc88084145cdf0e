"""Prometheus metrics of a backup that follows. They have a registry of their own, without metrics of the process.

The names are documented in docs/monitoring.md, and users' alerts depend on them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maxbrod.errors import EXIT_DONE

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval

_DURATIONS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class BackupMetrics:
    """Call `observe` with every interval. Times are seconds since 1970, as usual in Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self._intervals = Counter("maxbrod_backup_intervals", "Runs by result.", ["result"], registry=here)
        self._failures = Gauge("maxbrod_backup_failures", "Failed runs in a row.", registry=here)
        self._success = Gauge(
            "maxbrod_backup_last_success_timestamp_seconds", "When the last complete run ended.", registry=here
        )
        self._point = Gauge(
            "maxbrod_backup_recovery_point_timestamp_seconds",
            "Everything written before this can be restored; 0 while there is none.",
            registry=here,
        )
        self._lag = Gauge(
            "maxbrod_backup_lag_offsets",
            "Offsets that the cluster has and the archive lacks; NaN while unknown.",
            ["topic"],
            registry=here,
        )
        self._records = Counter("maxbrod_backup_records", "Records archived.", registry=here)
        self._read = Counter("maxbrod_backup_read_bytes", "Bytes of log read.", registry=here)
        self._stored = Counter("maxbrod_backup_stored_bytes", "Bytes stored in segments.", registry=here)
        self._duration = Histogram(
            "maxbrod_backup_duration_seconds", "How long runs took.", buckets=_DURATIONS_S, registry=here
        )
        self._notices = Counter("maxbrod_backup_notices", "Notices of runs.", ["kind"], registry=here)
        self._topics: tuple[str, ...] = ()
        for result in ("complete", "incomplete", "failed"):
            self._intervals.labels(result)

    def observe(self, interval: Interval) -> None:
        self._failures.set(interval.failures)
        self._duration.observe((interval.finished_at_ms - interval.started_at_ms) / 1000)
        self._point.set((interval.recovery_point_ms or 0) / 1000)
        # A deleted topic has no lag, instead of its last one for ever. A topic that did not answer has an unknown one.
        lags = dict.fromkeys(self._topics) if interval.lags is None else interval.lags
        self._lag.clear()
        for topic, lag in lags.items():
            self._lag.labels(topic).set(math.nan if lag is None else lag)
        self._topics = tuple(lags)
        failed, complete = interval.failures > 0, interval.exit_code == EXIT_DONE
        self._intervals.labels("failed" if failed else "complete" if complete else "incomplete").inc()
        if complete:
            self._success.set(interval.finished_at_ms / 1000)
        report = interval.report
        if report is not None:
            self._records.inc(report.records)
            self._read.inc(report.raw_bytes)
            self._stored.inc(report.bytes)
            for notice in report.notices:
                self._notices.labels(notice.kind).inc()


def problem_of(interval: Interval) -> str | None:
    """The reason why the last interval was not complete; None if it was."""
    if interval.error is not None:
        return str(interval.error)
    if interval.exit_code == EXIT_DONE:
        return None
    notices = () if interval.report is None else interval.report.notices
    first = next((f": {notice}" for notice in notices if notice.exit_code == interval.exit_code), "")
    return f"the last run is {interval.verdict}{first}"
