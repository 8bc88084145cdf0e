"""kill -9 of a streaming driver before and after its decision, and brokers that go away meanwhile: each record once."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest

from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.proxy.faults import KafkaMatch, Stall
from maxbrod.sandbox.topics import create_topic
from maxbrod.table.sink import kafka_task as kafka_sink_rows
from support.clusters import proxied_broker
from support.kafka_writes import KEEP, Query, ends, rows, values
from support.processes import environment, program
from support.programs import kafka_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.sandbox.cluster import Cluster
    from maxbrod.sandbox.proxy.faults import ProxyFault
    from maxbrod.sandbox.proxy.server import FaultProxy
    from support.java_oracle import JavaOracle

pytestmark = pytest.mark.full

_PATIENCE_S = 240


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, FaultProxy]]:
    """A broker behind a proxy; by `bootstrap` it is reached around it."""
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as (cluster, proxy):
        yield cluster, proxy


class Driver:
    """A process with a Spark of its own."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        places = [str(folder / "input"), str(folder / "checkpoint")]
        command = program("kafka_stream", bootstrap, topic, *places)
        self._output = folder / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, env=environment(), stdout=output, stderr=subprocess.STDOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Its JVM and Python workers go with it; nothing of it may be left that could still commit."""
        family = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        self._process.kill()
        self._process.wait()
        assert not psutil.wait_procs(family, timeout=60)[1]

    def wait_for(self, proxy: FaultProxy, fault: ProxyFault) -> None:
        wait_for("the fault", lambda: proxy.fired[fault] or self._process.poll() is not None, timeout_s=_PATIENCE_S)
        assert proxy.fired[fault], self._output.read_text()


def test_a_streaming_driver_killed_before_and_after_its_decision_doubles_and_loses_nothing(
    broker: tuple[Cluster, FaultProxy], topic: str, java: JavaOracle, spark: Any, tmp_path: Path
) -> None:
    cluster, proxy = broker
    create_topic(cluster, topic, config=KEEP)
    (tmp_path / "input").mkdir()
    for name in ("a", "b"):
        (tmp_path / "input" / f"{name}.txt").write_text(f"{name}-1\n{name}-2\n")
    decisions = tmp_path / "checkpoint" / "maxbrod-kafka-sink" / "decisions"

    # Before: all tasks are done, and the driver looks once more at their transactions.
    fault = Stall(on=KafkaMatch("DescribeTransactions"))
    with proxy.fault(fault), Driver(proxy.bootstrap, topic, tmp_path) as first:
        first.wait_for(proxy, fault)
    assert not decisions.exists()
    assert ends(cluster, topic) == (0, 2)

    # After: it is decided, and no transaction has ended.
    with proxy.fault(Stall(on=KafkaMatch("EndTxn"))) as stalled, Driver(proxy.bootstrap, topic, tmp_path) as second:
        second.wait_for(proxy, stalled)
    assert [each.suffix for each in decisions.iterdir()] == [".json"]
    assert ends(cluster, topic)[0] == 0

    kafka_stream.stream(spark, proxy.bootstrap, topic, str(tmp_path / "input"), str(tmp_path / "checkpoint"))
    assert sorted(values(java, cluster, topic)) == ["a-1", "a-2", "b-1", "b-2"]


def test_a_broker_that_dies_and_comes_back_costs_a_wait_and_no_record(
    broker: tuple[Cluster, FaultProxy], topic: str, java: JavaOracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, _ = broker
    create_topic(cluster, topic, config=KEEP)
    monkeypatch.setattr(kafka_sink_rows, "PORTION_BYTES", 1)
    query = Query(cluster, tmp_path)
    query.begin()

    starting = threading.Thread(target=cluster.restart, args=(1,))

    def until_it_is_killed() -> Iterator[pa.RecordBatch]:
        yield rows(topic, ["a"])
        cluster.kill(1)
        starting.start()
        yield rows(topic, ["b"])

    try:
        query.commit([query.task(until_it_is_killed(), 0)], 0)
    finally:
        starting.join()
    query.batch(1, rows(topic, ["c"]))
    assert values(java, cluster, topic) == ["a", "b", "c"]
