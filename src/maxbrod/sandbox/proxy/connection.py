"""One connection of a client and its connection to upstream: two threads, one for each direction.

A subclass finds the bounds of messages (`TcpConnection`, `http`, `kafka`); this class owns the sockets. A thread
never closes a socket that the other one may still use: it shuts it down, and the last thread closes both.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from maxbrod.sandbox.proxy.faults import (
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    FlipRequestBit,
    Latency,
    LoseAnswer,
    Request,
    Stall,
    Throttle,
)
from maxbrod.sandbox.proxy.stream import Body, Break, CutError, Flow, Gate, Inlet, ReceiverGoneError, SenderGoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maxbrod.sandbox.proxy.faults import Claim, Claims, FaultBook


_CONNECT_S: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all connections of one proxy share."""

    upstream: tuple[str, int]
    book: FaultBook
    gate: Gate
    report: Callable[[str], None]
    """Called with what should never happen: bytes that are not the protocol, or a bug of the proxy."""
    leave: Callable[[Connection], None]


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """A request that upstream receives or has received, and has not answered."""

    claims: Claims
    method: str = ""
    target: str = ""
    correlation_id: int = -1


class Connection(ABC):
    def __init__(self, client: socket.socket, around: Surroundings) -> None:
        self._around = around
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
            self._around.report(f"{type(self).__name__}: {type(error).__name__}: {error}")
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
        self._around.leave(self)

    # Used by the protocols

    def _connect(self) -> socket.socket:
        """The socket to upstream, which the first request opens."""
        if self._upstream is not None:
            return self._upstream
        try:
            upstream = socket.create_connection(self._around.upstream, _CONNECT_S)
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
            self._around.gate,
            breaks=_break(claims.first(CutRequest)),
            bytes_per_second=_rate(claims, "request_bytes_per_second"),
            before_last=lambda: claims.finish("request"),
        )

    def _answer_flow(self, claims: Claims | None) -> Flow:
        """The way of the answer to the client, after its latency."""
        if claims is None:
            return Flow(self._client, self._around.gate)
        self._delay(claims, "answer_s")
        return Flow(
            self._client,
            self._around.gate,
            breaks=_break(claims.first(CutAnswer)),
            bytes_per_second=_rate(claims, "answer_bytes_per_second"),
            before_last=lambda: claims.finish("answer"),
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
                self._around.gate.sleep(seconds)


def flip_request(claims: Claims, body: Body) -> Body:
    for flip in claims.of(FlipRequestBit):
        body = body.flipped(flip.fault.at, flip.fault.bit, flip.fire)
    return body


def flip_answer(claims: Claims, body: Body) -> Body:
    for flip in claims.of(FlipAnswerBit):
        body = body.flipped(flip.fault.at, flip.fault.bit, flip.fire)
    return body


def _break(cut: Claim[CutRequest] | Claim[CutAnswer] | None) -> Break | None:
    return None if cut is None else Break(after_bytes=cut.fault.after_bytes, reset=cut.fault.reset, fire=cut.fire)


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


class TcpConnection(Connection):
    """Any protocol, TLS included: a connection is one request, its two streams are request and answer."""

    def _carry_requests(self) -> None:
        claims = self._around.book.claim(Request(protocol="tcp", name="connection"))
        self._hold_request(claims)
        self._expect_answer(Exchange(claims))
        flow = self._request_flow(claims)
        for piece in flip_request(claims, Body(self._client_inlet.pieces(), None)).pieces:
            flow.send(piece)
        claims.finish("request")

    def _carry_answers(self, inlet: Inlet) -> None:
        exchange = self._oldest()
        if exchange is None or not inlet.wait():
            return
        # A stream has no complete answer to wait for: its first byte is enough to know that upstream answers.
        self._stall_answer(exchange.claims, Body(iter(()), 0))
        flow = self._answer_flow(exchange.claims)
        for piece in flip_answer(exchange.claims, Body(inlet.pieces(), None)).pieces:
            flow.send(piece)
        self._answered(exchange)
