"""Prometheus metrics of an ingress from a tree: the original's counters and gauges under Prometheus' names."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from maxbrod.replicate.seed.report import PartitionStatus
    from maxbrod.replicate.seed.run import TreeIngress

_LABELS: Final = ["region", "topic", "partition"]
_COUNTERS: Final[dict[str, tuple[str, Callable[[PartitionStatus], float]]]] = {
    "messages_produced": ("Records produced.", lambda each: each.records),
    "messages_lost": (
        "Offsets that were given up.",
        lambda each: sum(last - first + 1 for first, last in each.lost),
    ),
    "segments_read": ("Segments read to their end.", lambda each: each.segments_read),
    "segments_lost": ("Ranges of offsets that were given up.", lambda each: len(each.lost)),
}
_GAUGES: Final[dict[str, tuple[str, Callable[[PartitionStatus], float | None]]]] = {
    "segments_waiting": ("Known segments that are not at the destination yet.", lambda each: each.segments_waiting),
    "segments_late": ("1 while a segment is late.", lambda each: each.state == "late segment"),
    "checkpoint": ("The last source offset at the destination.", lambda each: each.checkpoint),
    "faulted": ("1 while nothing can be produced.", lambda each: each.fault is not None),
    "lag_seconds": (
        "The age of the oldest record of the last batch when it was produced.",
        lambda each: None if each.lag_ms is None else each.lag_ms / 1000,
    ),
}


class IngressCollector:
    """Reads the state of an ingress when it is asked for."""

    def __init__(self, ingress: TreeIngress) -> None:
        self._ingress = ingress

    def collect(self) -> Iterator[Metric]:
        statuses = self._ingress.statuses()
        for name, (about, read) in _COUNTERS.items():
            counter = CounterMetricFamily(f"maxbrod_ingress_{name}", about, labels=_LABELS)
            for each in statuses:
                counter.add_metric(_labels(each), read(each))
            yield counter
        for name, (about, found) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"maxbrod_ingress_{name}", about, labels=_LABELS)
            for each in statuses:
                value = found(each)
                if value is not None:
                    gauge.add_metric(_labels(each), value)
            yield gauge
        if self._ingress.counts is not None:
            events = CounterMetricFamily("maxbrod_ingress_notifications", "Messages and entries.", labels=["what"])
            for what, count in asdict(self._ingress.counts).items():
                events.add_metric([what], count)
            yield events


@contextmanager
def serving(ingress: TreeIngress, port: int, host: str) -> Iterator[int]:
    """Serve the metrics within the block; yields the port, which differs from `port` if that is 0."""
    registry = CollectorRegistry()
    registry.register(IngressCollector(ingress))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"metrics cannot be served: {error}", object_name=f"{host}:{port}", hint="choose another --metrics-port"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _labels(each: PartitionStatus) -> list[str]:
    return [each.region, each.topic, str(each.partition)]
