"""Kafka's frames: a 4-byte length, then for a request the API's key and version and the correlation id, for an
answer the correlation id. The rest is carried through unread.

Requests may be pipelined. An answer belongs to the request with its correlation id; requests before that one
have no answer (Produce with acks=0). Frames with an unknown id (SASL tokens of old clients) pass unharmed.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING, Final

from kafka.protocol.api_key import ApiKey

from maxbrod.errors import UsageError
from maxbrod.sandbox.proxy.connection import Connection, Exchange, flip_answer, flip_request
from maxbrod.sandbox.proxy.faults import Request, TruncateAnswer
from maxbrod.sandbox.proxy.stream import Body, CutError, Flow, Inlet, shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maxbrod.sandbox.proxy.faults import Claims

_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhi")
# What a TLS handshake looks like when its first four bytes are read as a length.
_TLS_LENGTHS: Final = range(0x16030000, 0x16040000)


class KafkaConnection(Connection):
    def _carry_requests(self) -> None:
        while self._client_inlet.wait():
            size = _read_length(self._client_inlet)
            header = self._client_inlet.exactly(min(size, _REQUEST_HEADER.size))
            api_key, correlation_id = _identify(header)
            claims = self._around.book.claim(Request(protocol="kafka", name=api_name(api_key), api_key=api_key))
            self._hold_request(claims)
            self._expect_answer(Exchange(claims, correlation_id=correlation_id))
            flow = self._request_flow(claims)
            _send_frame(flow, size, flip_request(claims, Body(_rest(self._client_inlet, header, size), size)).pieces)
            claims.finish("request")

    def _carry_answers(self, inlet: Inlet) -> None:
        while inlet.wait():
            size = _read_length(inlet)
            header = inlet.exactly(min(size, _LENGTH.size))
            exchange = self._answers_to(header)
            body = Body(_rest(inlet, header, size), size)
            if exchange is None:
                self._send_answer(None, body, size)
            else:
                self._carry_answer(exchange.claims, body, size)
                self._answered(exchange)

    def _carry_answer(self, claims: Claims, body: Body, size: int) -> None:
        self._lose_answer(claims, body)
        self._stall_answer(claims, body)
        self._send_answer(claims, flip_answer(claims, body), size)

    def _send_answer(self, claims: Claims | None, body: Body, size: int) -> None:
        flow = self._answer_flow(claims)
        truncate = claims.first(TruncateAnswer) if claims else None
        keep = size if truncate is None else len(range(size)[: truncate.fault.keep_bytes])
        if truncate is None or keep == size:
            _send_frame(flow, size, body.pieces)
            return
        truncate.fire()
        _send_frame(flow, keep if truncate.fault.consistent else size, shortened(body.pieces, keep))
        if not truncate.fault.consistent:
            raise CutError
        body.drain()

    def _answers_to(self, header: bytearray) -> Exchange | None:
        """The request of this answer. Older requests will get none, so they are done."""
        if len(header) < _LENGTH.size:
            return None
        (correlation_id,) = _LENGTH.unpack(header)
        with self._changed:
            waiting = list(self._waiting)
        for position, exchange in enumerate(waiting):
            if exchange.correlation_id == correlation_id:
                for unanswered in waiting[:position]:
                    self._answered(unanswered)
                return exchange
        return None


def api_name(api_key: int) -> str:
    """Kafka's name of the API; its number if it is unknown here, or `unknown` without a header."""
    try:
        return str(ApiKey(api_key).name)
    except ValueError:
        return f"ApiKey{api_key}" if api_key >= 0 else "unknown"


def _identify(header: bytearray) -> tuple[int, int]:
    if len(header) < _REQUEST_HEADER.size:
        return -1, -1
    api_key, _, correlation_id = _REQUEST_HEADER.unpack(header)
    return api_key, correlation_id


def _read_length(inlet: Inlet) -> int:
    (size,) = _LENGTH.unpack(inlet.exactly(_LENGTH.size))
    if size in _TLS_LENGTHS:
        raise UsageError("this is TLS, not Kafka's plain frames", hint="use protocol='tcp' for an encrypted listener")
    if size < 0:
        raise UsageError(f"a frame cannot have {size} bytes", hint="is this a Kafka listener?")
    return int(size)


def _rest(inlet: Inlet, header: bytearray, size: int) -> Iterator[memoryview]:
    return chain([memoryview(header)], inlet.pieces(size - len(header)))


def _send_frame(flow: Flow, size: int, pieces: Iterator[memoryview]) -> None:
    flow.ends_after(_LENGTH.size + size)
    flow.send(_LENGTH.pack(size))
    for piece in pieces:
        flow.send(piece)
