"""Any protocol, TLS included: a connection is one request, its two streams are request and answer."""

from __future__ import annotations

from maxbrod.sandbox.proxy.connection import Connection, Exchange, flip_request
from maxbrod.sandbox.proxy.faults import FlipAnswerBit, Request
from maxbrod.sandbox.proxy.stream import Body, Inlet


class TcpConnection(Connection):
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
        body = Body(inlet.pieces(), None)
        flow = self._answer_flow(exchange.claims)
        for flip in exchange.claims.of(FlipAnswerBit):
            body = body.flipped(flip.fault.at, flip.fault.bit, flip.fire)
        for piece in body.pieces:
            flow.send(piece)
        self._answered(exchange)
