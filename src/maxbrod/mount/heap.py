"""The heap of the C library: one for all threads of a mount.

By default the GNU C library gives threads heaps of their own, and each keeps what was freed in it: with 200 readers at
200 places, that was a third of the memory. Chunks are few and large, so threads hardly ever wait for the one heap.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

_ARENA_MAX: Final = -8
"""The number of `M_ARENA_MAX` in malloc.h."""


def share_one_heap() -> None:
    """Has an effect before threads have used memory. What the environment says counts more."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        # Other C libraries have no such thing.
        with suppress(AttributeError, OSError):
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
