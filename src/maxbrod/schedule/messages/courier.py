"""Delivers messages and pings in threads of their own: in order for each channel, with retries, and not for ever."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from maxbrod.schedule.messages.channels import DeliveryError

_LOG: Final = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0
_QUEUED_MAX: Final = 100
"""The oldest deliveries are dropped beyond this, if a channel does not answer for days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    send: Callable[[], None]
    """DeliveryError: it did not arrive."""
    what: str
    give_up_after_s: float


class Courier:
    """Use it in a `with`; its end waits a little for what is under way."""

    def __init__(self, *, leave_after_s: float = 10.0, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._leave_after_s, self._first_pause_s = leave_after_s, first_pause_s
        self._lanes: dict[str, _CourierLane] = {}
        self.delivered = 0
        self.failed = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        until = time.monotonic() + self._leave_after_s
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            lane.join(max(until - time.monotonic(), 0.0))

    def give(self, channel: str, delivery: Delivery) -> None:
        """Deliver it after what was given for the same channel before."""
        lane = self._lanes.get(channel)
        if lane is None:
            lane = self._lanes[channel] = _CourierLane(channel, self._ended, self._first_pause_s)
        if not lane.put(delivery):
            self._ended(arrived=False)

    def _ended(self, *, arrived: bool) -> None:
        with self._lock:
            self.delivered += arrived
            self.failed += not arrived


class _CourierLane:
    def __init__(self, name: str, ended: Callable[..., None], first_pause_s: float) -> None:
        self._name, self._ended, self._first_pause_s = name, ended, first_pause_s
        self._queue: queue.Queue[Delivery | None] = queue.Queue(_QUEUED_MAX)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"courier {name}", daemon=True)
        self._thread.start()

    def put(self, delivery: Delivery) -> bool:
        try:
            self._queue.put_nowait(delivery)
        except queue.Full:
            _LOG.error("%s does not answer, and too much is waiting for it: %s is dropped", self._name, delivery.what)
            return False
        return True

    def close(self) -> None:
        self._closing.set()
        self._queue.put(None) if not self._queue.full() else None

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            try:
                delivery = self._queue.get(timeout=1.0)
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            if delivery is None:
                return
            self._ended(arrived=self._deliver(delivery))

    def _deliver(self, delivery: Delivery) -> bool:
        until, pause_s = time.monotonic() + delivery.give_up_after_s, self._first_pause_s
        while True:
            try:
                delivery.send()
            except DeliveryError as error:
                wait_s = max(pause_s, error.after_s)
                # At the end of the process, one more attempt has the time that is left.
                if not error.again or self._closing.is_set() or time.monotonic() + wait_s > until:
                    _LOG.error("%s: %s could not be delivered: %s", self._name, delivery.what, error)
                    return False
                _LOG.warning("%s: %s is tried again in %.0f s: %s", self._name, delivery.what, wait_s, error)
                self._closing.wait(wait_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
            except Exception:  # noqa: BLE001 - see below
                # A service's own library may raise anything; it must not end the deliveries after this one.
                _LOG.exception("%s: %s could not be delivered", self._name, delivery.what)
                return False
            else:
                return True
