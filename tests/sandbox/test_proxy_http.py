"""HTTP framing that S3 clients use, and versitygw with obstore does not: answered by Python's own server."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.proxy.faults import (
    AnswerError,
    CutAnswer,
    FlipAnswerBit,
    FlipRequestBit,
    HttpMatch,
    Latency,
    ProxyFault,
    TruncateAnswer,
)
from maxbrod.sandbox.proxy.server import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")


class Handler(BaseHTTPRequestHandler):
    """Answers with what it was asked: path, headers and body."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        pass

    def do_PUT(self) -> None:
        body = self._body()
        self._answer(200, b"%d:%s" % (len(body), body))

    def do_GET(self) -> None:
        if self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5;ext=1\r\n01234\r\n3\r\n567\r\n2\r\n89\r\n0\r\nX-Trailer: yes\r\n\r\n")
        elif self.path == "/until-close":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"0123456789")
        elif self.path in {"/204", "/304"}:
            self.send_response(int(self.path[1:]))
            self.end_headers()
        else:
            self._answer(200, str(self.headers["Host"]).encode())

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers["Content-Length"]))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline() != b"\r\n":
            pass
        return body

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    # As daemons its threads would not be waited for.
    daemon_threads = False


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with Server(("127.0.0.1", 0), Handler) as upstream:
        thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with FaultProxy(("127.0.0.1", upstream.server_port), protocol="http") as started:
                yield started
        finally:
            upstream.shutdown()
            thread.join()


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    with closing(http.client.HTTPConnection(*proxy.address, timeout=60)) as connection:
        yield connection


def ask(client: http.client.HTTPConnection, method: str, path: str, **more: object) -> bytes:
    client.request(method, path, **more)  # type: ignore[arg-type]
    return client.getresponse().read()


def test_one_connection_carries_every_kind_of_message(client: http.client.HTTPConnection, proxy: FaultProxy) -> None:
    for _ in range(2):
        assert ask(client, "PUT", "/x", body=b"abc") == b"3:abc"
        own_socket = client.sock
        assert ask(client, "PUT", "/x", body=iter([b"ab", b"c" * 70_000]), encode_chunked=True)[:9] == b"70002:abc"
        assert ask(client, "GET", "/chunked") == b"0123456789"
        assert ask(client, "GET", "/204") == b""
        assert ask(client, "GET", "/304") == b""
        assert ask(client, "HEAD", "/x") == b""
        assert client.sock is own_socket, "keep-alive"
    assert ask(client, "GET", "/until-close") == b"0123456789"
    assert proxy.requests == {"PUT": 4, "GET": 7, "HEAD": 2}


def test_the_host_that_was_signed_is_the_host_that_arrives(
    client: http.client.HTTPConnection, proxy: FaultProxy
) -> None:
    assert ask(client, "GET", "/") == proxy.bootstrap.encode()
    assert ask(client, "GET", "/", headers={"Host": "bucket.example.org:81"}) == b"bucket.example.org:81"


def raw(proxy: FaultProxy, *said: bytes, until: bytes) -> bytes:
    """Say one thing after the other, each after an answer; everything that came back up to `until`."""
    heard = b""
    with socket.create_connection(proxy.address, timeout=60) as connection:
        for number, words in enumerate(said):
            connection.sendall(words)
            mark = until if number == len(said) - 1 else b"\r\n\r\n"
            while mark not in heard:
                piece = connection.recv(65536)
                if not piece:
                    return heard
                heard += piece
    return heard


EXPECT = b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"


def test_a_client_that_waits_for_100_continue_gets_it_and_then_its_answer(proxy: FaultProxy) -> None:
    fault = proxy.add(FlipAnswerBit(at=-1))
    heard = raw(proxy, EXPECT, b"abc", until=b"3:abb")
    assert heard.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert proxy.fired[fault] == 1, "the answer is what the fault is for, not the 100 before it"


def test_a_client_that_waits_for_100_continue_is_told_of_an_error_at_once(proxy: FaultProxy) -> None:
    fault = proxy.add(AnswerError(retry_after_s=7))
    heard = raw(proxy, EXPECT, until=b"</Error>")
    assert heard.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 7\r\n" in heard
    assert b"<Code>SlowDown</Code>" in heard
    assert proxy.fired[fault] == 1


