"""Metrics of a mount, read from the node when somebody asks. docs/reference/metrics.md has them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.protocol.api_key import ApiKey
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from maxbrod.mount.broker import BrokerNode

_GET_DOLLARS: Final = 0.0004 / 1000
"""What Amazon's S3 asks for a GET in its standard class. Other stores and classes have other prices."""


class MountCollector(Collector):
    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node
        loads = node.loader
        yield _counter("sent_bytes", "Bytes of record batches sent to clients.", node.fetcher.bytes)
        requests = CounterMetricFamily("maxbrod_mount_requests", "Requests by API.", labels=["api"])
        for key, count in sorted(node.requests.items()):
            requests.add_metric([ApiKey(key).name], count)
        yield requests
        yield _gauge("connections", "Open connections of clients.", node.connections)
        yield _gauge("fetch_sessions", "Fetch sessions of clients.", len(node.fetcher.sessions))
        yield _counter("cache_hits", "Chunks that were in memory when a client asked.", loads.hits)
        yield _counter("cache_misses", "Chunks that a client had to wait for.", loads.misses)
        yield _gauge("cache_bytes", "Bytes of chunks in memory.", loads.cache.bytes)
        yield _counter("store_requests", "Requests for records to the store.", loads.requests)
        yield _counter("store_bytes", "Bytes of records that the store was asked for.", loads.loaded_bytes)
        yield _counter("store_dollars", "What these requests would cost at Amazon's S3.", loads.requests * _GET_DOLLARS)
        yield _counter("load_errors", "Loads that failed: damaged or lost objects, a store away.", loads.errors)
        slowest = GaugeMetricFamily(
            "maxbrod_mount_slowest_load_seconds",
            "The longest load of the last minutes, and the partition that it was for.",
            labels=["topic", "partition"],
        )
        if loads.slowest is not None:
            where, seconds = loads.slowest
            slowest.add_metric([where.topic, str(where.partition)], seconds)
        yield slowest


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"maxbrod_mount_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"maxbrod_mount_{name}", text, value=value)


def registry_of(node: BrokerNode) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(MountCollector(node))
    return registry
