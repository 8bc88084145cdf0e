"""Prometheus metrics of native ingress, and the heartbeats of egress. Egress has the metrics of a backup besides.

The lag has the label `topic` only, so that the number of series follows the topics and not the partitions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maxbrod.errors import EXIT_DONE
from maxbrod.replicate.link import State
from maxbrod.replicate.report import WELL, IngressReport, PartitionStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from maxbrod.backup.report import BackupReport
    from maxbrod.replicate.egress import EgressShare
    from maxbrod.replicate.ingress.run import IngressInterval

_DURATIONS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


class IngressMetrics:
    """Call `observe` with every interval. Times are seconds since 1970, as usual in Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        here = self.registry
        self._intervals = Counter("maxbrod_replicate_intervals", "Intervals by result.", ["result"], registry=here)
        self._failures = Gauge("maxbrod_replicate_failures", "Failed intervals in a row.", registry=here)
        self._success = Gauge(
            "maxbrod_replicate_last_success_timestamp_seconds",
            "When the last interval ended in which this instance did all of its work.",
            registry=here,
        )
        self._duration = Histogram(
            "maxbrod_replicate_duration_seconds", "How long intervals took.", buckets=_DURATIONS_S, registry=here
        )
        self._lags = {
            "records": Gauge(
                "maxbrod_replicate_lag_records",
                "Offsets that the source had at its heartbeat and this instance's mirrors lack; NaN while unknown.",
                ["topic"],
                registry=here,
            ),
            "bytes": Gauge(
                "maxbrod_replicate_lag_bytes",
                "Archived bytes that this instance's mirrors lack.",
                ["topic"],
                registry=here,
            ),
            "seconds": Gauge(
                "maxbrod_replicate_lag_seconds",
                "How long ago the mirror furthest behind had everything that the source had; NaN while unknown.",
                ["topic"],
                registry=here,
            ),
        }
        self._lacking = Gauge(
            "maxbrod_replicate_never_archived_offsets",
            "Offsets of the source that the archive does not have, so that they never arrive.",
            ["topic"],
            registry=here,
        )
        self._partitions = Gauge(
            "maxbrod_replicate_partitions", "Partitions of this instance by state.", ["state"], registry=here
        )
        self._late = Gauge(
            "maxbrod_replicate_late_segments",
            "Partitions that wait for an object that the catalog names and that is missing or cut off.",
            registry=here,
        )
        self._offsets = Counter("maxbrod_replicate_appended_offsets", "Offsets appended.", registry=here)
        self._bytes = Counter(
            "maxbrod_replicate_appended_bytes", "Archived bytes whose records were all appended.", registry=here
        )
        self._groups = Counter("maxbrod_replicate_group_offsets", "Offsets of groups committed.", registry=here)
        self._heartbeat = Gauge(
            "maxbrod_replicate_heartbeat_timestamp_seconds",
            "When egress wrote the newest heartbeat that has arrived; 0 if there is none.",
            registry=here,
        )
        self._takeovers = Counter(
            "maxbrod_replicate_takeovers", "Instances that were lost and whose work was taken over.", registry=here
        )
        self._leads = Gauge(
            "maxbrod_replicate_leads", "1 while this instance leads: it divides the partitions.", registry=here
        )
        for result in ("complete", "incomplete", "failed", "standing by"):
            self._intervals.labels(result)
        for state in State:
            self._partitions.labels(str(state)).set(0)
        self._topics: tuple[str, ...] = ()
        self._taken_over = 0

    def observe(self, interval: IngressInterval) -> None:
        self._failures.set(interval.failures)
        report = interval.report
        self._intervals.labels(_result_of(interval)).inc()
        if report is None:
            self._forget()
            return
        self._duration.observe((report.finished_at_ms - report.started_at_ms) / 1000)
        if interval.exit_code == EXIT_DONE:
            self._success.set(report.finished_at_ms / 1000)
        self._observe(report)

    def _observe(self, report: IngressReport) -> None:
        for state in State:
            self._partitions.labels(str(state)).set(report.states.get(str(state), 0))
        self._late.set(report.states.get(str(State.LATE_SEGMENT), 0))
        self._offsets.inc(report.appended)
        self._bytes.inc(report.appended_bytes)
        self._groups.inc(report.groups)
        self._heartbeat.set((report.heartbeat_ms or 0) / 1000)
        self._takeovers.inc(max(report.takeovers - self._taken_over, 0))
        self._taken_over = max(report.takeovers, self._taken_over)
        self._leads.set(report.leads)
        by_topic: dict[str, list[PartitionStatus]] = {}
        for partition in report.partitions:
            by_topic.setdefault(partition.topic, []).append(partition)
        for gauge in (*self._lags.values(), self._lacking):
            gauge.clear()
        for topic, partitions in by_topic.items():
            self._lacking.labels(topic).set(sum(gap.offsets for partition in partitions for gap in partition.lacking))
            self._lags["bytes"].labels(topic).set(sum(partition.lag_bytes for partition in partitions))
            self._lags["records"].labels(topic).set(_known([partition.lag_records for partition in partitions], sum))
            self._lags["seconds"].labels(topic).set(_known([partition.lag_ms for partition in partitions], max) / 1000)
        self._topics = tuple(by_topic)

    def _forget(self) -> None:
        """Nothing is known after a failure, and the last figures would look better than it is."""
        for topic in self._topics:
            for gauge in self._lags.values():
                gauge.labels(topic).set(math.nan)


