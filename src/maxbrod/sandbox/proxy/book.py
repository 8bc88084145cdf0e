"""The faults of one proxy: which are armed, which request each hits, how often each fired.

A request *claims* its faults when it is recognised, so that `times=1` hits one of two simultaneous requests.
A claim counts as fired only when the fault takes effect. A claim that turns out impossible (a flip beyond the end of a
short body) is returned and hits a later request.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar, cast

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.proxy.faults import Blackhole, Fault, Refuse, Request, Watch

if TYPE_CHECKING:
    from collections.abc import Iterator


F = TypeVar("F", bound="Fault")
Half: TypeAlias = Literal["request", "answer"]


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

    def __init__(self, claims: list[Claim[Fault]], book: FaultBook) -> None:
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


@dataclass(slots=True)
class _Tally:
    matched: int = 0
    claimed: int = 0


class FaultBook:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._armed: dict[Fault, _Tally] = {}
        self._requests: Counter[str] = Counter()
        self._fired: Counter[Fault] = Counter()

    @property
    def requests(self) -> Counter[str]:
        with self._changed:
            return Counter(self._requests)

    @property
    def fired(self) -> Counter[Fault]:
        with self._changed:
            return Counter(self._fired)

    def arm(self, fault: Fault) -> None:
        with self._changed:
            if fault in self._armed:
                raise UsageError(f"{fault!r} is already there")
            self._armed[fault] = _Tally()
            # A fault is a value: an equal one that is added again starts at zero.
            self._fired.pop(fault, None)

    def disarm(self, fault: Fault) -> None:
        with self._changed:
            if self._armed.pop(fault, None) is None:
                raise UsageError(f"{fault!r} is not there")

    def armed(self, kind: type[F]) -> list[F]:
        with self._changed:
            return [fault for fault in self._armed if isinstance(fault, kind)]

    def claim(self, request: Request) -> Claims:
        """Count the request, and claim the faults for it."""
        with self._changed:
            self._requests[request.name] += 1
            claims = [Claim(fault, self) for fault, tally in self._armed.items() if _hits(fault, tally, request)]
        for claim in claims:
            if isinstance(claim.fault, Watch):
                claim.fire()
        return Claims(claims, self)

    def count(self, fault: Fault) -> None:
        with self._changed:
            self._fired[fault] += 1
            self._changed.notify_all()

    def give_back(self, faults: list[Fault]) -> None:
        with self._changed:
            for fault in faults:
                if tally := self._armed.get(fault):
                    tally.claimed -= 1

    def wait_for(self, fault: Fault, times: int, timeout_s: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._fired[fault] >= times, timeout_s):
                raise UnavailableError(
                    f"{fault!r} fired {self._fired[fault]} times in {timeout_s:g} seconds, not {times}",
                    hint=f"requests seen: {dict(self._requests)}",
                )


def _hits(fault: Fault, tally: _Tally, request: Request) -> bool:
    if isinstance(fault, (Refuse, Blackhole)) or not fault.matches(request):
        return False
    tally.matched += 1
    if tally.matched <= fault.after or (fault.times is not None and tally.claimed >= fault.times):
        return False
    tally.claimed += 1
    return True
