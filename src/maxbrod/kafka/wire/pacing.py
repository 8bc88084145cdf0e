"""Limits how fast a task reads or writes, so that a backup or a restore leaves room for others."""

from __future__ import annotations

import time
from typing import Final

_PAUSE_S: Final = 0.05


class Pace:
    """Limits the bytes per second. None: no limit."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = time.monotonic()

    def wait(self, size: int) -> None:
        """Wait until what came before has had its time; then `size` bytes may follow."""
        if self._bytes_per_s is None:
            return
        now = time.monotonic()
        if self._free_at > now + _PAUSE_S:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + size / self._bytes_per_s
