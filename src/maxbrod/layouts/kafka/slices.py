"""The nouns of the native layout: what a slice is, how objects are compressed, when a segment ends. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.model import AbortedTransaction  # noqa: TC001 - pydantic reads the types of fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A run of batches of one partition within one object: what the catalog remembers of it."""

    path: str
    position: int
    bytes: int
    raw_bytes: int
    codec: str
    """The codec that most of its bytes had at the source."""
    base_offset: int
    """Of its first batch."""
    end_offset: int
    """The first offset after its last batch."""
    records: int
    min_timestamp: int | None
    max_timestamp: int | None
    first_leader_epoch: int
    last_leader_epoch: int
    aborted: tuple[AbortedTransaction, ...] = ()
    digest: str
    min_timestamp_exact: bool = False
    """Whether no record is older than `min_timestamp`: every batch was looked into, or told enough by its header."""
    control_records: int | None = None
    """How many of `records` are markers of transactions; None where nobody has counted them."""
    details: str | None = None
    """Where it stands in an archive of another layout: what that wants to know to read it. None in our own."""
    sound_end: int | None = None
    """Offsets from here on are known to be lost, and are not read. None: all of it is read, or it is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """A segment ends with the batch that reaches one of these; each segment is an object of its own."""

    bytes_max: int = 256 << 20
    records_max: int | None = None
    hole_offsets_min: int = 1000
    """A hole this wide between two batches ends a slice, so that the catalog can show it as a gap."""
