"""Prometheus metrics of replication. Egress has those of a backup besides.

The lag of native ingress has the label `topic` only, so that the number of series follows the topics and not the
partitions. Trees have the metrics of the original under Prometheus' names: docs/replication-seed.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from maxbrod.backup.metrics import registered
from maxbrod.cli import health
from maxbrod.errors import EXIT_DONE
from maxbrod.replicate.link import State
from maxbrod.replicate.report import WELL, IngressReport, PartitionStatus

if TYPE_CHECKING:
    from maxbrod.backup.report import BackupReport
    from maxbrod.replicate.egress import EgressShare
    from maxbrod.replicate.ingress.run import IngressInterval
    from maxbrod.replicate.seed.egress import TreeEgress
    from maxbrod.replicate.seed.partition import TreePartition
    from maxbrod.replicate.seed.run import TreeIngress

_DURATIONS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)
_INGRESS: Final = {
    "intervals": "Intervals by result.",
    "failures": "Failed intervals in a row.",
    "last_success_timestamp_seconds": "When the last interval ended in which this instance did all of its work.",
    "duration_seconds": "How long intervals took.",
    "lag_records": "Offsets that the source had at its heartbeat and this instance's mirrors lack; NaN while unknown.",
    "lag_bytes": "Archived bytes that this instance's mirrors lack.",
    "lag_seconds": "How long ago the mirror furthest behind had everything that the source had; NaN while unknown.",
    "never_archived_offsets": "Offsets of the source that the archive does not have, so that they never arrive.",
    "partitions": "Partitions of this instance by state.",
    "late_segments": "Partitions that wait for an object that the catalog names and that is missing or cut off.",
    "appended_offsets": "Offsets appended.",
    "appended_bytes": "Archived bytes whose records were all appended.",
    "group_offsets": "Offsets of groups committed.",
    "heartbeat_timestamp_seconds": "When egress wrote the newest heartbeat that has arrived; 0 if there is none.",
    "takeovers": "Instances that were lost and whose work was taken over.",
    "leads": "1 while this instance leads: it divides the partitions.",
}
_BEATS: Final = {
    "heartbeats": "Heartbeats by result.",
    "heartbeat_timestamp_seconds": "When the last heartbeat was written; 0 if none was.",
    "standing_by": "1 while other instances archive, and this one waits.",
    "leads": "1 while this instance leads: it divides the partitions.",
    "partitions": "Partitions that this instance archived in its last run.",
    "takeovers": "Instances that were lost and whose work was taken over.",
}
_COUNTERS: Final = ("intervals", "appended_offsets", "appended_bytes", "group_offsets", "takeovers", "heartbeats")
_LAGS: Final = ("lag_records", "lag_bytes", "lag_seconds")
_BY_TOPIC: Final = (*_LAGS, "never_archived_offsets")
_TREE_LABELS: Final = ["region", "topic", "partition"]


class IngressMetrics:
    """Call `observe` with every interval. Times are seconds since 1970, as usual in Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = {"intervals": "result", "partitions": "state", **dict.fromkeys(_BY_TOPIC, "topic")}
        self._metrics = registered(
            "replicate", _INGRESS, labels, self.registry, counters=_COUNTERS, durations_s=_DURATIONS_S
        )
        for result in ("complete", "incomplete", "failed", "standing by"):
            self._metrics["intervals"].labels(result)
        for state in State:
            self._metrics["partitions"].labels(str(state)).set(0)
        self._topics: tuple[str, ...] = ()
        self._taken_over = 0

    def observe(self, interval: IngressInterval) -> None:
        metrics, report = self._metrics, interval.report
        metrics["failures"].set(interval.failures)
        metrics["intervals"].labels(_result_of(interval)).inc()
        if report is None:
            # Nothing is known after a failure, and the last figures would look better than it is.
            for topic in self._topics:
                for name in _LAGS:
                    metrics[name].labels(topic).set(math.nan)
            return
        metrics["duration_seconds"].observe((report.finished_at_ms - report.started_at_ms) / 1000)
        if interval.exit_code == EXIT_DONE:
            metrics["last_success_timestamp_seconds"].set(report.finished_at_ms / 1000)
        self._observe(report)

    def _observe(self, report: IngressReport) -> None:
        metrics, states = self._metrics, report.states
        for state in State:
            metrics["partitions"].labels(str(state)).set(states.get(str(state), 0))
        metrics["late_segments"].set(states.get(str(State.LATE_SEGMENT), 0))
        metrics["appended_offsets"].inc(report.appended)
        metrics["appended_bytes"].inc(report.appended_bytes)
        metrics["group_offsets"].inc(report.groups)
        metrics["heartbeat_timestamp_seconds"].set((report.heartbeat_ms or 0) / 1000)
        metrics["takeovers"].inc(max(report.takeovers - self._taken_over, 0))
        self._taken_over = max(report.takeovers, self._taken_over)
        metrics["leads"].set(report.leads)
        by_topic: dict[str, list[PartitionStatus]] = {}
        for partition in report.partitions:
            by_topic.setdefault(partition.topic, []).append(partition)
        for name in _BY_TOPIC:
            metrics[name].clear()
        for topic, partitions in by_topic.items():
            lacking = sum(gap.offsets for partition in partitions for gap in partition.lacking)
            metrics["never_archived_offsets"].labels(topic).set(lacking)
            metrics["lag_bytes"].labels(topic).set(sum(partition.lag_bytes for partition in partitions))
            metrics["lag_records"].labels(topic).set(_known([each.lag_records for each in partitions], sum))
            metrics["lag_seconds"].labels(topic).set(_known([each.lag_ms for each in partitions], max) / 1000)
        self._topics = tuple(by_topic)


