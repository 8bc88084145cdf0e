"""The names of what the benchmarks can measure. Imports nothing: the command line shows them."""

from __future__ import annotations

from enum import StrEnum


class Group(StrEnum):
    B = "b"
    """JSON of 270 bytes in lz4 batches, four partitions."""
    A = "a"
    """Records of 1 KB, uncompressed, four partitions."""
    HOT = "hot"
    """One partition, one task or two."""
    COLD = "cold"
    """From nothing to the end of the process."""
    PLANNING = "planning"
    """100,000 partitions, a million rows."""


class RestoreGroup(StrEnum):
    B = "b"
    """JSON of 270 bytes in lz4 batches, four partitions."""
    A = "a"
    """Records of 1 KB, uncompressed, four partitions."""
    OFFSETS = "offsets"
    """What exact offsets cost: filled starts, closed holes, the size of a map."""
    PLANNING = "planning"
    """10,000 partitions, 100,000 rows."""


class TableGroup(StrEnum):
    SCAN = "scan"
    """All of B to an aggregate, beside the live topic and Parquet."""
    COUNT = "count"
    """By the catalog alone."""
    POINT = "point"
    """What one offset or one millisecond of 1,000 segments opens."""
    LOGDIR = "logdir"
    """A stopped broker's log directory, beside reading its files."""


class LifecycleGroup(StrEnum):
    COMPACT = "compact"
    """Segments merged, beside copying their files."""
    BY_KEY = "by-key"
    """The newest record of each key of B."""
    DAY = "day"
    """86,400 runs of a second, compacted, beside one backup."""
    REPAIR = "repair"
    """A catalog rebuilt from objects, beside reading them once."""
    SCALE = "scale"
    """100,000 partitions, 5 million rows."""
    REQUESTS = "requests"
    """What a run asks of the store, counted."""


class ReplicateGroup(StrEnum):
    LINK = "link"
    """A backlog beside a backup and a restore, latency, quiet partitions."""
    MIRROR_MAKER = "mirror-maker"
    MEMORY = "memory"
