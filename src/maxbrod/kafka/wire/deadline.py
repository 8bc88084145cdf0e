"""Deadlines, the pauses between retries before them, and the pace of a task.

Everything in this package that can block takes a deadline.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

from maxbrod.board import seat_of_task

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0

_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time on the monotonic clock."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @property
    def remaining_s(self) -> float:
        return self.at - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.remaining_s <= 0

    def within(self, seconds: float) -> Deadline:
        """This deadline, or one in `seconds` if that is sooner."""
        return min(self, Deadline.after(seconds), key=lambda deadline: deadline.at)


class Backoff:
    """Pauses that double with each retry, with jitter, so that many tasks do not retry in step."""

    def __init__(self) -> None:
        self._next_s = BACKOFF_FIRST_S

    def next_s(self) -> float:
        """The length of the next pause."""
        pause_s = self._next_s * random.uniform(0.75, 1.25)  # noqa: S311 - not for secrets
        self._next_s = min(self._next_s * 2, BACKOFF_MAX_S)
        return pause_s

    def pause(self, deadline: Deadline) -> None:
        time.sleep(max(0.0, min(self.next_s(), deadline.remaining_s)))


class Pace:
    """Limits the bytes per second, so that a backup or a restore leaves room for others. None: no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()
        self._seat = seat_of_task()

    def wait(self, size: int) -> None:
        """Wait until what came before has had its time; then `size` bytes may follow.

        UnavailableError: the task was stopped meanwhile.
        """
        now = time.monotonic()
        if self._bytes_per_s is not None and self._free_at > now + _PAUSE_S:
            (time.sleep if self._seat is None else self._seat.stop.wait)(self._free_at - now)
        if self._seat is not None:
            self._seat.check()
        if self._bytes_per_s is None:
            return
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
