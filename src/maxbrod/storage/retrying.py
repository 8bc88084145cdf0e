"""Tries again what a retry can help: growing pauses with chance in them, and an end."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    deadline_s: float
    pause_first_s: float = 0.1
    pause_max_s: float = 5.0

    def run(self, attempt: Callable[[], T]) -> T:
        """The first success. An error that no retry can help, or the last one before the deadline, is raised."""
        end = time.monotonic() + self.deadline_s
        pause = self.pause_first_s
        while True:
            try:
                return attempt()
            except MaxbrodError as error:
                # Chance keeps a thousand tasks that failed together from coming back together.
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
                if not error.retryable or time.monotonic() + wait > end:
                    raise
            time.sleep(wait)
            pause = min(pause * 2, self.pause_max_s)