class BeatMetrics:
    """The heartbeats of egress, in the registry of its backup."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._beats = Counter("maxbrod_egress_heartbeats", "Heartbeats by result.", ["result"], registry=registry)
        self._last = Gauge(
            "maxbrod_egress_heartbeat_timestamp_seconds",
            "When the last heartbeat was written; 0 if none was.",
            registry=registry,
        )
        self._standing_by = Gauge(
            "maxbrod_egress_standing_by", "1 while other instances archive, and this one waits.", registry=registry
        )
        self._leads = Gauge(
            "maxbrod_egress_leads", "1 while this instance leads: it divides the partitions.", registry=registry
        )
        self._partitions = Gauge(
            "maxbrod_egress_partitions", "Partitions that this instance archived in its last run.", registry=registry
        )
        self._takeovers = Counter(
            "maxbrod_egress_takeovers", "Instances that were lost and whose work was taken over.", registry=registry
        )
        self._taken_over = 0
        for result in ("written", "failed"):
            self._beats.labels(result)

    def share(self, share: EgressShare) -> None:
        """Observe the share of this instance, before an interval."""
        self._standing_by.set(not share.any)
        self._leads.set(share.leads)
        self._takeovers.inc(max(share.takeovers - self._taken_over, 0))
        self._taken_over = max(share.takeovers, self._taken_over)
        if not share.any:
            self._partitions.set(0)

    def ran(self, report: BackupReport | None) -> None:
        if report is not None:
            self._partitions.set(sum(topic.partitions for topic in report.topics))

    def observe(self, at_ms: int | None) -> None:
        """`at_ms`: when it was written; None: it could not be."""
        self._beats.labels("failed" if at_ms is None else "written").inc()
        if at_ms is not None:
            self._last.set(at_ms / 1000)


def problem_of(interval: IngressInterval) -> str | None:
    """Return the reason why an interval was not complete; None if it was, or if other instances do the work."""
    if interval.error is not None:
        return str(interval.error)
    if interval.report is None or interval.report.standby_for is not None or interval.exit_code == EXIT_DONE:
        return None
    bad = next((partition for partition in interval.report.partitions if partition.state not in WELL), None)
    if bad is None:
        return f"the archive has no topic {interval.report.unmatched[0]}"
    return f"{bad.topic}-{bad.partition}: {bad.state}" + (f": {bad.why}" if bad.why else "")


def _result_of(interval: IngressInterval) -> str:
    if interval.error is not None:
        return "failed"
    if interval.report is not None and interval.report.standby_for is not None:
        return "standing by"
    return "complete" if interval.exit_code == EXIT_DONE else "incomplete"


def _known(values: Sequence[int | None], together: Callable[[Iterable[int]], int]) -> float:
    known = [value for value in values if value is not None]
    return together(known) if len(known) == len(values) else math.nan
