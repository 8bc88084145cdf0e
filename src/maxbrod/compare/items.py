"""The tasks of a comparison with their items and outcomes. Other modules do the work and load numba."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import MaxbrodError
from maxbrod.kafka.wire.client import PATIENCE_S
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.batch.digest import Digest, Field
    from maxbrod.batch.erased import ErasedRecords
    from maxbrod.batch.schema_ids import SchemaIdMap
    from maxbrod.compare.plan import BroughtRecords, ComparedRange, Side
    from maxbrod.compare.report import Difference
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.layouts.kafka.format import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """The values that all tasks share. Holds secrets. The source is either an archive or a cluster."""

    target: KafkaConfig
    source: KafkaConfig | None = None
    archive_url: str | None = None
    storage: StorageConfig | None = field(default=None, repr=False)
    ignored: tuple[Field, ...] = ()
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareItem:
    """One part to be read."""

    pair: int
    side: Side
    number: int
    extent: ComparedRange
    split: bool
    by_offset: bool
    """True if the place of a record is its offset; otherwise only the order of records counts."""
    since_ms: int | None = None
    until_ms: int | None = None
    map: dict[str, Any] | None = None
    """From offsets of the source to offsets of the target."""
    brought: BroughtRecords | None = None
    """Compare only records that a link has appended; their place is their offset at the source."""
    slices: tuple[Slice, ...] = ()
    """In an archive."""
    erased: ErasedRecords | None = None
    """Leave these records of a topic out, as the archive does."""
    schema_ids: SchemaIdMap | None = None
    """Read the records with these schema ids instead of theirs."""

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.extent.topic, partition=self.extent.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    """The digest of one part. `failure`: the error that ended reading early."""

    pair: int
    side: Side
    number: int
    digest: Digest
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectItem:
    """Two parts whose records differ."""

    source: CompareItem
    target: CompareItem
    source_topic: str
    target_topic: str
    limit: int


LATER: Final = 1 << 61
"""A place behind all that is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaner:
    """The effect that the log cleaner may have had on one side."""

    horizon_ms: int | None
    """Tombstones from before this time may be gone; None: the side is not compacted, and lacks nothing."""
    elsewhere: tuple[tuple[CompareItem, int | None], ...] = ()
    """Records of that side which are not compared, with the place that counts for all of them; None: their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedItem:
    """A pair of compacted partitions that differ. Of its keys only one share is looked at."""

    pair: int
    whole: SuspectItem
    source: Cleaner
    target: Cleaner
    share: int
    shares: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The differences that compaction explains, and those that it does not."""

    pair: int
    source_removed: int = 0
    target_removed: int = 0
    """Records that only the other side has, and that nothing is lost by."""
    differences: tuple[Difference, ...] = ()
    """The first ones."""
    unexplained: int = 0
    """The number of them, at least."""
    failure: MaxbrodError | None = None


def digest_task(settings: CompareSettings, items: Sequence[CompareItem]) -> list[Digested]:
    """Return the digest of every part."""
    from maxbrod.compare.task import digest_parts  # noqa: PLC0415 - loads numba

    return digest_parts(settings, items)


def difference_task(settings: CompareSettings, items: Sequence[SuspectItem]) -> list[Difference]:
    """Return the first differences of every item, in order."""
    from maxbrod.compare.task import find_differences  # noqa: PLC0415 - loads numba

    return [difference for item in items for difference in find_differences(settings, item)]


def compacted_task(settings: CompareSettings, items: Sequence[CompactedItem]) -> list[Settled]:
    """Return what compaction explains of each item."""
    from maxbrod.compare.compaction import settle  # noqa: PLC0415 - loads numba

    return [settle(settings, item) for item in items]
