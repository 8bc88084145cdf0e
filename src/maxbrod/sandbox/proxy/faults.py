"""Faults as values: what to break, on which requests, how often. They do nothing by themselves.

Every fault takes
    on      which requests: an `HttpMatch` or a `KafkaMatch`; None matches all
    after   how many matching requests pass unharmed first
    times   how many are hit after that; None hits all until the fault is removed

Bytes are counted in two ways. The cuts count bytes of the wire from the first byte of a message: an HTTP head,
a Kafka length. Flips and truncation count bytes of the body: of HTTP what comes after the head, without
chunk framing; of Kafka what comes after the length, so byte 0 begins the header. There a negative position
counts from the end, as in a slice. In `tcp` a connection is one request and its stream is both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, TypeAlias

from kafka.protocol.api_key import ApiKey

from maxbrod.errors import UsageError

Protocol: TypeAlias = Literal["tcp", "http", "kafka"]

_ALL: Final[frozenset[str]] = frozenset({"tcp", "http", "kafka"})
_MESSAGES: Final[frozenset[str]] = frozenset({"http", "kafka"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the proxy knows about a request when it chooses the faults for it."""

    protocol: Protocol
    name: str
    """The HTTP method, the name of Kafka's API, or `connection`."""
    target: str = ""
    """HTTP only: path and query as the client sent them."""
    api_key: int = -1
    """Kafka only."""


@dataclass(frozen=True, slots=True)
class HttpMatch:
    """Requests with this method whose path and query contain a match of the regular expression `path`."""

    method: str | None = None
    path: str | None = None
    protocol: ClassVar[Protocol] = "http"

    def __post_init__(self) -> None:
        try:
            re.compile(self.path or "")
        except re.error as error:
            raise UsageError(f"{self.path!r} is not a regular expression: {error}") from error

    def matches(self, request: Request) -> bool:
        return (self.method is None or self.method == request.name) and (
            self.path is None or re.search(self.path, request.target) is not None
        )


@dataclass(frozen=True, slots=True)
class KafkaMatch:
    """Requests of one API, by Kafka's name for it (`Produce`) or by its number."""

    api: str | int | None = None
    protocol: ClassVar[Protocol] = "kafka"

    def __post_init__(self) -> None:
        if isinstance(self.api, str) and self.api not in ApiKey.__members__:
            raise UsageError(f"Kafka has no API named {self.api!r}", hint="names are like 'Produce' and 'ListOffsets'")

    def matches(self, request: Request) -> bool:
        return self.api is None or self.api in {request.name, request.api_key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The base: which requests, and how often. See the module's text."""

    on: HttpMatch | KafkaMatch | None = None
    after: int = 0
    times: int | None = None
    protocols: ClassVar[frozenset[str]] = _ALL

    def __post_init__(self) -> None:
        if self.after < 0 or (self.times is not None and self.times < 1):
            raise UsageError(f"{self!r} can never happen", hint="after= is 0 or more, times= is 1 or more")

    def matches(self, request: Request) -> bool:
        return self.on is None or self.on.matches(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch(Fault):
    """Breaks nothing: counts the requests it matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Fault):
    """Waits before a request goes on to upstream, or before its answer goes back, or both."""

    request_s: float = 0.0
    answer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(Fault):
    """Limits the bytes per second in each direction."""

    request_bytes_per_second: int | None = None
    answer_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        if any(rate is not None and rate < 1 for rate in (self.request_bytes_per_second, self.answer_bytes_per_second)):
            raise UsageError("a throttle lets at least one byte a second through", hint="to stop all bytes: Blackhole")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest(Fault):
    """Closes the connection after `after_bytes` bytes of the request have reached upstream."""

    after_bytes: int = 0
    reset: bool = False
    """Close with RST instead of FIN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAnswer(Fault):
    """Closes the connection after `after_bytes` bytes of the answer have reached the client."""

    after_bytes: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseAnswer(Fault):
    """Upstream executes the request and answers in full; the client only gets a closed connection."""

    reset: bool = False
    protocols: ClassVar[frozenset[str]] = _MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerError(Fault):
    """Answers with an error in S3's XML. Upstream never sees the request, unless `carried_out`."""

    status: int = 503
    code: str = "SlowDown"
    message: str = "Please reduce your request rate."
    retry_after_s: int | None = None
    carried_out: bool = False
    protocols: ClassVar[frozenset[str]] = frozenset({"http"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateAnswer(Fault):
    """Keeps `body[:keep_bytes]` of the answer.

    The length that was announced stays, and the connection closes early. With `consistent` the announced length
    is the shorter one and the connection lives on: no client can notice from the framing. Other headers
    (`ETag`, `Content-Range`, checksums) stay as upstream sent them.
    """

    keep_bytes: int
    consistent: bool = False
    protocols: ClassVar[frozenset[str]] = _MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipAnswerBit(Fault):
    """Flips one bit of the answer's body."""

    at: int
    bit: int = 0

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        _check_bit(self.bit)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipRequestBit(Fault):
    """Flips one bit of the request's body."""

    at: int
    bit: int = 0

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        _check_bit(self.bit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Fault):
    """Receives the request and never answers. The connection stays open until the client gives up.

    With `carried_out` upstream gets the request and answers; the answer is what never arrives.
    """

    carried_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Fault):
    """Closes the listener and resets every connection, like a process that died. `fired` counts 1 for being added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blackhole(Fault):
    """Holds all bytes in both directions until it is removed; then they pass, as TCP does after a partition.

    `fired` counts the sends that were held back.
    """


def _check_bit(bit: int) -> None:
    if not 0 <= bit <= 7:
        raise UsageError(f"a byte has the bits 0 to 7, not {bit}")
