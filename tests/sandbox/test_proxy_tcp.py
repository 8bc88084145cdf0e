"""The proxy as a plain wire, its doors, its safety, and that it leaves nothing behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.sandbox.proxy.faults import (
    AnswerError,
    Blackhole,
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    FlipRequestBit,
    HttpMatch,
    KafkaMatch,
    LoseAnswer,
    ProxyFault,
    Refuse,
    Stall,
    Throttle,
    TruncateAnswer,
    Watch,
)
from maxbrod.sandbox.proxy.server import FaultProxy
from support.s3 import loopback_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")


def echo(connection: socket.socket) -> None:
    while data := connection.recv(65536):
        connection.sendall(data)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.fixture
def wire() -> Iterator[FaultProxy]:
    """A proxy before a server that echoes."""
    with loopback_server(echo) as address, FaultProxy(address) as proxy:
        yield proxy


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(proxy.address, timeout=60)


def test_bytes_pass_both_ways_and_a_half_close_passes_too(wire: FaultProxy) -> None:
    with connect(wire) as client:
        client.sendall(b"hello")
        assert client.recv(10) == b"hello"
        client.sendall(b"and goodbye")
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b"and goodbye"
    assert wire.requests == {"connection": 1}


def test_a_server_that_speaks_first_is_heard() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"hello")

    with loopback_server(greet) as address, FaultProxy(address) as proxy, connect(proxy) as client:
        assert read_all(client) == b"hello"


def test_a_large_stream_passes_unchanged() -> None:
    blocks = [os.urandom(1_000_000) for _ in range(20)]

    def pour(connection: socket.socket) -> None:
        for block in blocks:
            connection.sendall(block)

    with loopback_server(pour) as address, FaultProxy(address) as proxy, connect(proxy) as client:
        assert read_all(client) == b"".join(blocks)


def test_a_process_of_its_own_connects_to_the_proxy_of_another(wire: FaultProxy) -> None:
    script = (
        "import socket, sys\n"
        "with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as c:\n"
        "    c.sendall(b'from afar'); print(c.recv(100).decode(), end='')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script, str(wire.port)], capture_output=True, text=True, check=True)
    assert ran.stdout == "from afar"


@pytest.mark.parametrize(
    ("fault", "comes_back"),
    [
        (CutRequest(after_bytes=4), b"0123"),
        (CutAnswer(after_bytes=4), b"0123"),
        (FlipRequestBit(at=4), b"0123556789"),
        (FlipAnswerBit(at=4, bit=1), b"0123656789"),
    ],
)
def test_a_fault_hits_the_stream_at_its_byte(wire: FaultProxy, fault: ProxyFault, comes_back: bytes) -> None:
    wire.add(fault)
    with connect(wire) as client:
        client.sendall(b"0123456789")
        with suppress(OSError):
            client.shutdown(socket.SHUT_WR)
        # What a cut request brought back is lost with the connection, or not: both happen.
        assert read_all(client) in ({comes_back, b""} if isinstance(fault, CutRequest) else {comes_back})
    assert wire.fired[fault] == 1


def test_a_cut_request_brings_upstream_exactly_its_bytes() -> None:
    got: list[bytes] = []
    with loopback_server(lambda connection: got.append(read_all(connection))) as address, FaultProxy(address) as proxy:
        fault = proxy.add(CutRequest(after_bytes=70_000))
        with connect(proxy) as client, suppress(OSError):
            client.sendall(b"x" * 100_000)
            read_all(client)
        proxy.wait_for(fault)
    assert [len(data) for data in got] == [70_000]


def test_a_reset_is_seen_as_a_reset(wire: FaultProxy) -> None:
    wire.add(CutAnswer(after_bytes=0, reset=True))
    with connect(wire) as client:
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_refusing_resets_open_connections_and_refuses_new_ones(wire: FaultProxy) -> None:
    with connect(wire) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        port = wire.port
        with wire.fault(Refuse()):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
            for _ in range(3):
                with pytest.raises(ConnectionRefusedError):
                    connect(wire)
            with pytest.raises(OSError, match="in use"), socket.socket() as thief:
                thief.bind(("127.0.0.1", port))
    assert wire.port == port
    with connect(wire) as client:
        client.sendall(b"y")
        assert client.recv(1) == b"y"


def test_refusing_does_not_wait_for_a_client_that_does_not_read() -> None:
    def pour(connection: socket.socket) -> None:
        connection.sendall(bytes(100_000_000))

    with loopback_server(pour) as address, FaultProxy(address) as proxy, connect(proxy) as client:
        assert client.recv(1) == b"\0"
        began = time.monotonic()
        proxy.add(Refuse())
        assert time.monotonic() - began < 60, "100 MB that nobody reads would be waited for without end"
        with pytest.raises(OSError, match=r"reset|refused"):
            connect(proxy)


def test_a_blackhole_swallows_nothing_for_good(wire: FaultProxy) -> None:
    with connect(wire) as client:
        client.settimeout(0.2)
        with wire.fault(Blackhole()) as fault:
            client.sendall(b"0123")
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert wire.fired[fault] >= 1
        client.settimeout(60)
        assert client.recv(10) == b"0123"


@pytest.mark.parametrize("fault", [Blackhole(), Stall(), Stall(carried_out=True), Throttle(answer_bytes_per_second=1)])
def test_closing_never_waits_for_what_is_held(fault: ProxyFault) -> None:
    with loopback_server(echo) as address, FaultProxy(address) as proxy:
        proxy.add(fault)
        with connect(proxy) as client:
            client.sendall(b"0123456789" * 60)
            proxy.wait_for(fault)
            began = time.monotonic()
            proxy.close()
            assert time.monotonic() - began < 60, "at a byte a second the answer takes ten minutes"


def test_a_client_of_a_dead_server_is_not_kept_waiting() -> None:
    with loopback_server(echo) as address:
        pass
    with FaultProxy(address) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "127.0.0.1.example.org", "::", ""])
def test_an_upstream_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="loopback"):
        FaultProxy((host, 9092))


def test_it_listens_on_loopback_only(wire: FaultProxy) -> None:
    assert wire.address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("protocol", "fault"),
    [
        ("tcp", LoseAnswer()),
        ("tcp", TruncateAnswer(keep_bytes=1)),
        ("tcp", AnswerError()),
        ("tcp", FlipAnswerBit(at=-1)),
        ("kafka", AnswerError()),
        ("kafka", LoseAnswer(on=HttpMatch("PUT"))),
        ("http", LoseAnswer(on=KafkaMatch("Produce"))),
    ],
)
def test_a_fault_that_could_never_happen_is_refused(protocol: Any, fault: ProxyFault) -> None:
    with FaultProxy(("127.0.0.1", 1), protocol=protocol) as proxy, pytest.raises(UsageError):
        proxy.add(fault)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LoseAnswer(times=0),
        lambda: LoseAnswer(after=-1),
        lambda: FlipAnswerBit(at=0, bit=8),
        lambda: Throttle(request_bytes_per_second=0),
        lambda: KafkaMatch("Produkt"),
        lambda: HttpMatch(path="("),
        lambda: FaultProxy(("127.0.0.1", 1), protocol="ftp"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_makes_no_sense_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_fault_is_added_once_and_removed_once(wire: FaultProxy) -> None:
    fault = wire.add(Watch())
    with pytest.raises(UsageError):
        wire.add(Watch())
    wire.remove(fault)
    with pytest.raises(UsageError):
        wire.remove(fault)
    wire.add(fault)
    wire.add(Refuse())
    wire.clear()
    with connect(wire) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    assert wire.fired[fault] == 0


def test_a_fault_that_is_added_again_counts_from_none(wire: FaultProxy) -> None:
    for _ in range(2):
        with wire.fault(Watch(times=1)) as fault, connect(wire) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        assert wire.fired[fault] == 1


def test_waiting_for_a_fault_that_does_not_come_ends(wire: FaultProxy) -> None:
    fault = wire.add(Stall())
    with pytest.raises(UnavailableError, match="fired 0 times"):
        wire.wait_for(fault, timeout_s=0.05)


@pytest.mark.parametrize("protocol", ["http", "kafka"])
def test_bytes_of_another_protocol_fail_the_test_that_sent_them(protocol: Any) -> None:
    tls = bytes.fromhex("1603010200010001fc0303") + b"\r\n\r\n" * 100
    with loopback_server(echo) as address:
        proxy = FaultProxy(address, protocol=protocol).start()
        with connect(proxy) as client, suppress(OSError):
            client.sendall(tls)
            read_all(client)
        with pytest.raises(MaxbrodError, match=r"TLS|HTTP"):
            proxy.close()
