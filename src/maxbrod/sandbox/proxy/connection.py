"""One connection of a client and its connection to upstream: two threads, one for each direction.

A subclass finds the bounds of messages (`TcpConnection` and `protocols`); this class owns the sockets. A thread
never closes a socket that the other one may still use: it shuts it down, and the last thread closes both.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from maxbrod.sandbox.proxy.faults import (
    Claims,
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    FlipBit,
    FlipRequestBit,
    Latency,
    LoseAnswer,
    Request,
    Stall,
    Throttle,
)
from maxbrod.sandbox.proxy.stream import Body, CutError, Flow, Inlet, ReceiverGoneError, SenderGoneError

if TYPE_CHECKING:
    from maxbrod.sandbox.proxy.server import FaultProxy

_CONNECT_S: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """A request that upstream receives or has received, and has not answered."""

    claims: Claims
    method: str = ""
    target: str = ""
    correlation_id: int = -1


class ProxiedConnection(ABC):
    def __init__(self, client: socket.socket, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._client = client
        self._upstream: socket.socket | None = None
        self._client_inlet = Inlet(client)
        self._changed = threading.Condition()
        self._waiting: deque[Exchange] = deque()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._aborted = False
        self._client_done = False

    # Implemented by each protocol

    @abstractmethod
    def _carry_requests(self) -> None:
        """Forward requests of the client until it is done."""

    @abstractmethod
    def _carry_answers(self, inlet: Inlet) -> None:
        """Forward answers of upstream until it is done."""

    # Life

    def start(self) -> None:
        self._spawn(self._requests, "requests")

    def abort(self, *, reset: bool = False) -> None:
        """Close, from any thread: wakes both threads, and the last of them closes the sockets."""
        with self._changed:
            self._aborted = True
            for exchange in self._waiting:
                exchange.claims.release()
            if reset:
                # RST goes out on close, and only if no FIN went before it.
                with contextlib.suppress(OSError):
                    self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            _shut(self._client, socket.SHUT_RD if reset else socket.SHUT_RDWR)
            if self._upstream is not None:
                _shut(self._upstream, socket.SHUT_RDWR)
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        for thread in list(self._threads):
            thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=f"fault-proxy-{name}", daemon=True)
        with self._changed:
            self._running += 1
            self._threads.append(thread)
        thread.start()

    def _requests(self) -> None:
        with self._tidy():
            try:
                self._carry_requests()
            except ReceiverGoneError:
                # Upstream may have answered early, without reading the whole body: forward that answer.
                self._swallow_client()
            with self._changed:
                self._client_done = True
                self._changed.notify_all()
            if self._upstream is not None:
                _shut(self._upstream, socket.SHUT_WR)

    def _answers(self, inlet: Inlet) -> None:
        with self._tidy():
            self._carry_answers(inlet)
            with self._changed:
                if not self._aborted:  # or this would send FIN instead of RST
                    _shut(self._client, socket.SHUT_WR)

    @contextlib.contextmanager
    def _tidy(self) -> Iterator[None]:
        try:
            yield
        except CutError as cut:
            self.abort(reset=cut.reset)
        except (SenderGoneError, ReceiverGoneError):
            self.abort()
        except Exception as error:  # noqa: BLE001 - a thread cannot raise to the caller; the proxy raises it when closed
            self._proxy.report(f"{type(self).__name__}: {type(error).__name__}: {error}")
            self.abort()
        finally:
            self._last_one_closes()

    def _last_one_closes(self) -> None:
        with self._changed:
            self._running -= 1
            if self._running:
                return
            self._client.close()
            if self._upstream is not None:
                self._upstream.close()
        self._proxy.leave(self)

    # Used by the protocols

    def _connect(self) -> socket.socket:
        """The socket to upstream, which the first request opens."""
        if self._upstream is not None:
            return self._upstream
        try:
            upstream = socket.create_connection(self._proxy.upstream, _CONNECT_S)
        except OSError as error:
            raise CutError(reset=True) from error
        upstream.settimeout(None)
        upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            if self._aborted:
                upstream.close()
                raise CutError
            self._upstream = upstream
        self._spawn(partial(self._answers, Inlet(upstream)), "answers")
        return upstream

    def _expect_answer(self, exchange: Exchange) -> None:
        with self._changed:
            self._waiting.append(exchange)

    def _oldest(self) -> Exchange | None:
        with self._changed:
            return self._waiting[0] if self._waiting else None

    def _answered(self, exchange: Exchange) -> None:
        with self._changed:
            self._waiting.remove(exchange)
            exchange.claims.finish("answer")
            self._changed.notify_all()

    def _wait_until_all_answered(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._aborted)
            if self._aborted:
                raise CutError

    def _request_flow(self, claims: Claims) -> Flow:
        """The way of the request to upstream, with the faults on it."""
        return Flow(
            self._connect(),
            self._proxy.gate,
            cut=claims.first(CutRequest),
            bytes_per_second=_rate(claims, "request_bytes_per_second"),
            before_last=partial(claims.finish, "request"),
        )

    def _answer_flow(self, claims: Claims | None) -> Flow:
        """The way of the answer to the client, after its latency."""
        if claims is None:
            return Flow(self._client, self._proxy.gate)
        self._delay(claims, "answer_s")
        return Flow(
            self._client,
            self._proxy.gate,
            cut=claims.first(CutAnswer),
            bytes_per_second=_rate(claims, "answer_bytes_per_second"),
            before_last=partial(claims.finish, "answer"),
        )

    def _hold_request(self, claims: Claims) -> None:
        """Wait for the latency of the request; for ever if it is stalled before upstream."""
        self._delay(claims, "request_s")
        for stall in claims.of(Stall):
            if not stall.fault.carried_out:
                stall.fire()
                claims.release()
                self._swallow_client()
                raise CutError

    def _lose_answer(self, claims: Claims, body: Body) -> None:
        """Cut the connection if the answer is lost, after upstream has answered in full."""
        if lose := claims.first(LoseAnswer):
            body.drain()
            lose.fire()
            raise CutError(reset=lose.fault.reset)

    def _stall_answer(self, claims: Claims, body: Body) -> None:
        """Hold the connection if the answer is stalled, after upstream has answered in full."""
        for stall in claims.of(Stall):
            if stall.fault.carried_out:
                body.drain()
                stall.fire()
                with self._changed:
                    self._changed.wait_for(lambda: self._aborted or self._client_done)
                raise CutError

    def _swallow_client(self) -> None:
        for _ in self._client_inlet.pieces():
            pass

    def _delay(self, claims: Claims, which: str) -> None:
        for latency in claims.of(Latency):
            seconds: float = getattr(latency.fault, which)
            if seconds > 0:
                latency.fire()
                self._proxy.gate.sleep(seconds)


def flipped(body: Body, claims: Claims, kind: type[FlipBit]) -> Body:
    for flip in claims.of(kind):
        body = body.flipped(flip.fault.at, flip.fault.bit, flip.fire)
    return body


def _rate(claims: Claims, which: str) -> int | None:
    rates = []
    for throttle in claims.of(Throttle):
        rate: int | None = getattr(throttle.fault, which)
        if rate is not None:
            throttle.fire()
            rates.append(rate)
    return min(rates, default=None)


def _shut(sock: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(how)


class TcpConnection(ProxiedConnection):
    """Any protocol, TLS included: a connection is one request, its two streams are request and answer."""

    def _carry_requests(self) -> None:
        claims = self._proxy.claim(Request(name="connection"))
        self._hold_request(claims)
        self._expect_answer(Exchange(claims))
        flow = self._request_flow(claims)
        for piece in flipped(Body(self._client_inlet.pieces(), None), claims, FlipRequestBit).pieces:
            flow.send(piece)
        claims.finish("request")

    def _carry_answers(self, inlet: Inlet) -> None:
        exchange = self._oldest()
        if exchange is None or not inlet.wait():
            return
        # A stream has no complete answer to wait for: its first byte is enough to know that upstream answers.
        self._stall_answer(exchange.claims, Body(iter(()), 0))
        flow = self._answer_flow(exchange.claims)
        for piece in flipped(Body(inlet.pieces(), None), exchange.claims, FlipAnswerBit).pieces:
            flow.send(piece)
        self._answered(exchange)
