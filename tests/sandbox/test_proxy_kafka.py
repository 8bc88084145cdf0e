"""Kafka's frames through the proxy, from a server of a few lines that says what a test needs."""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from maxbrod.sandbox.proxy.faults import (
    CutAnswer,
    CutRequest,
    FlipAnswerBit,
    FlipRequestBit,
    KafkaMatch,
    Latency,
    LoseAnswer,
    ProxyFault,
    Stall,
    TruncateAnswer,
    Watch,
)
from maxbrod.sandbox.proxy.server import FaultProxy
from support.s3 import loopback_server

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.usefixtures("no_proxy_thread_left")

PRODUCE, FETCH, METADATA = 0, 1, 3
NO_ANSWER = b"acks=0"


def request(api_key: int, correlation_id: int, body: bytes = b"") -> bytes:
    payload = struct.pack(">hhi", api_key, 9, correlation_id) + body
    return struct.pack(">i", len(payload)) + payload


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError(f"ended after {len(data)} of {size} bytes")
        data += piece
    return data


def read_frame(connection: socket.socket) -> bytes:
    (size,) = struct.unpack(">i", read_exactly(connection, 4))
    return read_exactly(connection, size)


def answer(correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">i", correlation_id) + body


@pytest.fixture
def seen() -> list[bytes]:
    """The frames that reached the server, complete ones only."""
    return []


@pytest.fixture
def proxy(seen: list[bytes]) -> Iterator[FaultProxy]:
    """Before a server that answers with the correlation id and body of the request."""

    def serve(connection: socket.socket) -> None:
        while True:
            frame = read_frame(connection)
            seen.append(frame)
            if not frame.endswith(NO_ANSWER):
                connection.sendall(struct.pack(">i", len(frame) - 4) + frame[4:])

    with loopback_server(serve) as address, FaultProxy(address, protocol="kafka") as started:
        yield started


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address, timeout=60) as connection:
        yield connection


def test_frames_of_any_size_pass_unchanged(client: socket.socket, proxy: FaultProxy) -> None:
    for number, size in enumerate([0, 1, 3, 1000, 1_000_000, 20_000_000]):
        body = os.urandom(size)
        client.sendall(request(FETCH, number, body))
        assert read_frame(client) == answer(number, body)
    assert proxy.requests == {"Fetch": 6}


def test_a_frame_without_a_header_passes(client: socket.socket, proxy: FaultProxy, seen: list[bytes]) -> None:
    client.sendall(struct.pack(">i", 5) + b"token" + request(METADATA, 1))
    assert read_frame(client) == b"n"
    assert read_frame(client) == answer(1)
    assert seen == [b"token", request(METADATA, 1)[4:]]
    assert proxy.requests == {"unknown": 1, "Metadata": 1}


def test_requests_sent_ahead_are_each_matched_with_their_answer(
    client: socket.socket, proxy: FaultProxy, seen: list[bytes]
) -> None:
    fault = proxy.add(LoseAnswer(on=KafkaMatch("Produce"), after=1))
    client.sendall(b"".join(request(api, number) for number, api in enumerate([METADATA, PRODUCE, FETCH, PRODUCE])))
    assert [read_frame(client) for _ in range(3)] == [answer(0), answer(1), answer(2)]
    assert client.recv(1) == b""
    assert proxy.fired[fault] == 1
    assert len(seen) == 4, "the broker carried out the request whose answer was lost"


def test_a_produce_that_wants_no_answer_does_not_shift_the_others(client: socket.socket, proxy: FaultProxy) -> None:
    fault = proxy.add(FlipAnswerBit(on=KafkaMatch("Metadata"), at=4))
    client.sendall(request(PRODUCE, 7, NO_ANSWER) + request(METADATA, 8, b"0") + request(FETCH, 9, b"0"))
    assert read_frame(client) == answer(8, b"1")
    assert read_frame(client) == answer(9, b"0")
    assert proxy.fired[fault] == 1


