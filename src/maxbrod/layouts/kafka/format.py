"""Values of the native layout: slices, when a segment ends, how it is compressed, and the names of objects.

A name is never used twice, and none leads out of its folder.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from maxbrod.batch.erased import ErasedRecords
from maxbrod.errors import UsageError
from maxbrod.model import INT64_MAX, AbortedTransaction, is_topic_name

SEGMENTS: Final = "segments"
PACKS: Final = "packs"
_PLAIN: Final = ".log"
_FRAMED: Final = ".log.zst"
_NONCE_BYTES: Final = 8
_SEGMENT: Final = re.compile(
    rf"{SEGMENTS}/(?P<topic>[a-zA-Z0-9._-]+)/(?P<topic_id>[a-zA-Z0-9._-]+)/(?P<partition>[0-9]{{1,10}})"
    rf"/(?P<base>[0-9]{{20}})-[a-zA-Z0-9._-]+?\.log(\.zst)?"
)
_PACK: Final = re.compile(rf"{PACKS}/(?P<run>[a-zA-Z0-9._-]+)-[a-zA-Z0-9._]+?\.log(\.zst)?")
LEVEL_DEFAULT: Final = 1
LEVEL_MAX: Final = 19
"""Higher levels need more memory for one frame than a whole task may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlice:
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
    """True if no record is older than `min_timestamp`: every batch was read, or its header contains the lowest."""
    control_records: int | None = None
    """The number of `records` that are transaction markers; None if they were not counted."""
    details: str | None = None
    """The details by which another layout reads it. None in our own archives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(StoredSlice):
    """A slice to read, or one that was written."""

    sound_end: int | None = None
    """Offsets from here are known to be lost and are not read. None: all must be readable."""
    erased: ErasedRecords | None = None
    """The records in it that no reader may return. None: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLimits:
    """A segment ends with the batch that reaches one of these limits; each segment is an object of its own."""

    bytes_max: int = 256 << 20
    records_max: int | None = None
    hole_offsets_min: int = 1000
    """A hole of this width between two batches ends a slice, so that the catalog can record it as a gap."""


def segment_path(
    *, topic: str, topic_id: str, partition: int, base_offset: int, nonce: str | None = None, framed: bool
) -> str:
    """The name of a segment of one partition. Names of a partition's segments sort by offset."""
    if partition < 0 or not 0 <= base_offset <= INT64_MAX:
        raise UsageError(f"partition {partition} at offset {base_offset} is invalid", object_name=topic)
    parts = (SEGMENTS, _checked("topic", topic), _checked("topic id", topic_id), str(partition))
    return "/".join((*parts, f"{base_offset:020d}-{_ending(nonce, framed=framed)}"))


def pack_path(*, run_id: str, nonce: str | None = None, framed: bool) -> str:
    """The name of a pack: slices of many partitions that one task of a run has written."""
    return f"{PACKS}/{_checked('run id', run_id)}-{_ending(nonce, framed=framed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionName:
    topic: str
    topic_id: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def segment_path(self, base_offset: int, *, framed: bool) -> str:
        """A new name of a segment of this partition."""
        return segment_path(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=base_offset,
            framed=framed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogName(PartitionName):
    """The facts in the name of a segment."""

    base_offset: int


def parse_segment_path(path: str) -> LogName | None:
    """The inverse of `segment_path`; None if the object is not a segment."""
    found = _SEGMENT.fullmatch(path)
    if found is None:
        return None
    return LogName(
        topic=found["topic"],
        topic_id=found["topic_id"],
        partition=int(found["partition"]),
        base_offset=int(found["base"]),
    )


def run_of_pack(path: str) -> str | None:
    """The run that wrote a pack; None if the object is not a pack."""
    found = _PACK.fullmatch(path)
    return None if found is None else found["run"]


def is_framed(path: str) -> bool:
    """True if the log is in zstd frames. UsageError: the object is not a log."""
    if path.endswith(_FRAMED):
        return True
    if path.endswith(_PLAIN):
        return False
    raise UsageError(f"{path} is not a segment of the native layout", hint=f"segments end in {_PLAIN} or {_FRAMED}")


def check_topic(name: str) -> None:
    """UsageError: a topic cannot have this name."""
    _checked("topic", name)


def new_nonce() -> str:
    return secrets.token_hex(_NONCE_BYTES)


def _ending(nonce: str | None, *, framed: bool) -> str:
    return (new_nonce() if nonce is None else _checked("nonce", nonce)) + (_FRAMED if framed else _PLAIN)


def _checked(noun: str, name: str) -> str:
    """The name, if Kafka allows it: another one, even from a broker, could lead out of its folder."""
    if is_topic_name(name):
        return name
    raise UsageError(
        f"{name!r} cannot be a {noun}",
        hint="it has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is not '.' or '..'",
    )


class CompressionMode(StrEnum):
    AUTO = "auto"
    """Batches stay as they are; a log that compresses to half or less is stored in frames."""
    SOURCE = "source"
    """Batches stay as they are, without frames."""
    ZSTD = "zstd"
    """The smallest archive: batches are decompressed, and everything is stored in frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """The compression of an archive: the value of `--compression`."""

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