def test_an_error_may_come_late(client: http.client.HTTPConnection, proxy: FaultProxy) -> None:
    late, error = proxy.add(Latency(request_s=0.2)), proxy.add(AnswerError())
    began = time.monotonic()
    assert b"SlowDown" in ask(client, "PUT", "/x", body=b"abc")
    assert time.monotonic() - began >= 0.2
    assert (proxy.fired[late], proxy.fired[error]) == (1, 1)


def test_requests_sent_ahead_are_answered_in_order(proxy: FaultProxy) -> None:
    fault = proxy.add(AnswerError(on=HttpMatch(path="/2"), message="<&>"))
    pipelined = b"".join(
        b"PUT /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nnr-%d" % (number, number) for number in range(4)
    )
    heard = raw(proxy, pipelined, until=b"4:nr-3")
    places = [heard.index(mark) for mark in (b"4:nr-0", b"4:nr-1", b"&lt;&amp;&gt;", b"4:nr-3")]
    assert places == sorted(places)
    assert proxy.fired[fault] == 1


def test_an_error_for_a_head_request_has_no_body(client: http.client.HTTPConnection, proxy: FaultProxy) -> None:
    proxy.add(AnswerError(on=HttpMatch("HEAD")))
    client.request("HEAD", "/x")
    answer = client.getresponse()
    assert (answer.status, answer.read()) == (503, b"")
    assert ask(client, "PUT", "/x", body=b"abc") == b"3:abc"


def test_a_trailer_after_chunks_passes(proxy: FaultProxy) -> None:
    heard = raw(proxy, b"GET /chunked HTTP/1.1\r\nHost: h\r\n\r\n", until=b"yes\r\n\r\n")
    assert heard.endswith(b"0\r\nX-Trailer: yes\r\n\r\n")


@pytest.mark.parametrize("path", ["/chunked", "/until-close"])
@pytest.mark.parametrize(
    ("fault", "body"),
    [
        (FlipAnswerBit(at=5), b"0123446789"),
        (FlipAnswerBit(at=-1), b"0123456788"),
        (TruncateAnswer(keep_bytes=7, consistent=True), b"0123456"),
        (TruncateAnswer(keep_bytes=-2, consistent=True), b"01234567"),
    ],
)
def test_faults_count_bytes_of_the_body_whatever_its_framing(
    client: http.client.HTTPConnection, proxy: FaultProxy, path: str, fault: ProxyFault, body: bytes
) -> None:
    proxy.add(fault)
    assert ask(client, "GET", path) == body
    assert proxy.fired[fault] == 1


@pytest.mark.parametrize("fault", [TruncateAnswer(keep_bytes=7), CutAnswer(after_bytes=120)])
def test_chunks_that_break_off_are_noticed(
    client: http.client.HTTPConnection, proxy: FaultProxy, fault: ProxyFault
) -> None:
    proxy.add(fault)
    with pytest.raises(http.client.IncompleteRead):
        ask(client, "GET", "/chunked")
    assert proxy.fired[fault] == 1


def test_a_bit_is_flipped_in_the_payload_of_a_chunked_request(
    client: http.client.HTTPConnection, proxy: FaultProxy
) -> None:
    fault = proxy.add(FlipRequestBit(at=-1))
    assert ask(client, "PUT", "/x", body=iter([b"0123", b"4567"]), encode_chunked=True) == b"8:01234566"
    assert proxy.fired[fault] == 1


def test_a_fault_on_a_body_that_is_not_there_does_not_happen(
    client: http.client.HTTPConnection, proxy: FaultProxy
) -> None:
    fault = proxy.add(TruncateAnswer(keep_bytes=0, consistent=True, times=1))
    assert ask(client, "HEAD", "/x") == b""
    assert ask(client, "GET", "/204") == b""
    assert proxy.fired[fault] == 0
    assert ask(client, "GET", "/chunked") == b""
    assert proxy.fired[fault] == 1
