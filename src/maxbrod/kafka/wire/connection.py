"""One blocking connection to one broker: several requests in flight, and a deadline on every wait.

Owns the socket, the correlation ids and the order of responses. A whole response is received into one buffer, which
then belongs to the caller: slices of it are not copied again. Only its first few KiB are copied, because small
responses arrive together and one system call reads them all. A connection that has failed is closed, because the start
of the next frame is unknown.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest
from numpy.typing import NDArray

from maxbrod import __version__
from maxbrod.errors import CorruptDataError, UnavailableError, UnsupportedFormatError
from maxbrod.kafka.wire.error_codes import Code, answered_with
from maxbrod.kafka.wire.security import log_in, tls_context, tls_failure

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig
    from maxbrod.kafka.wire.deadline import Deadline


CONNECT_TIMEOUT_S: Final = 10.0
CUT_OFF: Final = frozenset({"send a request", "get an answer", "open TLS"})
"""The operations of errors for a connection that was established and then failed."""
FRAME_BYTES_MAX: Final = 1 << 30
_LENGTH: Final = struct.Struct(">i")
_REQUEST_HEADER: Final = struct.Struct(">hhih")  # API key, version, correlation id, length of the client id
_NO_TAGS: Final = b"\0"
_API_VERSIONS: Final = 3  # known since Kafka 2.4
# A login is renewed by a new connection after this share of its lifetime.
_LOGIN_LIFE: Final = 0.8
_AHEAD_BYTES: Final = 4096
_REMEMBERED: Final = 8
# Setting a socket timeout is a system call. A wait may end this much later than requested.
_TIMEOUT_SLACK_S: Final = 0.5


Result = TypeVar("Result")
Message: TypeAlias = Any
"""A request or response of kafka-python, which is untyped."""

Piece: TypeAlias = "bytes | memoryview | NDArray[np.uint8]"
# The kernel accepts 1,024 at once.
_PIECES_MAX: Final = 512

OLDEST_KAFKA: Final = "2.8"
"""It introduced fetching by topic id, without which a topic that was deleted and recreated looks like the old one."""
_LEAST: Final[dict[int, int]] = {
    ApiKey.DeleteTopics: 6,  # topics by id
    ApiKey.DescribeConfigs: 1,  # has the source of a value
    ApiKey.Fetch: 12,  # fences by leader epoch, and tells if the log has diverged
    ApiKey.FindCoordinator: 4,  # many groups at once
    ApiKey.ListOffsets: 4,  # fences by leader epoch
    ApiKey.Metadata: 10,  # has topic ids
    ApiKey.OffsetFetch: 8,  # many groups at once
    ApiKey.OffsetForLeaderEpoch: 3,
    ApiKey.Produce: 9,  # the first of the layout that is written by hand
    ApiKey.SaslHandshake: 1,  # tokens in requests of their own
}
_MOST: Final[dict[int, int]] = {
    ApiKey.AddPartitionsToTxn: 3,  # later ones are for use between brokers
    ApiKey.DescribeGroups: 5,  # the last that returns the rights on a group that does not exist
    ApiKey.EndTxn: 4,  # from 5 on, each transaction changes the epoch of the producer
    ApiKey.Fetch: 18,  # the newest that the hand-written reader of `fetch.request` supports
    ApiKey.InitProducerId: 5,  # the last without prepared transactions
    ApiKey.OffsetCommit: 9,  # the last with topics by name, as in OffsetFetch
    ApiKey.OffsetFetch: 9,  # the last with topics by name: an offset may outlive its topic, whose id is unknown then
    ApiKey.Produce: 13,  # the newest that `produce.lane` supports
    ApiKey.TxnOffsetCommit: 4,  # the last in which the producer itself adds the group to its transaction
}


class Connection:
    """Open with `Connection.open`. `send` and `receive` may be interleaved; `ask` does both for small responses."""

    def __init__(self, stream: socket.socket, name: str, client_id: str) -> None:
        self.name = name
        self.versions = ApiVersions(broker=name, ranges={})
        self._socket = stream
        self._client_id = client_id
        self._next_id = 0
        self._in_flight: deque[int] = deque()
        self._early: dict[int, NDArray[np.uint8]] = {}
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        """Bytes received ahead, from `_ahead_first` to `_ahead_end`."""
        self._ahead_first = self._ahead_end = 0
        self._unsent: list[Piece] = []
        self._timeout_s = 0.0
        self._throttled_until = 0.0
        self._remembered: OrderedDict[tuple[Callable[[Message], Any], int, bytes], Any] = OrderedDict()
        """The last responses of `ask_for`, by their bytes."""
        self._log_in_again_at = float("inf")
        self._closed = False

    @classmethod
    def open(cls, host: str, port: int, config: KafkaConfig, *, client_id: str, deadline: Deadline) -> Connection:
        """Connect, negotiate versions and log in, in this order, as Kafka's clients do."""
        name = f"{host}:{port}"
        deadline = deadline.within(CONNECT_TIMEOUT_S)
        connection = cls(_connect(host, port, config, deadline), name, client_id)
        try:
            connection._agree_on_versions(deadline)
            if config.security_protocol.startswith("SASL") and config.sasl is not None:
                life_s = log_in(config.sasl, name, lambda request: connection.ask(request, deadline))
                connection._log_in_again_at = time.monotonic() + life_s * _LOGIN_LIFE if life_s else float("inf")
        except BaseException:
            connection.close()
            raise
        return connection

    @property
    def usable(self) -> bool:
        return not self._closed and time.monotonic() < self._log_in_again_at

    @property
    def idle(self) -> bool:
        return not self._in_flight and not self._early

    @property
    def at_hand(self) -> bool:
        """True if the next response has arrived, so that `receive` does not wait."""
        there = self._ahead_end - self._ahead_first - _LENGTH.size
        return there >= 0 and there >= _LENGTH.unpack_from(self._ahead, self._ahead_first)[0]

    @property
    def has_bytes(self) -> bool:
        """True if bytes were received that nobody has asked for yet, or it is closed: a socket does not tell."""
        pending = isinstance(self._socket, ssl.SSLSocket) and not self._closed and self._socket.pending()
        return self._closed or self._ahead_end > self._ahead_first or bool(pending)

    def fileno(self) -> int:
        """The file descriptor, for `poll`."""
        return self._socket.fileno()

    @property
    def throttled(self) -> bool:
        """True if the broker has asked this client to pause."""
        return time.monotonic() < self._throttled_until

    def close(self) -> None:
        self._closed = True
        self._early.clear()
        self._in_flight.clear()
        self._unsent.clear()
        self._ahead_first = self._ahead_end = 0
        self._socket.close()

    def throttle(self, milliseconds: int) -> None:
        """Pause for this time; the next `send` waits."""
        self._throttled_until = max(self._throttled_until, time.monotonic() + milliseconds / 1000)

    def ask(self, request: Message, deadline: Deadline) -> Message:
        """Send a request and decode its response with kafka-python's class."""
        ticket = self.send(request, deadline)
        version = request.API_VERSION
        return self.decode(self.receive(ticket, deadline), request.header.get_response_class(), version)

    def ask_for(self, request: Message, read: Callable[[Message], Result], deadline: Deadline) -> Result:
        """The response as `read` converts it. Equal responses share one value, which nobody may change.

        A backup that follows gets the same metadata every interval, and decoding takes 6 µs for each partition.
        """
        ticket = self.send(request, deadline)
        version = request.API_VERSION
        frame = self.receive(ticket, deadline)
        key = read, version, frame[_LENGTH.size :].tobytes()
        if key in self._remembered:
            self._remembered.move_to_end(key)
            found: Result = self._remembered[key]
            return found
        answer = self.decode(frame, request.header.get_response_class(), version)
        found = read(answer)
        if not getattr(answer, "throttle_time_ms", 0):  # it is to be obeyed each time
            self._remembered[key] = found
            if len(self._remembered) > _REMEMBERED:
                self._remembered.popitem(last=False)
        return found

    def decode(self, frame: NDArray[np.uint8], response_class: Message, version: int) -> Message:
        """Decode a response from `receive` with kafka-python's class, and obey its throttle time."""
        # Skip the correlation id here: the library would copy the frame to do so.
        body = frame[4:]
        if response_class.flexible_version_q(version) and response_class.API_KEY != ApiVersionsRequest.API_KEY:
            # The tagged fields of a response header, of which no version of Kafka defines any.
            if not body.size or body[0]:
                raise CorruptDataError("a response header has undefined fields")
            body = body[1:]
        answer = self._decode(response_class, body, version)
        self.throttle(getattr(answer, "throttle_time_ms", 0) or 0)
        return answer

    def send(self, request: Message, deadline: Deadline) -> int:
        """Send a request. Returns the ticket for `receive`."""
        self._wait_while_throttled(deadline)
        if request.API_VERSION is None:
            request.API_VERSION = self.versions.choose(type(request))
        ticket = self._new_ticket()
        request.with_header(correlation_id=ticket, client_id=self._client_id)
        self.flush(deadline)
        self._send([request.encode(header=True, framed=True)], deadline)
        self._in_flight.append(ticket)
        return ticket

    def put_pieces(self, api_key: int, version: int, body: Sequence[Piece], deadline: Deadline) -> int:
        """Add a request of a flexible version whose body is in pieces. No piece is copied.

        The next `flush` sends it together with all requests put before it.
        """
        self._wait_while_throttled(deadline)
        ticket = self._new_ticket()
        client_id = self._client_id.encode()
        header = _REQUEST_HEADER.pack(api_key, version, ticket, len(client_id)) + client_id + _NO_TAGS
        self._unsent.append(_LENGTH.pack(len(header) + sum(map(len, body))) + header)
        self._unsent += body
        self._in_flight.append(ticket)
        return ticket

    def flush(self, deadline: Deadline) -> None:
        if self._unsent:
            pieces, self._unsent = self._unsent, []
            self._send(pieces, deadline)

    def receive(self, ticket: int, deadline: Deadline) -> NDArray[np.uint8]:
        """The response to `ticket`, from its correlation id on. Older responses are kept for their callers."""
        if ticket not in self._early and ticket not in self._in_flight:
            raise UnavailableError("the connection was lost before the response", object_name=self.name)
        while ticket not in self._early:
            frame = self._receive_frame(deadline)
            (found,) = _LENGTH.unpack_from(frame)
            if found != self._in_flight[0]:
                raise self._lost(f"get an answer in order: {found} came, {self._in_flight[0]} was due", None)
            self._early[self._in_flight.popleft()] = frame
        return self._early.pop(ticket)

    def _wait_while_throttled(self, deadline: Deadline) -> None:
        pause_s = self._throttled_until - time.monotonic()
        if pause_s > 0:
            time.sleep(max(0.0, min(pause_s, deadline.remaining_s)))

    def _new_ticket(self) -> int:
        ticket = self._next_id
        self._next_id = (ticket + 1) & 0x7FFFFFFF
        return ticket

    def _send(self, pieces: Sequence[Piece], deadline: Deadline) -> None:
        try:
            send_all(self._socket, pieces, lambda: self._wait_at_most(deadline, "room to send"))
        except OSError as error:
            raise self._lost("send a request", error) from error

    def _agree_on_versions(self, deadline: Deadline) -> None:
        request = ApiVersionsRequest(
            client_software_name="maxbrod", client_software_version=__version__, version=_API_VERSIONS
        )
        answer = self.ask(request, deadline)
        if answer.error_code == Code.UNSUPPORTED_VERSION:
            raise too_old(self.name, f"not even version {_API_VERSIONS} of ApiVersions")
        if answer.error_code:
            raise answered_with(answer.error_code, operation="connect", object_name=self.name)
        ranges = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
        self.versions = ApiVersions(broker=self.name, ranges=ranges)

    def _receive_frame(self, deadline: Deadline) -> NDArray[np.uint8]:
        while self._ahead_end - self._ahead_first < _LENGTH.size:
            self._receive_ahead(deadline)
        (size,) = _LENGTH.unpack_from(self._ahead, self._ahead_first)
        if not _LENGTH.size <= size <= FRAME_BYTES_MAX:
            raise self._lost(f"get an answer: one of {size} bytes was announced", None)
        frame = np.empty(size, np.uint8)  # not a bytearray, which is zeroed first
        view = memoryview(frame)
        first = self._ahead_first + _LENGTH.size
        there = min(size, self._ahead_end - first)
        view[:there] = self._ahead[first : first + there]
        self._ahead_first = first + there
        while there < size:
            there += self._receive_into(view[there:], deadline)
        return frame

    def _receive_ahead(self, deadline: Deadline) -> None:
        rest = bytes(self._ahead[self._ahead_first : self._ahead_end])  # part of a length field, if any
        self._ahead[: len(rest)] = rest
        self._ahead_first, self._ahead_end = 0, len(rest)
        self._ahead_end += self._receive_into(self._ahead[len(rest) :], deadline)

    def _receive_into(self, view: memoryview, deadline: Deadline) -> int:
        try:
            self._wait_at_most(deadline, "an answer")
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionResetError("the broker closed the connection")
        except ssl.SSLError as error:
            refused = tls_failure(error, self.name)
            raise refused or self._lost("get an answer", error) from error
        except OSError as error:
            raise self._lost("get an answer", error) from error
        return received

    def _wait_at_most(self, deadline: Deadline, what: str) -> None:
        remaining_s = deadline.remaining_s
        if remaining_s <= 0:
            raise TimeoutError(f"no time left to wait for {what}")
        if not remaining_s <= self._timeout_s <= remaining_s + min(_TIMEOUT_SLACK_S, remaining_s):
            self._socket.settimeout(remaining_s)
            self._timeout_s = remaining_s

    def _decode(self, response_class: Message, body: NDArray[np.uint8], version: int) -> Message:
        try:
            return response_class.decode(body.tobytes(), version=version)
        except Exception as error:
            # The library raises all kinds of errors for a malformed response.
            self.close()
            message = f"a response cannot be decoded as {response_class.name} {version}"
            raise CorruptDataError(message, object_name=self.name, hint="is this a Kafka listener?") from error

    def _lost(self, doing: str, error: OSError | None) -> UnavailableError:
        self.close()
        reason = "in time" if isinstance(error, TimeoutError) else f"({error.strerror or error})" if error else ""
        return UnavailableError(f"could not {doing} {reason}".rstrip(), operation=doing, object_name=self.name)


