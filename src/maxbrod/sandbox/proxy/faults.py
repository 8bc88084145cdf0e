"""Faults as values: what to break, on which requests, how often; and the book that counts them for one proxy.

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
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, cast
from urllib.parse import unquote

from kafka.protocol.api_key import ApiKey

from maxbrod.errors import UnavailableError, UsageError

Protocol: TypeAlias = Literal["tcp", "http", "kafka"]

_ALL: Final[frozenset[str]] = frozenset({"tcp", "http", "kafka"})
_MESSAGES: Final[frozenset[str]] = frozenset({"http", "kafka"})

F = TypeVar("F", bound="ProxyFault")
Half: TypeAlias = Literal["request", "answer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The facts that the proxy knows about a request when it chooses the faults for it."""

    name: str
    """The HTTP method, the name of Kafka's API, or `connection`."""
    target: str = ""
    """HTTP only: path and query as the client sent them."""
    conditional: bool = False
    """HTTP only: it is to create an object, and not to overwrite one (If-None-Match: *)."""
    api_key: int = -1
    """Kafka only."""


@dataclass(frozen=True, slots=True)
class HttpMatch:
    """Requests with this method whose path and query, decoded, contain a match of the regular expression `path`.

    `conditional`: only those that are sent with If-None-Match: *, or only those without.
    """

    method: str | None = None
    path: str | None = None
    conditional: bool | None = None
    protocol: ClassVar[Protocol] = "http"

    def __post_init__(self) -> None:
        try:
            re.compile(self.path or "")
        except re.error as error:
            raise UsageError(f"{self.path!r} is not a regular expression: {error}") from error

    def matches(self, request: Request) -> bool:
        return (
            (self.method is None or self.method == request.name)
            and (self.path is None or re.search(self.path, unquote(request.target)) is not None)
            and (self.conditional is None or self.conditional == request.conditional)
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
class ProxyFault:
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
class Watch(ProxyFault):
    """Breaks nothing: counts the requests it matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(ProxyFault):
    """Waits before a request goes on to upstream, or before its answer goes back, or both."""

    request_s: float = 0.0
    answer_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle(ProxyFault):
    """Limits the bytes per second in each direction."""

    request_bytes_per_second: int | None = None
    answer_bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        ProxyFault.__post_init__(self)
        if any(rate is not None and rate < 1 for rate in (self.request_bytes_per_second, self.answer_bytes_per_second)):
            raise UsageError("a throttle lets at least one byte a second through", hint="to stop all bytes: Blackhole")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutFault(ProxyFault):
    """Closes the connection after `after_bytes` bytes of a message have reached their receiver."""

    after_bytes: int = 0
    reset: bool = False
    """Close with RST instead of FIN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest(CutFault):
    """Cuts the request on its way to upstream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAnswer(CutFault):
    """Cuts the answer on its way to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseAnswer(ProxyFault):
    """Upstream executes the request and answers in full; the client only gets a closed connection."""

    reset: bool = False
    protocols: ClassVar[frozenset[str]] = _MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerError(ProxyFault):
    """Answers with an error in the XML that all object stores share. Upstream never sees it, unless `carried_out`."""

    status: int = 503
    code: str = "SlowDown"
    message: str = "Please reduce your request rate."
    retry_after_s: int | None = None
    carried_out: bool = False
    protocols: ClassVar[frozenset[str]] = frozenset({"http"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateAnswer(ProxyFault):
    """Keeps `body[:keep_bytes]` of the answer.

    The length that was announced stays, and the connection closes early. With `consistent` the announced length
    is the shorter one and the connection lives on: no client can notice from the framing. Other headers
    (`ETag`, `Content-Range`, checksums) stay as upstream sent them.
    """

    keep_bytes: int
    consistent: bool = False
    protocols: ClassVar[frozenset[str]] = _MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBit(ProxyFault):
    """Flips one bit of a body."""

    at: int
    bit: int = 0

    def __post_init__(self) -> None:
        ProxyFault.__post_init__(self)
        if not 0 <= self.bit <= 7:
            raise UsageError(f"a byte has the bits 0 to 7, not {self.bit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipAnswerBit(FlipBit):
    """Flips one bit of the answer's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipRequestBit(FlipBit):
    """Flips one bit of the request's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(ProxyFault):
    """Receives the request and never answers. The connection stays open until the client gives up.

    With `carried_out` upstream gets the request and answers; the answer is what never arrives.
    """

    carried_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(ProxyFault):
    """Closes the listener and resets every connection, like a process that died. `fired` counts 1 for being added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blackhole(ProxyFault):
    """Holds all bytes in both directions until it is removed; then they pass, as TCP does after a partition.

    `fired` counts the sends that were held back.
    """


class Claim(Generic[F]):
    """One fault for one request."""

    def __init__(self, fault: F, book: FaultBook) -> None:
        self.fault = fault
        self.fired = False
        self._book = book

    def fire(self) -> None:
        """Count the fault. Call it before the client can notice the effect, so that a test sees the count."""
        if not self.fired:
            self.fired = True
            self._book.count(self.fault)


class Claims:
    """The faults for one request and its answer."""

    def __init__(self, claims: list[Claim[ProxyFault]], book: FaultBook) -> None:
        self._claims = claims
        self._book = book
        self._unfinished: set[Half] = {"request", "answer"}
        self._lock = threading.Lock()

    def of(self, kind: type[F]) -> Iterator[Claim[F]]:
        return (cast("Claim[F]", claim) for claim in self._claims if isinstance(claim.fault, kind))

    def first(self, kind: type[F]) -> Claim[F] | None:
        return next(self.of(kind), None)

    def finish(self, half: Half) -> None:
        """Mark the request or the answer as passed; after both, return the claims that did not fire.

        Call it before the last byte is sent: the next request may follow at once and claim what was returned.
        """
        with self._lock:
            self._unfinished.discard(half)
            through = not self._unfinished
        if through:
            self.release()

    def release(self) -> None:
        """Return the claims that did not fire."""
        claims, self._claims = self._claims, []
        self._book.give_back([claim.fault for claim in claims if not claim.fired])


class FaultBook:
    """The faults of one proxy: which are armed, which request each hits, how often each fired. Used by many threads.

    A request *claims* its faults when it is recognised, so that `times=1` hits one of two simultaneous requests. A
    claim counts as fired only when the fault takes effect. A claim that turns out impossible (a flip beyond the end of
    a short body) is returned and hits a later request.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._armed: list[ProxyFault] = []
        self._matched: Counter[ProxyFault] = Counter()
        self._claimed: Counter[ProxyFault] = Counter()
        self._requests: Counter[str] = Counter()
        self._fired: Counter[ProxyFault] = Counter()

    @property
    def requests(self) -> Counter[str]:
        """Requests seen: by method, by name of Kafka's API, or connections. A copy."""
        with self._changed:
            return Counter(self._requests)

    @property
    def fired(self) -> Counter[ProxyFault]:
        """The number of effects of each fault since it was last added, also of those that are removed. A copy."""
        with self._changed:
            return Counter(self._fired)

    def wait_for(self, fault: ProxyFault, *, times: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until the fault has fired; UnavailableError if it does not."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._fired[fault] >= times, timeout_s):
                raise UnavailableError(
                    f"{fault!r} fired {self._fired[fault]} times in {timeout_s:g} seconds, not {times}",
                    hint=f"requests seen: {dict(self._requests)}",
                )

    def arm(self, fault: ProxyFault) -> None:
        with self._changed:
            if fault in self._armed:
                raise UsageError(f"{fault!r} is already there")
            self._armed.append(fault)
            # A fault is a value: an equal one that is added again starts at zero.
            for counts in (self._matched, self._claimed, self._fired):
                counts.pop(fault, None)

    def disarm(self, fault: ProxyFault) -> None:
        with self._changed:
            if fault not in self._armed:
                raise UsageError(f"{fault!r} is not there")
            self._armed.remove(fault)

    def armed(self, kind: type[F]) -> list[F]:
        with self._changed:
            return [fault for fault in self._armed if isinstance(fault, kind)]

    def claim(self, request: Request) -> Claims:
        """Count the request, and claim the faults for it."""
        with self._changed:
            self._requests[request.name] += 1
            claims = [Claim(fault, self) for fault in self._armed if self._hits(fault, request)]
        for claim in claims:
            if isinstance(claim.fault, Watch):
                claim.fire()
        return Claims(claims, self)

    def count(self, fault: ProxyFault) -> None:
        with self._changed:
            self._fired[fault] += 1
            self._changed.notify_all()

    def give_back(self, faults: list[ProxyFault]) -> None:
        with self._changed:
            self._claimed.subtract(faults)

    def _hits(self, fault: ProxyFault, request: Request) -> bool:
        if isinstance(fault, (Refuse, Blackhole)) or not fault.matches(request):
            return False
        self._matched[fault] += 1
        if self._matched[fault] <= fault.after or (fault.times is not None and self._claimed[fault] >= fault.times):
            return False
        self._claimed[fault] += 1
        return True
