"""Which segments a compaction merges. The names and defaults are those of kafka-replicator, which seeded the idea."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """Sizes are those of stored bytes."""

    level_min: int = 0
    level_max: int = 0
    age_ms_min: int = 3_600_000
    segments_min: int = 10
    bytes_min: int = 1 << 30
    segments_max: int = 10_000
    bytes_max: int = 4 << 30
    delete: bool = True
    step_over: bool = False
    """True: merge behind segments that are missing, too young or damaged."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("level", self.level_min, self.level_max),
            ("segment_count", self.segments_min, self.segments_max),
            ("segment_size", self.bytes_min, self.bytes_max),
        ):
            if least > most:
                raise UsageError(f"min_{name} is {least}, which is above max_{name}, {most}")
        if self.segments_min < 2 or self.bytes_min < 1 or self.age_ms_min < 0 or self.level_min < 0:
            raise UsageError(
                "a compaction merges at least 2 segments of at least 1 byte, of levels and ages that are not negative"
            )
