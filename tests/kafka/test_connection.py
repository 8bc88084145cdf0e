"""Frames survive whatever the kernel makes of them: cut anywhere, several at once, sent in parts."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from maxbrod.errors import UnavailableError
from maxbrod.kafka.wire.client import metadata_request, read_metadata
from maxbrod.kafka.wire.connection import ApiVersions, Connection, send_all
from maxbrod.kafka.wire.deadline import Deadline

PRODUCE, VERSION = 0, 13
METADATA = 12


class StillDeadline(Deadline):
    """No time passes, however busy the machine is."""

    @property
    def remaining_s(self) -> float:
        return 60.0


class Wire:
    """A socket that gives and takes only so many bytes at a time, in turn, and counts how often it was asked."""

    def __init__(self, sizes: list[int], incoming: bytes = b"") -> None:
        self._sizes = sizes
        self.incoming = incoming
        self.outgoing = b""
        self.calls = 0
        self.timeouts: list[float] = []

    def _next_size(self) -> int:
        self.calls += 1
        return self._sizes[self.calls % len(self._sizes)]

    def recv_into(self, view: memoryview) -> int:
        part = self.incoming[: min(self._next_size(), len(view))]
        view[: len(part)] = part
        self.incoming = self.incoming[len(part) :]
        return len(part)

    def sendmsg(self, pieces: list[Any]) -> int:
        assert len(pieces) <= 1024, "as the kernel would say"
        part = b"".join(pieces)[: self._next_size()]
        self.outgoing += part
        return len(part)

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    def close(self) -> None:
        self.incoming = b""


def connection_of(wire: Any) -> Connection:
    return Connection(wire, "broker:9092", "me")


def framed(ticket: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), ticket) + body


def frames_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


@given(
    st.lists(st.one_of(st.integers(0, 40), st.integers(4000, 9000)), min_size=1, max_size=12),
    st.lists(st.sampled_from([1, 2, 3, 5, 100, 4096, 100_000]), min_size=1, max_size=4),
)
def test_answers_cut_anywhere_or_in_crowds_come_whole_and_in_order(sizes: list[int], chunks: list[int]) -> None:
    bodies = [bytes([place % 251]) * size for place, size in enumerate(sizes)]
    wire = Wire(chunks, b"".join(framed(ticket, body) for ticket, body in enumerate(bodies)))
    connection = connection_of(wire)
    deadline = StillDeadline.after(60)
    tickets = [connection.put_pieces(PRODUCE, VERSION, [b"x"], deadline) for _ in bodies]
    for ticket, body in zip(tickets, bodies, strict=True):
        assert connection.receive(ticket, deadline).tobytes() == struct.pack(">i", ticket) + body
    assert not connection.at_hand
    assert connection.idle
    assert len(wire.timeouts) == 1, "the same deadline is told to the kernel once"


def test_whoever_hears_that_an_answer_is_at_hand_never_waits_for_it() -> None:
    whole = framed(0, b"one") + framed(1, b"two") + framed(2, b"three")
    for cut in range(len(framed(0, b"one")), len(whole)):
        wire = Wire([100_000], whole[:cut])
        connection = connection_of(wire)
        deadline = Deadline.after(60)
        tickets = [connection.put_pieces(PRODUCE, VERSION, [b"x"], deadline) for _ in range(3)]
        connection.receive(tickets.pop(0), deadline)
        calls = wire.calls
        while connection.at_hand:
            connection.receive(tickets.pop(0), deadline)
        assert wire.calls == calls
        assert len(tickets) == (2 if cut < len(whole) - len(framed(2, b"three")) else 1)


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=30),
    st.lists(st.sampled_from([1, 7, 1000, 1_000_000]), min_size=1, max_size=4),
)
def test_requests_put_together_leave_whole_and_in_order(sizes: list[int], takes: list[int]) -> None:
    wire = Wire(takes)
    connection = connection_of(wire)
    deadline = Deadline.after(60)
    for place, size in enumerate(sizes):
        connection.put_pieces(PRODUCE, VERSION, [b"head", np.full(size, place, np.uint8), b"tail"], deadline)
    assert not wire.outgoing
    connection.flush(deadline)
    header = struct.Struct(">hhih")
    for place, (frame, size) in enumerate(zip(frames_of(wire.outgoing), sizes, strict=True)):
        assert header.unpack_from(frame) == (PRODUCE, VERSION, place, 2)
        assert frame[header.size :] == b"me\0head" + bytes([place]) * size + b"tail"
    if takes == [1_000_000]:
        assert wire.calls == 1
    connection.flush(deadline)
    assert len(frames_of(wire.outgoing)) == len(sizes), "nothing leaves twice"


def test_more_pieces_than_the_kernel_takes_at_once_all_leave() -> None:
    wire = Wire([1_000_000])
    pieces = [bytes([place % 256]) * 3 for place in range(2000)]
    send_all(wire, pieces, lambda: None)  # type: ignore[arg-type] # as much of a socket as is needed
    assert wire.outgoing == b"".join(pieces)


def test_a_connection_that_ends_in_an_answer_is_lost_and_forgets_what_it_had() -> None:
    wire = Wire([100_000], framed(0, b"whole") + framed(1, b"cut")[:-1])
    connection = connection_of(wire)
    deadline = Deadline.after(60)
    first, second = (connection.put_pieces(PRODUCE, VERSION, [b"x"], deadline) for _ in range(2))
    connection.receive(first, deadline)
    with pytest.raises(UnavailableError, match="closed the connection"):
        connection.receive(second, deadline)
    assert not connection.usable
    assert not connection.at_hand


def metadata_answer(cluster_id: str, *, throttle_ms: int = 0) -> bytes:
    """A response from the end of its correlation id on, without brokers and topics."""
    message = MetadataResponse(
        throttle_time_ms=throttle_ms, brokers=[], cluster_id=cluster_id, controller_id=1, topics=[], version=METADATA
    )
    return b"\0" + bytes(message.encode(version=METADATA))


def answering(bodies: list[bytes]) -> Connection:
    wire = Wire([100_000], b"".join(framed(ticket, body) for ticket, body in enumerate(bodies)))
    connection = connection_of(wire)
    connection.versions = ApiVersions(broker="broker", ranges={MetadataRequest.API_KEY: (METADATA, METADATA)})
    return connection


def test_a_response_that_came_before_is_not_decoded_again_and_one_that_differs_is() -> None:
    said = [metadata_answer(each) for each in ("one", "one", "two", "one")]
    connection = answering(said)
    read: list[str] = []

    def cluster_id(answer: Any) -> list[str]:
        read.append(answer.cluster_id)
        return [answer.cluster_id]

    found = [connection.ask_for(metadata_request([]), cluster_id, Deadline.after(60)) for _ in said]
    assert found == [["one"], ["one"], ["two"], ["one"]]
    assert read == ["one", "two"]
    assert found[0] is found[1] is found[3]


def test_a_broker_that_asks_for_a_pause_is_heard_each_time() -> None:
    said = [metadata_answer("one", throttle_ms=each) for each in (1, 1)]
    connection = answering(said)
    pauses: list[int] = []
    connection.throttle = pauses.append  # type: ignore[method-assign,assignment]
    for _ in said:
        connection.ask_for(metadata_request([]), read_metadata, Deadline.after(60))
    assert pauses == [1, 1]


def test_only_the_last_responses_are_remembered() -> None:
    said = [metadata_answer(str(number)) for number in (*range(9), 0)]
    connection = answering(said)
    read: list[str] = []

    def note(answer: Any) -> None:
        read.append(answer.cluster_id)

    for _ in said:
        connection.ask_for(metadata_request([]), note, Deadline.after(60))
    assert read == [*map(str, range(9)), "0"]
