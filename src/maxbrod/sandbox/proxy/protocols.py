"""The protocols that a proxy knows: where their messages begin and end, and which faults they have.

HTTP/1.1 as S3 clients speak it: keep-alive, lengths and chunks, `Expect: 100-continue`, HEAD, 204 and 304. Heads go
through byte for byte (a signature covers `Host` and others). Bodies are streamed; a chunked one keeps its payload and
trailer, not its chunk boundaries. No upgrade to another protocol.

Kafka's frames: a 4-byte length, then for a request the API's key and version and the correlation id, for an answer the
correlation id. The rest is carried through unread. Requests may be pipelined. An answer belongs to the request with its
correlation id; requests before that one have no answer (Produce with acks=0). Frames with an unknown id (SASL tokens of
old clients) pass unharmed.
"""

from __future__ import annotations

import http.client
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import Final
from uuid import uuid4
from xml.sax.saxutils import escape

from kafka.protocol.api_key import ApiKey

from maxbrod.errors import UsageError
from maxbrod.sandbox.proxy.connection import Exchange, ProxiedConnection, flipped
from maxbrod.sandbox.proxy.faults import (
    AnswerError,
    Claim,
    Claims,
    FlipAnswerBit,
    FlipRequestBit,
    Request,
    TruncateAnswer,
)
from maxbrod.sandbox.proxy.stream import Body, CutError, Flow, Inlet, shortened

_HEAD_BYTES_MAX: Final = 1024 * 1024
_LINE_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Head:
    """A start line and its fields, as they came."""

    raw: bytes

    @property
    def words(self) -> list[str]:
        return self.raw.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)

    def field(self, name: str) -> str | None:
        found = re.search(rb"\r\n" + re.escape(name.encode()) + rb":[ \t]*(.*?)[ \t]*\r\n", self.raw, re.IGNORECASE)
        return None if found is None else found[1].decode("latin-1")

    def with_length(self, size: int) -> Head:
        return Head(re.sub(rb"(?i)(\r\ncontent-length:[ \t]*)\d+", rb"\g<1>%d" % size, self.raw))

    @property
    def chunked(self) -> bool:
        return "chunked" in (self.field("Transfer-Encoding") or "").lower()

    @property
    def length(self) -> int | None:
        text = self.field("Content-Length")
        return None if text is None else int(text)


class Payload:
    """The body that follows a head: its bytes without framing, and the framing to send them on in."""

    def __init__(self, head: Head, inlet: Inlet, *, empty: bool, until_close: bool = False) -> None:
        self._inlet = inlet
        self._chunked = head.chunked and not empty
        self._trailer = b"\r\n"
        if self._chunked:
            self.body = Body(self._chunks(), None)
        elif empty:
            self.body = Body(iter(()), 0)
        elif head.length is None and until_close:
            self.body = Body(inlet.pieces(), None)
        else:
            self.body = Body(inlet.pieces(head.length or 0), head.length or 0)

    def send(self, flow: Flow, head: Head) -> None:
        """Send the head and the whole body."""
        if not self._chunked and self.body.size is not None:
            flow.ends_after(len(head.raw) + self.body.size)
        flow.send(head.raw)
        self.send_pieces(flow, self.body.pieces)
        self.finish(flow)

    def send_pieces(self, flow: Flow, pieces: Iterator[memoryview]) -> None:
        for piece in pieces:
            if not self._chunked:
                flow.send(piece)
                continue
            flow.send(b"%x\r\n" % len(piece))
            flow.send(piece)
            flow.send(b"\r\n")

    def finish(self, flow: Flow) -> None:
        if self._chunked:
            end = b"0\r\n" + self._trailer
            flow.ends_after(len(end))
            flow.send(end)

    def _chunks(self) -> Iterator[memoryview]:
        while size := int(self._line().split(b";")[0], 16):
            yield from self._inlet.pieces(size)
            self._inlet.exactly(2)
        trailer = bytearray()
        while (line := self._line()) != b"\r\n":
            trailer += line
        self._trailer = bytes(trailer + b"\r\n")

    def _line(self) -> bytearray:
        return self._inlet.until(b"\r\n", _LINE_BYTES_MAX)


