"""The proxy itself: listens on a free loopback port, starts a `ProxiedConnection` for each client, and has faults."""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeVar

from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.sandbox.process import HOST, free_ports
from maxbrod.sandbox.proxy.connection import ProxiedConnection, TcpConnection
from maxbrod.sandbox.proxy.faults import Blackhole, FaultBook, FlipBit, Protocol, ProxyFault, Refuse
from maxbrod.sandbox.proxy.protocols import HttpConnection, KafkaConnection
from maxbrod.sandbox.proxy.stream import Gate

F = TypeVar("F", bound=ProxyFault)

_PROTOCOLS: Final[dict[str, type[ProxiedConnection]]] = {
    "tcp": TcpConnection,
    "http": HttpConnection,
    "kafka": KafkaConnection,
}
_PORT_TRIES: Final = 5
_END_S: Final = 5.0
_RESET_S: Final = 0.5


class FaultProxy(FaultBook):
    """Stands between clients and one server on this machine, and injects faults.

    Faults may be added and removed at any time, from any thread; they hit requests that begin after that.
    `Refuse` and `Blackhole` hit open connections too. Leaving the context raises if the proxy itself failed,
    so that a test never passes on a fault that did not happen as described.
    """

    def __init__(self, upstream: tuple[str, int], *, protocol: Protocol = "tcp") -> None:
        super().__init__()
        if protocol not in _PROTOCOLS:
            raise UsageError(f"unknown protocol {protocol!r}", hint=f"one of {', '.join(_PROTOCOLS)}")
        self.protocol: Protocol = protocol
        self.upstream = _loopback(upstream)
        self._port = 0
        self.gate = Gate()
        self._lock = threading.Lock()
        self._connections: set[ProxiedConnection] = set()
        self._problems: list[str] = []
        self._door: _Door | None = None

    def __repr__(self) -> str:
        return f"FaultProxy(upstream={self.upstream!r}, protocol={self.protocol!r}, port={self._port})"

    # Life

    def start(self) -> Self:
        if self._door is None:
            self._door = _Door(self._port, self._welcome)
            self._port = self._door.port
        return self

    def close(self) -> None:
        """Cut every connection and end every thread. Raises what went wrong inside the proxy."""
        if self._door is None:
            return
        self._door.close()
        self._door = None
        self.gate.stop()
        self._end_connections(reset=False)
        if self._problems:
            raise MaxbrodError(f"the fault proxy failed: {'; '.join(self._problems)}", object_name=repr(self))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        except MaxbrodError as problem:
            if error is None:
                raise
            error.add_note(str(problem))

    # Where

    @property
    def port(self) -> int:
        if self._door is None:
            raise UsageError("the proxy is not started", hint="use it as a context manager")
        return self._port

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def endpoint(self) -> str:
        """For an S3 client; a Kafka client takes `bootstrap`."""
        return f"http://{HOST}:{self.port}"

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    # Faults

    def add(self, fault: F) -> F:
        """Arm a fault; returns it, to be counted in `fired` or removed."""
        if self.protocol not in fault.protocols:
            raise UsageError(f"{type(fault).__name__} has no meaning in protocol {self.protocol!r}")
        if fault.on is not None and fault.on.protocol != self.protocol:
            raise UsageError(f"{fault.on!r} never matches in protocol {self.protocol!r}")
        if self.protocol == "tcp" and isinstance(fault, FlipBit) and fault.at < 0:
            raise UsageError("a TCP stream has no end to count from", hint="give a position from its start")
        self.arm(fault)
        if isinstance(fault, Refuse):
            if self._door is not None:
                self._door.shut()
            self.count(fault)
            self._end_connections(reset=True)
        if isinstance(fault, Blackhole):
            self.gate.shut(on_held=lambda: self.count(fault))
        return fault

    def remove(self, fault: ProxyFault) -> None:
        self.disarm(fault)
        if isinstance(fault, Refuse) and not self.armed(Refuse) and self._door is not None:
            self._door.open()
        if isinstance(fault, Blackhole) and not self.armed(Blackhole):
            self.gate.open()

    def clear(self) -> None:
        """Remove every fault; the counts stay."""
        for fault in self.armed(ProxyFault):
            self.remove(fault)

    @contextlib.contextmanager
    def fault(self, fault: F) -> Iterator[F]:
        """The fault for the length of a `with`."""
        self.add(fault)
        try:
            yield fault
        finally:
            self.remove(fault)

    # Inside

    def _end_connections(self, *, reset: bool) -> None:
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.abort(reset=reset)
        if reset:
            # A thread that sends to a client that does not read wakes from a full shutdown only.
            for connection in connections:
                if not connection.join(_RESET_S):
                    connection.abort()
        ended = [connection.join(_END_S) for connection in connections]
        if not all(ended):
            self.report(f"{ended.count(False)} of {len(ended)} connections did not end")

    def _welcome(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _PROTOCOLS[self.protocol](client, self)
        with self._lock:
            self._connections.add(connection)
        connection.start()

    def report(self, problem: str) -> None:
        """Note what should never happen: bytes that are not the protocol, or a bug of the proxy."""
        with self._lock:
            self._problems.append(problem)

    def leave(self, connection: ProxiedConnection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _Door:
    """The listener and the thread that accepts. While shut, the port stays ours and refuses connections."""

    def __init__(self, port: int, welcome: Callable[[socket.socket], None]) -> None:
        self._welcome = welcome
        self._sock = _bound(port)
        self.port: int = self._sock.getsockname()[1]
        self._thread: threading.Thread | None = None
        self._bell: tuple[socket.socket, socket.socket] | None = None
        self.open()

    def open(self) -> None:
        self._sock.listen(128)
        self._bell = socket.socketpair()
        self._thread = threading.Thread(
            target=self._accept, args=(self._sock, self._bell[0]), name="fault-proxy-accept", daemon=True
        )
        self._thread.start()

    def shut(self) -> None:
        """Stop listening. A bound socket that does not listen refuses connections and keeps the port."""
        self.close()
        self._sock = _bound(self.port)

    def close(self) -> None:
        if self._thread is not None and self._bell is not None:
            self._bell[1].send(b"!")
            self._thread.join()
            for end in self._bell:
                end.close()
            self._thread = self._bell = None
        self._sock.close()

    def _accept(self, listener: socket.socket, bell: socket.socket) -> None:
        while bell not in select.select([listener, bell], [], [])[0]:
            with contextlib.suppress(OSError):  # the client has gone already
                self._welcome(listener.accept()[0])


def _bound(port: int) -> socket.socket:
    """Not port 0, which picks from the range of outgoing connections: see `maxbrod.sandbox.process`."""
    for candidate in [port] if port else free_ports(_PORT_TRIES):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((HOST, candidate))
        except OSError:
            sock.close()
            if port:
                raise
            continue
        return sock
    raise UnavailableError("cannot find a port that stays free", operation="start")


def _loopback(address: tuple[str, int]) -> tuple[str, int]:
    """Every user of this machine can reach the proxy, so it accepts only upstreams on this machine."""
    host, port = address
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(f"the fault proxy stands only before loopback addresses, not {host!r}", hint="use 127.0.0.1")
    return (HOST if host == "localhost" else host), port