def test_a_fault_for_an_answer_that_never_comes_waits_for_one_that_does(
    client: socket.socket, proxy: FaultProxy
) -> None:
    fault = proxy.add(FlipAnswerBit(at=4, times=1))
    client.sendall(request(PRODUCE, 7, NO_ANSWER) + request(METADATA, 8, b"0"))
    assert read_frame(client) == answer(8, b"0")
    client.sendall(request(FETCH, 9, b"0"))
    assert read_frame(client) == answer(9, b"1")
    assert proxy.fired[fault] == 1


@pytest.mark.parametrize(("match", "hits"), [(None, 4), ("Produce", 2), (PRODUCE, 2), ("Fetch", 1), (300, 1), (4, 0)])
def test_a_fault_hits_one_api_by_name_or_number(
    client: socket.socket, proxy: FaultProxy, match: str | int | None, hits: int
) -> None:
    watch = proxy.add(Watch(on=KafkaMatch(match)))
    client.sendall(b"".join(request(api, number) for number, api in enumerate([PRODUCE, FETCH, PRODUCE, 300])))
    for _ in range(4):
        read_frame(client)
    assert proxy.fired[watch] == hits
    assert proxy.requests == {"Produce": 2, "Fetch": 1, "ApiKey300": 1}


@pytest.mark.parametrize(
    ("fault", "arrives"),
    [
        (CutAnswer(after_bytes=0), b""),
        (CutAnswer(after_bytes=6), b"\x00\x00\x00\x0e\x00\x00"),
        (TruncateAnswer(keep_bytes=6), b"\x00\x00\x00\x0e\x00\x00\x00\x0101"),
        (TruncateAnswer(keep_bytes=-9), b"\x00\x00\x00\x0e\x00\x00\x00\x010"),
    ],
)
def test_an_answer_breaks_off_at_its_byte(
    client: socket.socket, proxy: FaultProxy, fault: ProxyFault, arrives: bytes
) -> None:
    proxy.add(fault)
    client.sendall(request(FETCH, 1, b"0123456789"))
    assert client.makefile("rb").read() == arrives
    assert proxy.fired[fault] == 1


def test_a_shorter_frame_with_its_own_length_looks_whole(client: socket.socket, proxy: FaultProxy) -> None:
    fault = proxy.add(TruncateAnswer(keep_bytes=-3, consistent=True, times=1))
    client.sendall(request(FETCH, 1, b"0123456789") + request(FETCH, 2, b"0123456789"))
    assert read_frame(client) == answer(1, b"0123456")
    assert read_frame(client) == answer(2, b"0123456789")
    assert proxy.fired[fault] == 1


def test_a_request_that_is_cut_never_reaches_the_broker_whole(
    client: socket.socket, proxy: FaultProxy, seen: list[bytes]
) -> None:
    fault = proxy.add(CutRequest(after_bytes=15))
    client.sendall(request(PRODUCE, 1, b"0123456789"))
    assert client.recv(1) == b""
    assert proxy.fired[fault] == 1
    assert seen == []


def test_a_bit_flipped_in_a_request_reaches_the_broker(
    client: socket.socket, proxy: FaultProxy, seen: list[bytes]
) -> None:
    fault = proxy.add(FlipRequestBit(at=-1))
    client.sendall(request(PRODUCE, 1, b"0123456789"))
    read_frame(client)
    assert seen == [request(PRODUCE, 1, b"0123456788")[4:]]
    assert proxy.fired[fault] == 1


def test_a_stalled_answer_holds_back_all_that_follow(client: socket.socket, proxy: FaultProxy) -> None:
    fault = proxy.add(Stall(on=KafkaMatch("Fetch"), carried_out=True))
    client.sendall(request(FETCH, 1) + request(METADATA, 2))
    proxy.wait_for(fault)
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(1)


def test_latency_keeps_the_order_of_answers(client: socket.socket, proxy: FaultProxy) -> None:
    fault = proxy.add(Latency(on=KafkaMatch("Fetch"), answer_s=0.2))
    client.sendall(request(FETCH, 1) + request(METADATA, 2))
    assert [read_frame(client), read_frame(client)] == [answer(1), answer(2)]
    assert proxy.fired[fault] == 1
