"""Tries again what a retry can help: growing pauses with chance in them, and an end."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from maxbrod.errors import MaxbrodError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
TELL_FIRST_S: Final = 3.0
TELL_EVERY_S: Final = 15.0
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    deadline_s: float
    pause_first_s: float = 0.1
    pause_max_s: float = 5.0

    def run(self, attempt: Callable[[], T]) -> T:
        """The first success. An error that no retry can help, or the last one before the deadline, is raised."""
        started = time.monotonic()
        end = started + self.deadline_s
        tell_at = started + TELL_FIRST_S
        pause = self.pause_first_s
        while True:
            try:
                return attempt()
            except MaxbrodError as error:
                # Chance keeps a thousand tasks that failed together from coming back together.
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
                now = time.monotonic()
                if not error.retryable or now + wait > end:
                    raise
                if now >= tell_at:
                    # Somebody may be looking at a screen on which nothing moves.
                    _LOG.warning("waiting for the store: %s; giving up in %.0f s", error, end - now)
                    tell_at = now + TELL_EVERY_S
            time.sleep(wait)
            pause = min(pause * 2, self.pause_max_s)
