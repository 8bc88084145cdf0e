"""How much memory something takes."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def peak_bytes(work: Callable[[], object]) -> int:
    """What numpy and Arrow's Python side allocate at most, in a thread that has no scratch memory yet."""
    with ThreadPoolExecutor(1) as pool:
        tracemalloc.start()
        try:
            pool.submit(work).result()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
