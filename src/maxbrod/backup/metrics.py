"""Prometheus metrics of a backup that follows. They have a registry of their own, without metrics of the process.

The names are documented in docs/monitoring.md, and users' alerts depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maxbrod.errors import EXIT_DONE

if TYPE_CHECKING:
    from maxbrod.backup.follow import Interval

_DURATIONS_S: Final = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_TEXTS: Final = {
    "intervals": "Runs by result.",
    "failures": "Failed runs in a row.",
    "last_success_timestamp_seconds": "When the last complete run ended.",
    "recovery_point_timestamp_seconds": "Everything written before this can be restored; 0 while there is none.",
    "lag_offsets": "Offsets that the cluster has and the archive lacks; NaN while unknown.",
    "records": "Records archived.",
    "read_bytes": "Bytes of log read.",
    "stored_bytes": "Bytes stored in segments.",
    "duration_seconds": "How long runs took.",
    "notices": "Notices of runs.",
}
_COUNTERS: Final = ("intervals", "records", "read_bytes", "stored_bytes", "notices")


def registered(
    prefix: str,
    texts: Mapping[str, str],
    labels: Mapping[str, str],
    registry: CollectorRegistry,
    *,
    counters: Collection[str],
    durations_s: Sequence[float] = (),
) -> dict[str, Any]:
    """The metrics of these names, each with one label or none. One of a duration is a histogram, all others gauges."""
    kinds: dict[str, Callable[..., Any]] = dict.fromkeys(counters, Counter)
    kinds["duration_seconds"] = partial(Histogram, buckets=durations_s)
    return {
        name: kinds.get(name, Gauge)(
            f"maxbrod_{prefix}_{name}", text, [labels[name]] if name in labels else [], registry=registry
        )
        for name, text in texts.items()
    }


class BackupMetrics:
    """Call `observe` with every interval. Times are seconds since 1970, as usual in Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = {"intervals": "result", "lag_offsets": "topic", "notices": "kind"}
        self._metrics = registered(
            "backup", _TEXTS, labels, self.registry, counters=_COUNTERS, durations_s=_DURATIONS_S
        )
        self._topics: tuple[str, ...] = ()
        for result in ("complete", "incomplete", "failed"):
            self._metrics["intervals"].labels(result)

    def observe(self, interval: Interval) -> None:
        metrics = self._metrics
        metrics["failures"].set(interval.failures)
        metrics["duration_seconds"].observe((interval.finished_at_ms - interval.started_at_ms) / 1000)
        metrics["recovery_point_timestamp_seconds"].set((interval.recovery_point_ms or 0) / 1000)
        # A deleted topic has no lag, instead of its last one for ever. A topic that did not answer has an unknown one.
        lags = dict.fromkeys(self._topics) if interval.lags is None else interval.lags
        metrics["lag_offsets"].clear()
        for topic, lag in lags.items():
            metrics["lag_offsets"].labels(topic).set(math.nan if lag is None else lag)
        self._topics = tuple(lags)
        failed, complete = interval.failures > 0, interval.exit_code == EXIT_DONE
        metrics["intervals"].labels("failed" if failed else "complete" if complete else "incomplete").inc()
        if complete:
            metrics["last_success_timestamp_seconds"].set(interval.finished_at_ms / 1000)
        report = interval.report
        if report is not None:
            metrics["records"].inc(report.records)
            metrics["read_bytes"].inc(report.raw_bytes)
            metrics["stored_bytes"].inc(report.bytes)
            for notice in report.notices:
                metrics["notices"].labels(notice.kind).inc()


def problem_of(interval: Interval) -> str | None:
    """The reason why the last interval was not complete; None if it was."""
    if interval.error is not None:
        return str(interval.error)
    if interval.exit_code == EXIT_DONE:
        return None
    notices = () if interval.report is None else interval.report.notices
    first = next((f": {notice}" for notice in notices if notice.exit_code == interval.exit_code), "")
    return f"the last run is {interval.verdict}{first}"
