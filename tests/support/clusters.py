# ruff: noqa: PLC0415 - imported inside the fixtures: a run without Kafka must not pay for it, nor break with it
"""Clusters and the Java oracle, one of each for the whole run of the tests, started when first asked for.

Tests share a cluster: they use `topic`, a name nobody else has, and leave the brokers as they found them.
A test that breaks brokers starts a cluster of its own.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.server import FaultProxy
    from support.java_oracle import JavaOracle

# Clusters that the whole run shares do nothing most of the time. By default a controller then writes a record twice a
# second, which every broker fetches and stores: half of what an idle cluster costs.
_IDLE: Final = {"metadata.max.idle.interval.ms": "0"}

_RETRY_MS: Final = 10


def start_cluster(folder: Path | str, **options: Any) -> Cluster:
    """A cluster of brokers that live for minutes: the full compiler would take longer than what it makes faster."""
    from maxbrod.sandbox.cluster import DEFAULT_JVM_OPTIONS, Cluster
    from maxbrod.sandbox.jars import QUICK_OPTIONS

    _hurry_clients()
    return Cluster.start(folder, jvm_options=(*DEFAULT_JVM_OPTIONS, *QUICK_OPTIONS), **options)


def _hurry_clients() -> None:
    """By default a client of kafka-python that has just started waits for 100 ms before it asks for a topic, and again
    before each step of a transaction. Tests start thousands of them.
    """
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.admin import KafkaAdminClient
    from kafka.cluster import ClusterMetadata

    for each in (ClusterMetadata, KafkaAdminClient, KafkaConsumer, KafkaProducer):
        each.DEFAULT_CONFIG["retry_backoff_ms"] = _RETRY_MS


@contextmanager
def proxied_broker(folder: Path) -> Iterator[tuple[Cluster, FaultProxy]]:
    """A broker that sends clients of its PROXIED listener to the proxy; by `bootstrap` it is reached around it."""
    from maxbrod.sandbox.proxy.server import FaultProxy

    proxies: list[FaultProxy] = []

    def advertise(_: int, port: int) -> int:
        proxies.append(FaultProxy(("127.0.0.1", port), protocol="kafka").start())
        return proxies[-1].port

    try:
        with start_cluster(folder, advertise=advertise) as started:
            yield started, proxies[-1]
    finally:
        for proxy in proxies:
            proxy.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker."""
    with start_cluster(tmp_path_factory.mktemp("cluster"), config=_IDLE) as started:
        yield started


@pytest.fixture(scope="session")
def cluster3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers and a controller."""
    with start_cluster(tmp_path_factory.mktemp("cluster3"), brokers=3, config=_IDLE) as started:
        yield started


@pytest.fixture(scope="session")
def fenced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker with ACLs: by `bootstrap` all is allowed, by SASL alice and carol may do what tests allow them."""
    from maxbrod.sandbox.cli import write_client_files
    from maxbrod.sandbox.spec import SASL_PLAINTEXT

    users = {name: f"{name}-secret" for name in ("admin", "alice", "carol", "dave")}
    folder = tmp_path_factory.mktemp("fenced")
    with start_cluster(folder, listeners=(SASL_PLAINTEXT,), users=users, authorizer=True, config=_IDLE) as started:
        write_client_files(started)
        yield started


@pytest.fixture(autouse=True)
def _no_rule_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests share the cluster with ACLs, and which of them share it depends on how many run at a time."""
    yield
    if "fenced" in request.fixturenames:
        from support.access_rules import forbid_all

        forbid_all(request.getfixturevalue("fenced"))


@pytest.fixture(scope="session")
def java() -> Iterator[JavaOracle]:
    """Kafka's own Java classes."""
    from support.java_oracle import JavaOracle

    with JavaOracle.start() as oracle:
        yield oracle


@pytest.fixture
def topic() -> str:
    """A topic name that no other test uses. The test creates it."""
    return f"topic-{uuid.uuid4().hex[:12]}"