class BeatMetrics:
    """The heartbeats of egress, in the registry of its backup."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = registered("egress", _BEATS, {"heartbeats": "result"}, registry, counters=_COUNTERS)
        self._taken_over = 0
        for result in ("written", "failed"):
            self._metrics["heartbeats"].labels(result)

    def share(self, share: EgressShare) -> None:
        """Observe the share of this instance, before an interval."""
        self._metrics["standing_by"].set(not share.any)
        self._metrics["leads"].set(share.leads)
        self._metrics["takeovers"].inc(max(share.takeovers - self._taken_over, 0))
        self._taken_over = max(share.takeovers, self._taken_over)
        if not share.any:
            self._metrics["partitions"].set(0)

    def ran(self, report: BackupReport | None) -> None:
        if report is not None:
            self._metrics["partitions"].set(sum(topic.partitions for topic in report.topics))

    def observe(self, at_ms: int | None) -> None:
        """`at_ms`: when it was written; None: it could not be."""
        self._metrics["heartbeats"].labels("failed" if at_ms is None else "written").inc()
        if at_ms is not None:
            self._metrics["heartbeat_timestamp_seconds"].set(at_ms / 1000)


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


_TREE_COUNTERS: Final[dict[str, tuple[str, Callable[[TreePartition], float | None]]]] = {
    "messages_produced": ("Records produced.", lambda each: each.records),
    "messages_lost": (
        "Offsets that were given up.",
        lambda each: sum(last - first + 1 for first, last in each.lost),
    ),
    "checkpoints_saved": ("Batches whose checkpoint is durable.", lambda each: each.checkpoints_saved),
    "segments_unreadable": ("Attempts to read a segment that was gone or damaged.", lambda each: each.unreadable),
    "faults": ("Attempts that a broker or the store did not answer, or refused.", lambda each: each.faults),
    "segments_read": ("Segments read to their end.", lambda each: each.segments_read),
    "segments_lost": ("Ranges of offsets that were given up.", lambda each: len(each.lost)),
}
_TREE_GAUGES: Final[dict[str, tuple[str, Callable[[TreePartition], float | None]]]] = {
    "segments_waiting": ("Known segments that are not at the destination yet.", lambda each: each.segments_waiting),
    "segments_late": ("1 while a segment is late.", lambda each: each.state == "late segment"),
    "checkpoint": ("The last source offset at the destination.", lambda each: each.checkpoint),
    "faulted": ("1 while nothing can be produced.", lambda each: each.fault is not None),
    "lag_offsets": (
        "Offsets that the source had, when its egress last said so, and the destination lacks.",
        lambda each: each.lag_offsets,
    ),
    "lag_seconds": (
        "The age of the oldest record of the last batch when it was produced.",
        lambda each: None if each.lag_ms is None else each.lag_ms / 1000,
    ),
}


class TreeIngressCollector(Collector):
    """Reads the state of an ingress when it is asked for."""

    def __init__(self, ingress: TreeIngress) -> None:
        self._ingress = ingress

    def collect(self) -> Iterator[Metric]:
        statuses = self._ingress.statuses()
        for kind, metrics in ((CounterMetricFamily, _TREE_COUNTERS), (GaugeMetricFamily, _TREE_GAUGES)):
            for name, (about, read) in metrics.items():
                family = kind(f"maxbrod_ingress_{name}", about, labels=_TREE_LABELS)
                for status in statuses:
                    if (value := read(status)) is not None:
                        family.add_metric([status.region, status.topic, str(status.partition)], value)
                yield family
        yield CounterMetricFamily("maxbrod_ingress_listings", "Listings of the tree.", value=self._ingress.listings)
        spent_s, lag_ms = self._ingress.listing_ns / 1e9, self._ingress.notification_lag_ms
        yield CounterMetricFamily("maxbrod_ingress_listing_seconds", "Time that listings took.", value=spent_s)
        yield GaugeMetricFamily(
            "maxbrod_ingress_notification_lag_seconds",
            "The age of the newest event when it was received.",
            value=None if lag_ms is None else lag_ms / 1000,
        )
        events = CounterMetricFamily(
            "maxbrod_ingress_notifications", "Messages and entries, by the label `what`.", labels=["what"]
        )
        for what, count in ({} if self._ingress.counts is None else asdict(self._ingress.counts)).items():
            events.add_metric([what], count)
        yield events


class TreeEgressCollector(Collector):
    """Reads what an egress has written when it is asked for."""

    def __init__(self, egress: TreeEgress) -> None:
        self._egress = egress

    def collect(self) -> Iterator[Metric]:
        written = dict(self._egress.written)
        for what in ("messages", "segments"):
            counter = CounterMetricFamily(
                f"maxbrod_egress_{what}_written", f"{what.capitalize()} in the tree.", labels=_TREE_LABELS
            )
            for (where, kind), count in sorted(written.items()):
                if kind == what:
                    counter.add_metric([self._egress.region, where.topic, str(where.partition)], count)
            yield counter
        failed = CounterMetricFamily("maxbrod_egress_segments_rewinded", "Attempts that failed.", labels=_TREE_LABELS)
        for (topic, partition), count in sorted(dict(self._egress.rewinded).items()):
            failed.add_metric([self._egress.region, topic, str(partition)], count)
        yield failed
        lag = GaugeMetricFamily("maxbrod_egress_lag_offsets", "Offsets that are not in the tree.", labels=["topic"])
        for topic, behind in (self._egress.lags or {}).items():
            if behind is not None:
                lag.add_metric([topic], behind)
        yield lag


@contextmanager
def serving(collector: Collector, port: int, host: str, names: Collection[str] = ()) -> Iterator[int]:
    """Serve the metrics within the block; yields the port, which differs from `port` if that is 0."""
    registry = CollectorRegistry()
    registry.register(collector)
    with health.serving(registry, None, port, host, names) as served:
        yield served
