"""How an archive is compressed: the value of `--compression`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from maxbrod.errors import UsageError

LEVEL_DEFAULT: Final = 1
LEVEL_MAX: Final = 19
"""Higher levels need more memory for one frame than a whole task may use."""


class CompressionMode(StrEnum):
    AUTO = "auto"
    """Batches stay as they are; a log that compresses to half or less is stored in frames."""
    SOURCE = "source"
    """Batches stay as they are, without frames."""
    ZSTD = "zstd"
    """The smallest archive: batches are decompressed, and everything is stored in frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    mode: CompressionMode = CompressionMode.AUTO
    level: int = LEVEL_DEFAULT
    """The zstd level of frames."""

    def __post_init__(self) -> None:
        if not 1 <= self.level <= LEVEL_MAX:
            raise UsageError(f"zstd has no level {self.level}", hint=f"levels go from 1 to {LEVEL_MAX}")

    def __str__(self) -> str:
        return f"{self.mode}:{self.level}" if self.mode is CompressionMode.ZSTD else str(self.mode)

    @classmethod
    def parse(cls, text: str) -> Compression:
        """`auto`, `source`, `zstd` or `zstd:9`."""
        name, colon, level = text.partition(":")
        try:
            mode = CompressionMode(name)
        except ValueError:
            raise _unknown(text) from None
        if not colon:
            return cls(mode=mode)
        if mode is not CompressionMode.ZSTD or not (level.isascii() and level.isdigit()):
            raise _unknown(text)
        return cls(mode=mode, level=int(level))


def _unknown(text: str) -> UsageError:
    return UsageError(f"compression {text!r} is unknown", hint="use auto, source, zstd, or zstd:9 for a level")
