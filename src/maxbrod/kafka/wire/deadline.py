"""Deadlines, and the pauses between retries before them.

Everything in this package that can block takes a deadline.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Final

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0


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
        return min(self, Deadline.after(seconds), key=lambda each: each.at)


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
