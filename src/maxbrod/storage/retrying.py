"""Retries transient errors with growing, randomised pauses until a deadline."""

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
WARN_FIRST_S: Final = 3.0
WARN_EVERY_S: Final = 15.0
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    deadline_s: float
    pause_first_s: float = 0.1
    pause_max_s: float = 5.0

    def run(self, attempt: Callable[[], T]) -> T:
        """The first success. Raises an error that is not retryable, or the last one before the deadline."""
        started = time.monotonic()
        end = started + self.deadline_s
        warn_at = started + WARN_FIRST_S
        pause = self.pause_first_s
        while True:
            try:
                return attempt()
            except MaxbrodError as error:
                # Random pauses keep a thousand tasks that failed together from retrying together.
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
                now = time.monotonic()
                if not error.retryable or now + wait > end:
                    raise
                if now >= warn_at:
                    # Tell the user why nothing happens.
                    _LOG.warning("waiting for the store: %s; giving up in %.0f s", error, end - now)
                    warn_at = now + WARN_EVERY_S
            time.sleep(wait)
            pause = min(pause * 2, self.pause_max_s)
