"""The names of what `maxbrod bench backup` and `restore` can measure. Imports nothing: the command line shows them."""

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