class HttpConnection(ProxiedConnection):
    def _carry_requests(self) -> None:
        while self._client_inlet.wait():
            head = _read_head(self._client_inlet)
            method, target, *_ = head.words
            conditional = head.field("If-None-Match") == "*"
            claims = self._proxy.claim(Request(name=method, target=target, conditional=conditional))
            payload = Payload(head, self._client_inlet, empty=False)
            self._hold_request(claims)
            if error := _error(claims, carried_out=False):
                self._answer_error(claims, error, head, payload)
                continue
            self._expect_answer(Exchange(claims, method=method, target=target))
            flow = self._request_flow(claims)
            payload.body = flipped(payload.body, claims, FlipRequestBit)
            payload.send(flow, head)
            claims.finish("request")

    def _answer_error(self, claims: Claims, error: Claim[AnswerError], head: Head, payload: Payload) -> None:
        """Answer in place of upstream. A client that waits for `100 Continue` will not send its body."""
        expects = head.field("Expect") is not None
        if not expects:
            payload.body.drain()
        self._wait_until_all_answered()
        error.fire()
        claims.release()
        method, target, *_ = head.words
        Flow(self._client, self._proxy.gate).send(error_answer(error.fault, method, target, close=expects))
        if expects:
            raise CutError

    def _carry_answers(self, inlet: Inlet) -> None:
        while inlet.wait():
            exchange = self._oldest()
            head = _read_head(inlet)
            status = int(head.words[1])
            if status == HTTPStatus.SWITCHING_PROTOCOLS:
                raise UsageError("the proxy carries HTTP only, and upstream switches to another protocol")
            if status < 200:
                Flow(self._client, self._proxy.gate).send(head.raw)
                continue
            method = exchange.method if exchange else ""
            empty = method == "HEAD" or status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
            payload = Payload(head, inlet, empty=empty, until_close=True)
            if exchange is None:
                self._send_answer(None, head, payload)
            else:
                self._carry_answer(exchange, head, payload)
                self._answered(exchange)

    def _carry_answer(self, exchange: Exchange, head: Head, payload: Payload) -> None:
        claims = exchange.claims
        self._lose_answer(claims, payload.body)
        self._stall_answer(claims, payload.body)
        if error := _error(claims, carried_out=True):
            payload.body.drain()
            error.fire()
            flow, answer = self._answer_flow(claims), error_answer(error.fault, exchange.method, exchange.target)
            flow.ends_after(len(answer))
            flow.send(answer)
            return
        payload.body = flipped(payload.body, claims, FlipAnswerBit)
        self._send_answer(claims, head, payload)

    def _send_answer(self, claims: Claims | None, head: Head, payload: Payload) -> None:
        flow = self._answer_flow(claims)
        truncate = claims.first(TruncateAnswer) if claims else None
        if truncate is not None:
            payload.body = payload.body.measured()
            keep = len(range(payload.body.size or 0)[: truncate.fault.keep_bytes])
            if keep != payload.body.size:
                truncate.fire()
                flow.send((head.with_length(keep) if truncate.fault.consistent else head).raw)
                payload.send_pieces(flow, shortened(payload.body.pieces, keep))
                if not truncate.fault.consistent:
                    raise CutError
                payload.finish(flow)
                payload.body.drain()
                return
        payload.send(flow, head)


def error_answer(fault: AnswerError, method: str, target: str, *, close: bool = False) -> bytes:
    """An error in S3's format, head and body."""
    request_id = uuid4().hex.upper()[:16]
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{escape(fault.code)}</Code><Message>{escape(fault.message)}</Message>"
        f"<Resource>{escape(target.partition('?')[0])}</Resource><RequestId>{request_id}</RequestId></Error>"
    ).encode()
    fields = [
        f"HTTP/1.1 {fault.status} {http.client.responses.get(fault.status, 'Error')}",
        f"x-amz-request-id: {request_id}",
        "Content-Type: application/xml",
        f"Content-Length: {len(body)}",
    ]
    if fault.retry_after_s is not None:
        fields.append(f"Retry-After: {fault.retry_after_s}")
    if close:
        fields.append("ProxiedConnection: close")
    head = "\r\n".join([*fields, "", ""]).encode()
    return head if method == "HEAD" else head + body


def _read_head(inlet: Inlet) -> Head:
    head = Head(bytes(inlet.until(b"\r\n\r\n", _HEAD_BYTES_MAX)))
    if len(head.words) < 2 or "HTTP/1." not in head.raw.split(b"\r\n", 1)[0].decode("latin-1"):
        raise UsageError("these bytes are not HTTP/1.1", hint="use protocol='tcp' for an encrypted listener")
    return head


def _error(claims: Claims, *, carried_out: bool) -> Claim[AnswerError] | None:
    return next((claim for claim in claims.of(AnswerError) if claim.fault.carried_out == carried_out), None)


_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhi")
# What a TLS handshake looks like when its first four bytes are read as a length.
_TLS_LENGTHS: Final = range(0x16030000, 0x16040000)


class KafkaConnection(ProxiedConnection):
    def _carry_requests(self) -> None:
        while self._client_inlet.wait():
            size = _read_length(self._client_inlet)
            header = self._client_inlet.exactly(min(size, _REQUEST_HEADER.size))
            known = len(header) == _REQUEST_HEADER.size
            api_key, _, correlation_id = _REQUEST_HEADER.unpack(header) if known else (-1, -1, -1)
            claims = self._proxy.claim(Request(name=api_name(api_key), api_key=api_key))
            self._hold_request(claims)
            self._expect_answer(Exchange(claims, correlation_id=correlation_id))
            flow = self._request_flow(claims)
            body = Body(_rest(self._client_inlet, header, size), size)
            _send_frame(flow, size, flipped(body, claims, FlipRequestBit).pieces)
            claims.finish("request")

    def _carry_answers(self, inlet: Inlet) -> None:
        while inlet.wait():
            size = _read_length(inlet)
            header = inlet.exactly(min(size, _LENGTH.size))
            exchange = self._answers_to(header)
            body = Body(_rest(inlet, header, size), size)
            if exchange is None:
                self._send_answer(None, body, size)
                continue
            self._lose_answer(exchange.claims, body)
            self._stall_answer(exchange.claims, body)
            self._send_answer(exchange.claims, flipped(body, exchange.claims, FlipAnswerBit), size)
            self._answered(exchange)

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
