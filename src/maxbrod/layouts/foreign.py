"""What every layout of another tool can do, and the nouns for what it holds.

A foreign archive has no catalog of ours: its own names and metadata files tell what is in it. `survey` reads those and
no records; `read` gives the records of one segment in the one schema that they have everywhere; `write` and `publish`
make a tree that the tool itself could read. Everything above works on these alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.layouts.foreign_cluster import ForeignCluster
    from maxbrod.model import AbortedTransaction, TopicPartition
    from maxbrod.storage.interface import Storage


UNCOMMITTED: Final = "uncommitted"
"""In the details of a survey and its segments: records of aborted transactions, and markers, may be among the others.

A layout tells the markers by the column `control`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSegment:
    """Records of one partition in one object, in the order of offsets."""

    where: TopicPartition
    path: str
    base_offset: int
    """Of its first record, or where the segment begins by its name if it has none."""
    end_offset: int
    """The first offset after its last record."""
    records: int | None
    """None where only reading it would tell."""
    bytes: int
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    """Bounds that are sure to hold for every record, in milliseconds; None where the metadata does not tell."""
    codec: str = "none"
    first_leader_epoch: int = -1
    last_leader_epoch: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    """Of layouts that keep batches, as are the epochs and the codec: transactions that reach into the segment."""
    reason: str = "unrecorded"
    """Why it has fewer records than offsets, if it has."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the layout itself wants to know again when it reads the segment. Fits into JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGap:
    """Offsets [base, end) that the archive lacks: it says so itself, or its segments show it."""

    where: TopicPartition
    base_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTopic:
    """What the archive knows of a topic besides its records. None: it does not say."""

    name: str
    partition_count: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: str | None = None
    """As Kafka prints it."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """The brokers that hold each partition. Whoever knows them knows all of the configs, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGroup:
    """The committed offsets of a consumer group: of each partition the next one to read."""

    group_id: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that is not as the layout says. `fatal`: records are lost by it; else it was made good."""

    path: str
    message: str
    offset: int | None = None
    fatal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """What the archive cannot tell, though it matters. `refused`: nothing is restored before the user accepts it."""

    what: str
    topic: str | None = None
    partition: int | None = None
    hint: str | None = None
    refused: bool = False

    def __str__(self) -> str:
        place = (each for each in (self.topic, self.partition) if each is not None)
        return ": ".join(filter(None, ["-".join(map(str, place)), self.what]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a foreign archive holds, by its metadata. Segments by topic, partition and offset, without overlaps."""

    layout: str
    segments: tuple[ForeignSegment, ...]
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    gaps: tuple[ForeignGap, ...] = ()
    groups: tuple[ForeignGroup, ...] = ()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset at which a backup of each partition would go on. Partitions without records are here, too."""
    cluster_id: str | None = None
    cluster: ForeignCluster | None = None
    """None: it knows nothing of access, quotas and users."""
    taken_at_ms: int | None = None
    faults: tuple[Fault, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the layout itself wants to know again when it publishes. Fits into JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a layout cannot hold. `real`: an application could miss it, so that it must be accepted by the user."""

    what: str
    real: bool
    field: str | None = None
    """The field of a record that comes back otherwise, by its name in `batch.digest.Field`.

    `value_null`: only null values do, as empty ones.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How a tree is written. None: as the tool does by default."""

    codec: str | None = None
    level: int | None = None
    segment_bytes_max: int | None = None
    """Of what a segment has before compression, or where the layout rotates by the file, of the file."""
    segment_records_max: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of one layout alone, such as `region` or `backup_id`: each layout refuses those that it does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What is published about the source besides its records."""

    cluster_id: str | None = None
    brokers: tuple[str, ...] = ()
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    groups: tuple[ForeignGroup, ...] = ()
    gaps: tuple[ForeignGap, ...] = ()
    """Offsets that the source itself lacks, among those that are published."""
    empty: tuple[TopicPartition, ...] = ()
    """Partitions that never had a record."""
    committed: bool = True
    """False: records of aborted transactions may be among those that are published."""
    taken_at_ms: int = 0


class Layout(Protocol):
    """One tool's way to keep an archive. Has no state: everything is in the storage."""

    @property
    def name(self) -> str: ...

    @property
    def losses(self) -> Sequence[Loss]:
        """What is lost when records are written in this layout, readable by its own tool or not."""

    def losses_with(self, options: WriteOptions) -> Sequence[Loss]:
        """The same, where they are written with these options."""

    def detect(self, storage: Storage) -> bool:
        """Whether the storage holds such an archive. Cheap: lists names, reads a few bytes at most."""

    def survey(self, storage: Storage, options: Mapping[str, str] | None = None) -> Survey:
        """All that is there. Damage is told in `faults`, not raised, if anything can still be read.

        `options` choose where a place holds several archives, such as `backup_id` or `region`.
        UsageError: there are several and none is chosen, or the layout has no such option.
        """

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records of a segment as batches of RECORD_SCHEMA, or of some of its columns, in bounded memory.

        What the layout does not hold has Kafka's default. CorruptDataError, TruncatedDataError name the object and
        the offset; records before the damage have been given by then.
        """

    def write(
        self,
        storage: Storage,
        where: TopicPartition,
        records: Iterable[pa.RecordBatch],
        options: WriteOptions,
        *,
        survey: Survey,
    ) -> list[ForeignSegment]:
        """Write records of one partition behind those that `survey` knows of, and return what was written.

        Runs anywhere, also twice at once, for any number of partitions at a time. Nothing counts as archived before it
        is published; what an earlier run wrote and did not publish is written over, or left for nobody to read.
        """

    def publish(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],
        options: WriteOptions,
        facts: ClusterFacts,
    ) -> None:
        """Make everything that was written part of the archive, in one place, by one writer.

        May be repeated after a crash. Ends with the metadata files that the tool itself goes by.
        """

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        """What is not as the layout says, the survey's own faults among it.

        Quick: objects, names and metadata agree. Deep: every record is read, and every checksum that there is.
        """


@runtime_checkable
class BatchLayout(Protocol):
    """A layout that keeps record batches as brokers store them: they need not be made of records again."""

    def read_batches(
        self, storage: Storage, segment: ForeignSegment, *, check_crc: bool = True
    ) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
        """The batches of a segment in pieces, each with its headers. Errors as those of `read`."""
