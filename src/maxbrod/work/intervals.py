"""Waits between runs that repeat: at fixed times or for news, longer after failures, no longer than until a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from maxbrod.work.progress import OnProgress, Progress, silent

APART_S: Final = 0.1
"""Without an interval, runs begin at least so far apart: the number of commits and objects in a second is limited."""
IDLE_S: Final = 1.0
"""Without an interval, and without news, a run begins after this time: not everything that changes is news."""
_POLL_S: Final = 0.2
_BACKOFF_MAX_S: Final = 300.0

WaitForNews: TypeAlias = Callable[[float], bool]
"""Waits for something to do, no longer than these seconds or until a stop; True if there is something."""


class Intervals:
    """Times that are `every_s` apart, however long runs take: after a long one, the next starts at the next tick."""

    def __init__(self, every_s: float, stop: threading.Event, on_progress: OnProgress = silent) -> None:
        self._every_s, self._stop, self._on_progress = every_s, stop, on_progress
        self._next = self._began = time.monotonic()

    def wait(self, failures: int = 0, news: WaitForNews | None = None) -> bool:
        """Wait for the next tick, longer after each failure in a row. False if the stop was set.

        Without an interval there are no ticks: wait for `news`, or if it is None only until runs are `APART_S` apart.
        """
        self._on_progress(Progress(phase="waiting for the next interval"))
        if self._every_s or failures:
            going_on = wait_unless(self.next_in_s(failures), self._stop)
        else:
            going_on = wait_for_news(news, self._stop, began=self._began)
        self._began = time.monotonic()
        return going_on

    def next_in_s(self, failures: int) -> float:
        """Return the time until the next tick."""
        now = time.monotonic()
        missed = max(0.0, now - self._next) // self._every_s if self._every_s else 0.0
        self._next = max(self._next + (missed + 1) * self._every_s, now)
        return max(self._next - now, pause_after(failures, self._every_s, _BACKOFF_MAX_S))


def pause_after(failures: int, every_s: float, most_s: float) -> float:
    """The shortest pause after so many failures in a row: it doubles, from the second on."""
    if not every_s and failures == 1:
        return IDLE_S
    return min((every_s or IDLE_S) * 2 ** min(failures - 1, 10), most_s) if failures > 1 else 0.0


def wait_for_news(news: WaitForNews | None, stop: threading.Event, *, began: float, apart_s: float = APART_S) -> bool:
    """Wait until `news` has some, but at least `apart_s` and at most `IDLE_S` after `began`. False: `stop` was set.

    None: there is something to do already.
    """
    if not wait_unless(began + apart_s - time.monotonic(), stop):
        return False
    rest_s = began + IDLE_S - time.monotonic()
    if news is not None and rest_s > 0:
        news(rest_s)
    return not stop.is_set()


def wait_unless(seconds: float, stop: threading.Event) -> bool:
    """Return False if `stop` was set. It polls: waiting on the event would hold its lock when a signal sets it."""
    until = time.monotonic() + seconds
    while not stop.is_set():
        rest_s = until - time.monotonic()
        if rest_s <= 0:
            return True
        time.sleep(min(rest_s, _POLL_S))
    return False
