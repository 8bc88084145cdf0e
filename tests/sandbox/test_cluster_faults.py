"""What a test may do to brokers, and that they come back with what they had."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.sandbox import topics, traffic
from maxbrod.sandbox.cluster import Cluster
from maxbrod.sandbox.process import free_ports, wait_for
from maxbrod.sandbox.topics import known_brokers
from support.clusters import start_cluster
from support.java_oracle import JavaOracle, JavaRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.full


def port_of(cluster: Cluster, broker: int) -> int:
    return cluster.spec.broker(broker).ports["PLAINTEXT"]


def config_of(cluster: Cluster, broker: int, name: str) -> str:
    text = (cluster.log_dir(broker).parent / "server.properties").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}=")]
    return line.partition("=")[2]


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for the tests of this file to break and mend."""
    with start_cluster(tmp_path_factory.mktemp("breakable"), brokers=3) as started:
        yield started


def test_any_two_of_three_brokers_may_die_and_come_back_with_their_data(
    java: JavaOracle, breakable: Cluster, topic: str
) -> None:
    topics.create_topic(breakable, topic, replication_factor=3)
    traffic.produce(breakable, topic, traffic.numbered(10))
    for broker in (1, 2):
        breakable.kill(broker)
        assert not breakable.alive(broker)
    topics.wait_for_in_sync(breakable, topic, {3})
    breakable.wait_until_settled()
    traffic.produce(breakable, topic, traffic.numbered(10, first=10))
    for broker in (1, 2):
        breakable.restart(broker)
    topics.wait_for_in_sync(breakable, topic, {1, 2, 3})
    for broker in (1, 2, 3):
        data = (breakable.log_dir(broker) / f"{topic}-0" / f"{0:020}.log").read_bytes()
        assert [record.value for record in java.parse(data)] == [b"value-%d" % number for number in range(20)]


def test_a_suspended_broker_keeps_silent_until_it_is_resumed(breakable: Cluster) -> None:
    breakable.suspend(2)
    try:
        assert breakable.alive(2)
        assert breakable.suspended(2)
        assert breakable.running == (1, 3)
        # The kernel still accepts the connection; nobody answers.
        with socket.create_connection(("127.0.0.1", port_of(breakable, 2)), timeout=60):
            pass
        breakable.wait_until_settled()
        assert known_brokers(port_of(breakable, 1)) == {1, 3}
    finally:
        breakable.resume(2)
    breakable.wait_until_settled()
    assert known_brokers(port_of(breakable, 2)) == {1, 2, 3}


def test_a_stopped_broker_hands_its_leadership_over_first(breakable: Cluster, topic: str) -> None:
    topics.create_topic(breakable, topic, assignments={0: [3, 1]})
    breakable.stop(3)
    assert topics.replicas(breakable, topic).leader == 1
    assert "shut down completed" in breakable.output(3).read_text()
    breakable.restart(3)
    breakable.wait_until_settled()


def test_a_restart_may_change_settings_for_good(breakable: Cluster) -> None:
    breakable.restart(1, config={"num.io.threads": "3"})
    breakable.restart(1)
    breakable.wait_until_settled()
    assert config_of(breakable, 1, "num.io.threads") == "3"
    assert "num.io.threads" not in (breakable.log_dir(2).parent / "server.properties").read_text()


def test_settings_change_on_running_brokers(breakable: Cluster) -> None:
    pids = [breakable._home(broker).process.pid for broker in breakable.broker_ids]
    breakable.set_config({"log.cleaner.backoff.ms": "321"})
    with pytest.raises(UsageError, match="refused"):
        breakable.set_config({"node.id": "9"}, broker_id=1)
    assert [breakable._home(broker).process.pid for broker in breakable.broker_ids] == pids


def test_a_sandbox_refuses_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    with pytest.raises(RefusedError, match="not empty"):
        Cluster.start(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"(?s)ended while it started.*num\.io\.threads"):
        Cluster.start(tmp_path / "c", config={"num.io.threads": "-7"})
    assert not (tmp_path / "c").exists()


def test_a_start_that_takes_too_long_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"not within 0\.01 s"):
        Cluster.start(tmp_path / "c", timeout_s=0.01)
    assert not (tmp_path / "c").exists()


def test_a_port_that_was_taken_meanwhile_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as thief:
        stolen = [thief.getsockname()[1], *free_ports(1)]
        answers = iter([stolen])
        monkeypatch.setattr(
            "maxbrod.sandbox.cluster.free_ports", lambda count: next(answers, None) or free_ports(count)
        )
        with start_cluster(tmp_path / "c") as cluster:
            assert port_of(cluster, 1) not in stolen
            assert known_brokers(port_of(cluster, 1)) == {1}


def test_clients_are_sent_to_the_advertised_port(java: JavaOracle, tmp_path: Path) -> None:
    with ExitStack() as forwarders:
        started: list[Forwarder] = []

        def advertise(_broker: int, port: int) -> int:
            started.append(forwarders.enter_context(closing(Forwarder(port))))
            return started[-1].port

        with Cluster.start(tmp_path / "c", advertise=advertise) as cluster:
            forwarder = started[-1]
            proxied = cluster.bootstrap_for("PROXIED")
            assert proxied == f"127.0.0.1:{forwarder.port}"
            topics.create_topic(cluster, "t")
            java.produce(proxied, "t", 0, [JavaRecord(timestamp_ms=1, value=b"through")])
            # The first for the address list, the second because that list led back here.
            assert forwarder.connections >= 2
            assert java.consume(cluster.bootstrap, "t", 0)[0].value == b"through"


def test_what_is_kept_can_be_read_after_the_end(tmp_path: Path) -> None:
    with start_cluster(tmp_path / "c", keep=True) as cluster:
        assert cluster.alive(1)
        # A broker answers a moment before it says this.
        said = cluster.output(1)
        wait_for("the broker's words", lambda: "Kafka Server started" in said.read_text() or None, timeout_s=60)
    assert not cluster.alive(1)
    assert "Kafka Server started" in said.read_text()


class Forwarder:
    """The smallest proxy: it copies bytes from one port to another, and counts connections."""

    def __init__(self, target: int) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.connections = 0
        self._target = target
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        wait_for("the forwarder to end", lambda: not any(t.is_alive() for t in self._threads), timeout_s=60)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            broker = socket.create_connection(("127.0.0.1", self._target))
            pair = threading.Thread(target=_copy_both, args=(client, broker))
            self._threads.append(pair)
            pair.start()


def _copy_both(client: socket.socket, broker: socket.socket) -> None:
    back = threading.Thread(target=_copy, args=(broker, client))
    back.start()
    _copy(client, broker)
    back.join()
    client.close()
    broker.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
