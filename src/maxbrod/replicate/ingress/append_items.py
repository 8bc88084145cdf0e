"""What the tasks of an ingress that appends are given, and what they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maxbrod.kafka.wire.client import PATIENCE_S
from maxbrod.layouts.kafka.format import Slice  # noqa: TC001 - pydantic reads the types of fields
from maxbrod.model import TopicPartition  # noqa: TC001 - as above
from maxbrod.replicate.link import Mark  # noqa: TC001 - as above

if TYPE_CHECKING:
    from maxbrod.config import KafkaConfig, StorageConfig
    from maxbrod.replicate.link import PositionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSettings:
    """What every task needs besides its items. Holds secrets."""

    link: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
    destination_id: str
    """The id of the destination's cluster."""
    version: int
    """The version of the catalog."""
    rate_bytes_per_s: float | None = None
    """The limit for one task."""
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendItem:
    """What to append to one partition: the source offsets from where the link has come to `end`."""

    where: TopicPartition
    topic_id: str
    """The id of the destination topic."""
    source_topic: str
    source_id: str
    joined: bool
    """Whether the link appends other source topics to the same topic."""
    origins: tuple[str, ...]
    """The ids of the clusters that the records come from, the nearest first."""
    start: int
    """Where a link begins that was never here."""
    position: int | None
    """Where the link was when this was planned; None: it has no mark."""
    begins: bool
    """Whether an operator says that the link was never here."""
    end: int
    archive_end: int
    batch_bytes_max: int
    slices: tuple[Slice, ...]

    @property
    def key(self) -> PositionKey:
        return self.source_topic, self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The outcome of one item: the mark that the destination has now, and why it stopped if it did."""

    source_topic: str
    where: TopicPartition
    mark: Mark | None
    records: int = 0
    failure: dict[str, Any] | None = None

    @property
    def key(self) -> PositionKey:
        return self.source_topic, self.where
