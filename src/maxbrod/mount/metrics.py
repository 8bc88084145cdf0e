"""Metrics of a mount, read from its nodes when somebody asks. docs/reference/metrics.md has them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Self

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """What one node has done, and what it has open."""

    requests: Mapping[str, int] = field(default_factory=dict)
    """By the name of their API."""
    sent_bytes: int = 0
    refused: int = 0
    hits: int = 0
    misses: int = 0
    store_requests: int = 0
    store_bytes: int = 0
    errors: int = 0
    connections: int = 0
    sessions: int = 0
    cache_bytes: int = 0
    slowest: tuple[str, int, float] | None = None
    """Topic and partition of the longest load, and its seconds."""

    @classmethod
    def of(cls, node: BrokerNode) -> Self:
        loads = node.loader
        slowest = None
        if loads.slowest is not None:
            where, seconds = loads.slowest
            slowest = where.topic, where.partition, seconds
        return cls(
            requests={ApiKey(key).name: count for key, count in sorted(node.requests.items())},
            sent_bytes=node.fetcher.bytes,
            refused=node.refused,
            hits=loads.hits,
            misses=loads.misses,
            store_requests=loads.requests,
            store_bytes=loads.loaded_bytes,
            errors=loads.errors,
            connections=node.connections,
            sessions=len(node.fetcher.sessions),
            cache_bytes=loads.cache.bytes,
            slowest=slowest,
        )

    def ended(self) -> Self:
        """The figures of a node that is gone: what it did counts, and it has nothing open."""
        return replace(self, connections=0, sessions=0, cache_bytes=0, slowest=None)


class MountCollector(Collector):
    """`figures` returns those of all nodes."""

    def __init__(self, figures: Callable[[], Sequence[NodeFigures]]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        nodes = self._figures()

        def total(name: str) -> int:
            return sum(getattr(node, name) for node in nodes)

        yield _counter("sent_bytes", "Bytes of record batches sent to clients.", total("sent_bytes"))
        requests = CounterMetricFamily("maxbrod_mount_requests", "Requests by API.", labels=["api"])
        counts: Counter[str] = Counter()
        for node in nodes:
            counts.update(node.requests)
        for name, count in sorted(counts.items()):
            requests.add_metric([name], count)
        yield requests
        yield _gauge("connections", "Open connections of clients.", total("connections"))
        yield _counter("refused_connections", "Connections refused because there were too many.", total("refused"))
        yield _gauge("fetch_sessions", "Fetch sessions of clients.", total("sessions"))
        yield _counter("cache_hits", "Chunks that were in memory when a client asked.", total("hits"))
        yield _counter("cache_misses", "Chunks that a client had to wait for.", total("misses"))
        yield _gauge("cache_bytes", "Bytes of chunks in memory.", total("cache_bytes"))
        yield _counter("store_requests", "Requests for records to the store.", total("store_requests"))
        yield _counter("store_bytes", "Bytes of records that the store was asked for.", total("store_bytes"))
        dollars = total("store_requests") * _GET_DOLLARS
        yield _counter("store_dollars", "What these requests would cost at Amazon's S3.", dollars)
        yield _counter("load_errors", "Loads that failed: damaged or lost objects, a store away.", total("errors"))
        slowest = GaugeMetricFamily(
            "maxbrod_mount_slowest_load_seconds",
            "The longest load of the last minutes, and the partition that it was for.",
            labels=["topic", "partition"],
        )
        known = [node.slowest for node in nodes if node.slowest is not None]
        if known:
            topic, partition, seconds = max(known, key=lambda load: load[2])
            slowest.add_metric([topic, str(partition)], seconds)
        yield slowest


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"maxbrod_mount_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"maxbrod_mount_{name}", text, value=value)


def registry_of(figures: Callable[[], Sequence[NodeFigures]]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(MountCollector(figures))
    return registry