def _connect(host: str, port: int, config: KafkaConfig, deadline: Deadline) -> socket.socket:
    name = f"{host}:{port}"
    context = tls_context(config)
    try:
        stream = socket.create_connection((host, port), timeout=max(deadline.remaining_s, 0.001))
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UnavailableError(f"cannot connect: {reason}", operation="connect", object_name=name) from error
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # SO_RCVBUF stays at its default: Linux grows the buffer to megabytes, and an explicit size would disable that
        # and be limited to net.core.rmem_max, often 208 KiB. Measured on loopback: no gain from 1 or 4 MiB.
        stream.settimeout(max(deadline.remaining_s, 0.001))
        return context.wrap_socket(stream, server_hostname=host) if context else stream
    except OSError as error:
        stream.close()
        refused = tls_failure(error, name) if isinstance(error, ssl.SSLError) else None
        raise refused or UnavailableError(
            f"TLS cannot be opened: {error.strerror or error}",
            operation="open TLS",
            object_name=name,
            hint="is this a TLS listener?",
        ) from error


def wait_for_any(connections: Sequence[Connection], seconds: float) -> list[Connection]:
    """The connections that have received something, or were closed, as soon as one has; none after this time."""
    ready = [connection for connection in connections if connection.has_bytes]
    if ready:
        return ready
    by_number = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(seconds * 1000)]


