"""The proxy itself: listens on a free loopback port, starts a `Connection` for each client, adds and removes faults."""

from __future__ import annotations

import contextlib
import ipaddress
import select
import socket
import threading
from typing import TYPE_CHECKING, Final, Self, TypeVar

from maxbrod.errors import MaxbrodError, UnavailableError, UsageError
from maxbrod.sandbox.proxy.connection import Connection, Surroundings, TcpConnection
from maxbrod.sandbox.proxy.faults import Blackhole, Fault, FaultBook, FlipAnswerBit, FlipRequestBit, Protocol, Refuse
from maxbrod.sandbox.proxy.http import HttpConnection
from maxbrod.sandbox.proxy.kafka import KafkaConnection
from maxbrod.sandbox.proxy.stream import Gate
from maxbrod.sandbox.spec import HOST, free_ports

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator
    from types import TracebackType

F = TypeVar("F", bound=Fault)

_PROTOCOLS: Final[dict[str, type[Connection]]] = {
    "tcp": TcpConnection,
    "http": HttpConnection,
    "kafka": KafkaConnection,
}
_PORT_TRIES: Final = 5
_END_S: Final = 5.0
_RESET_S: Final = 0.5


class FaultProxy:
    """Stands between clients and one server on this machine, and injects faults.

    Faults may be added and removed at any time, from any thread; they hit requests that begin after that.
    `Refuse` and `Blackhole` hit open connections too. Leaving the context raises if the proxy itself failed,
    so that a test never passes on a fault that did not happen as described.
    """

    def __init__(self, upstream: tuple[str, int], *, protocol: Protocol = "tcp", port: int = 0) -> None:
        if protocol not in _PROTOCOLS:
            raise UsageError(f"unknown protocol {protocol!r}", hint=f"one of {', '.join(_PROTOCOLS)}")
        self.protocol: Protocol = protocol
        self.upstream = _loopback(upstream)
        self._port = port
        self._book = FaultBook()
        self._gate = Gate()
        self._lock = threading.Lock()
        self._connections: set[Connection] = set()
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
        self._gate.stop()
        self._end_connections(reset=False)
        if self._problems:
            raise MaxbrodError(f"the fault proxy failed: {'; '.join(self._problems)}", object_name=repr(self))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._check(fault)
        self._book.arm(fault)
        if isinstance(fault, Refuse):
            self._refuse(fault)
        if isinstance(fault, Blackhole):
            self._gate.shut(on_held=lambda: self._book.count(fault))
        return fault

    def remove(self, fault: Fault) -> None:
        self._book.disarm(fault)
        if isinstance(fault, Refuse) and not self._book.armed(Refuse) and self._door is not None:
            self._door.open()
        if isinstance(fault, Blackhole) and not self._book.armed(Blackhole):
            self._gate.open()

    def clear(self) -> None:
        """Remove every fault; the counts stay."""
        for fault in self._book.armed(Fault):
            self.remove(fault)

    @contextlib.contextmanager
    def fault(self, fault: F) -> Iterator[F]:
        """The fault for the length of a `with`."""
        self.add(fault)
        try:
            yield fault
        finally:
            self.remove(fault)

    # Evidence

    @property
    def requests(self) -> Counter[str]:
        """Requests seen: by method, by name of Kafka's API, or connections. A copy."""
        return self._book.requests

    @property
    def fired(self) -> Counter[Fault]:
        """How often each fault took effect since it was last added, also those that are removed. A copy."""
        return self._book.fired

    def wait_for(self, fault: Fault, *, times: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until the fault has fired; UnavailableError if it does not."""
        self._book.wait_for(fault, times, timeout_s)

    # Inside

    def _check(self, fault: Fault) -> None:
        if self.protocol not in fault.protocols:
            raise UsageError(f"{type(fault).__name__} has no meaning in protocol {self.protocol!r}")
        if fault.on is not None and fault.on.protocol != self.protocol:
            raise UsageError(f"{fault.on!r} never matches in protocol {self.protocol!r}")
        if self.protocol == "tcp" and isinstance(fault, (FlipAnswerBit, FlipRequestBit)) and fault.at < 0:
            raise UsageError("a TCP stream has no end to count from", hint="give a position from its start")

    def _refuse(self, fault: Refuse) -> None:
        if self._door is not None:
            self._door.shut()
        self._book.count(fault)
        self._end_connections(reset=True)

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
            self._report(f"{ended.count(False)} of {len(ended)} connections did not end")

    def _welcome(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        around = Surroundings(
            upstream=self.upstream, book=self._book, gate=self._gate, report=self._report, leave=self._leave
        )
        connection = _PROTOCOLS[self.protocol](client, around)
        with self._lock:
            self._connections.add(connection)
        connection.start()

    def _report(self, problem: str) -> None:
        with self._lock:
            self._problems.append(problem)

    def _leave(self, connection: Connection) -> None:
        with self._lock:
            self._connections.discard(connection)


class _Door:
    """The listener and the thread that accepts. While shut, the port stays ours and refuses connections."""

    def __init__(self, port: int, welcome: Callable[[socket.socket], None]) -> None:
        self._welcome = welcome
        self._sock = _bound(port) if port else _bound_to_any()
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


def _bound_to_any() -> socket.socket:
    """Not port 0, which picks from the range of outgoing connections: see `maxbrod.sandbox.spec`."""
    for port in free_ports(_PORT_TRIES):
        with contextlib.suppress(OSError):
            return _bound(port)
    raise UnavailableError("cannot find a port that stays free", operation="start")


def _bound(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock


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
