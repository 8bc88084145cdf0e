"""Receives notifications in a thread of its own, and hands the segment events among them on.

A message stays in the queue until its events are kept. An error that a retry cannot fix ends the thread; `check` raises
it where the ingress runs.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from maxbrod.errors import MaxbrodError
from maxbrod.model import now_ms
from maxbrod.replicate.notify.queue import Queue, QueueCounts, pump

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maxbrod.layouts.parquet.events import SegmentEvent
    from maxbrod.replicate.notify.s3_events import ObjectEvent
    from maxbrod.replicate.seed.tree import Tree

_LOG: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 5.0
_TICK_S: Final = 0.1


class Notifications:
    """Begins at once, and ends when `stop` is set."""

    def __init__(
        self,
        queue: Queue,
        tree: Tree,
        keep: Callable[[Sequence[SegmentEvent]], None],
        *,
        local_region: str | None,
        stop: threading.Event,
    ) -> None:
        """`keep` makes events durable, or raises."""
        self.counts = QueueCounts()
        self.lag_ms: int | None = None
        """How old the newest event was when it was received last."""
        self._queue, self._tree, self._keep = queue, tree, keep
        self._local_region, self._stop = local_region, stop
        self._error: MaxbrodError | None = None
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                pump(self._queue, self._handle, self.counts)
            except MaxbrodError as error:
                if not error.retryable:
                    self._error = error
                    return
                _LOG.warning("notifications: %s", error)
                self._pause()

    def _pause(self) -> None:
        until = time.monotonic() + _PAUSE_S
        while time.monotonic() < until and not self._stop.is_set():
            time.sleep(_TICK_S)

    def _handle(self, events: Sequence[ObjectEvent]) -> None:
        newest_ns = max((event.time_ns for event in events), default=None)
        if newest_ns is not None:
            self.lag_ms = max(now_ms() - newest_ns // 1_000_000, 0)
        found = [each for each in map(self._tree.event_of, events) if each is not None]
        wanted = [each for each in found if each.segment.region != self._local_region]
        if wanted:
            self._keep(wanted)
