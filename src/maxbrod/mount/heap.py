"""The memory of a mount: one heap of the C library for all threads, and no collector while it starts.

By default the GNU C library gives threads heaps of their own, and each keeps what was freed in it: with 200 readers at
200 places, that was a third of the memory. Chunks are few and large, so threads hardly ever wait for the one heap.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_ARENA_MAX: Final = -8
"""The number of `M_ARENA_MAX` in malloc.h."""


def share_one_heap() -> None:
    """Has an effect before threads have used memory. What the environment says counts more."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        # Other C libraries have no such thing.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's collector of cycles where many values are made that stay: it would visit all, again and again.

    Of 100,000 partitions with their groups, that was a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
