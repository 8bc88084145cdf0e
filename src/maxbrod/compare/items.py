"""The nouns of a comparison's jobs: what tasks are given, and what they answer. Neither numba nor Spark is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.kafka.wire.client import PATIENCE_S
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from maxbrod.batch.digest import Digest, Field
    from maxbrod.compare.plan.parts import Side
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.layouts.kafka.slices import Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """What every task needs to know besides its items. Holds secrets. Either an archive or a cluster is the source."""

    target: KafkaConfig
    source: KafkaConfig | None = None
    archive_url: str | None = None
    storage: StorageConfig | None = field(default=None, repr=False)
    ignored: tuple[Field, ...] = ()
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareItem:
    """One part to be read: [first, end) of a partition of one side."""

    pair: int
    side: Side
    number: int
    topic: str
    topic_id: str
    partition: int
    first: int
    end: int
    split: bool
    by_offset: bool
    """Whether a record's place is its offset; else its order alone counts."""
    since_ms: int | None = None
    until_ms: int | None = None
    restored: bool = False
    """As a restore makes them: every record has create time."""
    map: dict[str, Any] | None = None
    """Of the source's offsets to the target's."""
    slices: tuple[Slice, ...] = ()
    """In an archive."""

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(topic=self.topic, partition=self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digested:
    """One part. `failure`: why it was not read to its end, as an error tells it."""

    pair: int
    side: str
    number: int
    digest: Digest
    failure: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectItem:
    """Two parts that do not hold the same."""

    source: CompareItem
    target: CompareItem
    source_topic: str
    target_topic: str
    limit: int
