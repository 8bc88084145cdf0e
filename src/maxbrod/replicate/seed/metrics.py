"""Prometheus metrics of an egress into a tree and an ingress from one: the original's, under Prometheus' names.

docs/replication-seed.md has the table of the original's names and ours.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from maxbrod.cli import health

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from maxbrod.replicate.seed.egress import TreeEgress
    from maxbrod.replicate.seed.report import TreePartition
    from maxbrod.replicate.seed.run import TreeIngress

_LABELS: Final = ["region", "topic", "partition"]
_COUNTERS: Final[dict[str, tuple[str, Callable[[TreePartition], float]]]] = {
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
_GAUGES: Final[dict[str, tuple[str, Callable[[TreePartition], float | None]]]] = {
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
        for name, (about, read) in _COUNTERS.items():
            counter = CounterMetricFamily(f"maxbrod_ingress_{name}", about, labels=_LABELS)
            for status in statuses:
                counter.add_metric(_labels(status), read(status))
            yield counter
        for name, (about, found) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"maxbrod_ingress_{name}", about, labels=_LABELS)
            for status in statuses:
                value = found(status)
                if value is not None:
                    gauge.add_metric(_labels(status), value)
            yield gauge
        listings = CounterMetricFamily("maxbrod_ingress_listings", "Listings of the tree.")
        listings.add_metric([], self._ingress.listings)
        yield listings
        spent = CounterMetricFamily("maxbrod_ingress_listing_seconds", "Time that listings took.")
        spent.add_metric([], self._ingress.listing_ns / 1e9)
        yield spent
        lag = GaugeMetricFamily(
            "maxbrod_ingress_notification_lag_seconds", "The age of the newest event when it was received."
        )
        if self._ingress.notification_lag_ms is not None:
            lag.add_metric([], self._ingress.notification_lag_ms / 1000)
        yield lag
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
                f"maxbrod_egress_{what}_written", f"{what.capitalize()} in the tree.", labels=_LABELS
            )
            for (where, kind), count in sorted(written.items()):
                if kind == what:
                    counter.add_metric([self._egress.region, where.topic, str(where.partition)], count)
            yield counter
        failed = CounterMetricFamily("maxbrod_egress_segments_rewinded", "Attempts that failed.", labels=_LABELS)
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


def _labels(each: TreePartition) -> list[str]:
    return [each.region, each.topic, str(each.partition)]
