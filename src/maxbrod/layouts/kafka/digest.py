"""The digest of a slice: the CRC-32C of its stored bytes, computed incrementally."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import google_crc32c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ALGORITHM: Final = "crc32c"


class Digest:
    def __init__(self) -> None:
        self._value = 0

    def add(self, data: NDArray[np.uint8]) -> None:
        self._value = google_crc32c.extend(self._value, data)

    def __str__(self) -> str:
        return f"{ALGORITHM}:{self._value:08x}"
