"""A moment after which nobody waits any more, and the pauses between tries before it.

Everything here that can block takes a deadline: nothing waits without end.
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
    """A time of the monotonic clock."""

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
    """Pauses that double from try to try, with some chance in them, so that many tasks do not ask in step."""

    def __init__(self) -> None:
        self._next_s = BACKOFF_FIRST_S

    def next_s(self) -> float:
        """How long the next pause is to be."""
        pause_s = self._next_s * random.uniform(0.75, 1.25)  # noqa: S311 - not for secrets
        self._next_s = min(self._next_s * 2, BACKOFF_MAX_S)
        return pause_s

    def pause(self, deadline: Deadline) -> None:
        time.sleep(max(0.0, min(self.next_s(), deadline.remaining_s)))
