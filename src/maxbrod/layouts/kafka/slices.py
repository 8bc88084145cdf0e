"""Values of the native layout: slices, and when a segment ends."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.model import AbortedTransaction  # noqa: TC001 - pydantic reads the types of what travels to a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Contiguous batches of one partition within one object, as the catalog records them."""

    path: str
    position: int
    bytes: int
    raw_bytes: int
    codec: str
    """The codec of most of its bytes at the source."""
    base_offset: int
    """That of its first batch."""
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
    """Whether no record is older than `min_timestamp`: every batch was read, or its header contains the lowest."""
    control_records: int | None = None
    """How many of `records` are transaction markers; None if they were not counted."""
    details: str | None = None
    """What another layout needs to read it. None in our own archives."""
    sound_end: int | None = None
    """Offsets from here are known to be lost and are not read. None: all must be readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """A segment ends with the batch that reaches one of these limits; each segment is an object of its own."""

    bytes_max: int = 256 << 20
    records_max: int | None = None
    hole_offsets_min: int = 1000
    """A hole of this width between two batches ends a slice, so that the catalog can record it as a gap."""