def compact_length(count: int) -> bytes:
    """Kafka's compact length: one more, as an unsigned varint."""
    value = count + 1
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    return bytes((value & 0x7F | 0x80,)) + compact_length((value >> 7) - 1)


def read_compact_length(data: bytes, place: int) -> tuple[int, int]:
    """A compact length, 0 for null, and the position after it. IndexError if the data ends before."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return max(value - 1, 0), place
        shift += 7


def send_all(stream: socket.socket, pieces: Sequence[Piece], wait: Callable[[], None]) -> None:
    """Send all pieces in order without joining them. `wait` is called before each system call to set its timeout."""
    wait()
    if isinstance(stream, ssl.SSLSocket):
        # TLS has no gathering send, and encryption copies anyway. One TLS record for each piece would cost more.
        stream.sendall(b"".join(pieces))
        return
    sent = stream.sendmsg(pieces[:_PIECES_MAX])
    rest = deque[memoryview]()
    for piece in pieces:
        if sent >= len(piece):
            sent -= len(piece)
        else:
            rest.append(memoryview(piece)[sent:])
            sent = 0
    while rest:
        wait()
        sent = stream.sendmsg([rest[place] for place in range(min(len(rest), _PIECES_MAX))])
        while rest and sent >= len(rest[0]):
            sent -= len(rest.popleft())
        if sent:
            rest[0] = rest[0][sent:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiVersions:
    """The lowest and the highest version of each API key that a broker supports."""

    broker: str
    ranges: Mapping[int, tuple[int, int]]

    def choose(self, request_class: Message) -> int:
        """The version to use. UnsupportedFormatError if broker and client have none in common."""
        key = int(request_class.API_KEY)
        least, most = _LEAST.get(key, 0), min(_MOST.get(key, 1 << 15), int(request_class.max_version))
        oldest, newest = self.ranges.get(key, (-1, -1))
        if key not in self.ranges:
            raise UnsupportedFormatError(
                f"the broker is too old: it does not know {request_class.name}",
                operation="connect",
                object_name=self.broker,
                hint="upgrade the broker",
            )
        if newest < least:
            raise too_old(self.broker, f"{request_class.name} up to version {newest}, but at least {least} is required")
        if oldest > most:
            raise UnsupportedFormatError(
                f"the broker requires {request_class.name} from version {oldest} on, but {most} is the newest known",
                object_name=self.broker,
                hint="this Kafka is newer than this release of maxbrod: upgrade maxbrod",
            )
        return min(most, newest)


def too_old(broker: str, what: str) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"the broker is too old: it supports {what}",
        operation="connect",
        object_name=broker,
        hint=f"maxbrod requires Kafka {OLDEST_KAFKA} or later: upgrade the broker",
    )
