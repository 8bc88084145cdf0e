"""The interface of every layout of another tool, and the values that describe what it holds.

A foreign archive has no catalog of ours: its own names and metadata files show what is in it. `survey` reads those and
no records; `read` returns the records of one segment in the schema that records have everywhere; `write` and `publish`
make a tree that the tool itself can read. Everything above uses this interface only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from pydantic import TypeAdapter

from maxbrod.errors import UsageError
from maxbrod.model import AbortedTransaction, TopicPartition, is_topic_name

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders
    from maxbrod.storage.interface import Storage

Value = TypeVar("Value")

UNCOMMITTED: Final = "uncommitted"
"""In the details of a survey and its segments: records of aborted transactions, and markers, may be among the others.

A layout marks the markers in the column `control`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSegment:
    """Records of one partition in one object, in the order of offsets."""

    where: TopicPartition
    path: str
    base_offset: int
    """The offset of its first record; if it has none, the offset in its name."""
    end_offset: int
    """The first offset after its last record."""
    records: int | None
    """None if it is known only after reading the segment."""
    bytes: int
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    """Bounds that hold for every record, in milliseconds; None if the metadata has none."""
    codec: str = "none"
    first_leader_epoch: int = -1
    last_leader_epoch: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    """Transactions that reach into the segment. Like epochs and codec, known in layouts that keep batches only."""
    reason: str = "unrecorded"
    """The reason why it has fewer records than offsets, if so."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the layout itself needs to read the segment. JSON values."""


_DESCRIBED: Final = TypeAdapter(tuple[str, ForeignSegment])


def describe(layout: str, segment: ForeignSegment) -> str:
    """Return everything needed to read a segment of another layout, as text: rows and slices contain it."""
    return _DESCRIBED.dump_json((layout, segment)).decode()


def described(text: str) -> tuple[str, ForeignSegment]:
    """Return the layout's name and the segment: the inverse of `describe`."""
    return _DESCRIBED.validate_json(text)


def check_topic(topic: str) -> str:
    """The name of a topic to write, which becomes a folder. UsageError: Kafka does not allow it."""
    if not is_topic_name(topic):
        raise UsageError(f"{topic!r} cannot be a topic", hint="use letters, digits, '.', '_' and '-'")
    return topic


def by_partition(segments: Iterable[ForeignSegment]) -> dict[TopicPartition, list[ForeignSegment]]:
    grouped: dict[TopicPartition, list[ForeignSegment]] = {}
    for segment in segments:
        grouped.setdefault(segment.where, []).append(segment)
    return grouped


def by_topic(values: Mapping[TopicPartition, Value]) -> dict[str, dict[str, Value]]:
    """Values by topic, then by partition as text: the form that they have in the JSON of several tools."""
    topics: dict[str, dict[str, Value]] = {}
    for where, value in sorted(values.items(), key=itemgetter(0)):
        topics.setdefault(where.topic, {})[str(where.partition)] = value
    return topics


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGap:
    """Offsets [base, end) that the archive lacks, by its metadata or by its segments."""

    where: TopicPartition
    base_offset: int
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTopic:
    """A topic as the archive knows it, besides its records. None: unknown."""

    name: str
    partition_count: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    topic_id: str | None = None
    """As Kafka prints it."""
    replicas: tuple[tuple[int, ...], ...] = ()
    """The brokers that hold each partition. An archive that knows them knows all of the configs, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignGroup:
    """The committed offsets of a consumer group: the next offset to read of each partition."""

    group_id: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A deviation from the layout. `fatal`: records are lost by it; otherwise it was repaired while reading."""

    path: str
    message: str
    offset: int | None = None
    fatal: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Something relevant that the archive cannot show. `refused`: nothing is restored until the user accepts it."""

    what: str
    topic: str | None = None
    partition: int | None = None
    hint: str | None = None
    refused: bool = False

    def __str__(self) -> str:
        place = (part for part in (self.topic, self.partition) if part is not None)
        return ": ".join(filter(None, ["-".join(map(str, place)), self.what]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The contents of a foreign archive, by its metadata. Segments by topic, partition and offset, without overlaps."""

    layout: str
    segments: tuple[ForeignSegment, ...]
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    gaps: tuple[ForeignGap, ...] = ()
    groups: tuple[ForeignGroup, ...] = ()
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset at which a backup of each partition would continue. Partitions without records are included."""
    cluster_id: str | None = None
    cluster: ForeignCluster | None = None
    """None: ACLs, quotas and users are unknown."""
    taken_at_ms: int | None = None
    faults: tuple[Fault, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the layout itself needs to publish. JSON values."""

    def of_partition(self, where: TopicPartition) -> Survey:
        """Return the part that travels to the writer of one partition."""
        return Survey(
            layout=self.layout,
            segments=tuple(segment for segment in self.segments if segment.where == where),
            positions={where: self.positions[where]} if where in self.positions else {},
            details=self.details,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Something that a layout cannot hold. `real`: an application could miss it, so the user must accept the loss."""

    what: str
    real: bool
    field: str | None = None
    """The field of a record that comes back changed, by its name in `batch.digest.Field`.

    `value_null`: only null values change, to empty ones.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options for writing a tree. None: the default of the tool."""

    codec: str | None = None
    level: int | None = None
    segment_bytes_max: int | None = None
    """Size of a segment's records before compression; in layouts that rotate by file size, of the file."""
    segment_records_max: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of one layout, such as `region` or `backup_id`. A layout refuses options that it does not know."""
    read_from: Callable[[], int] | None = None
    """Where the reading of the records began, to be asked when the first of them has come. No offset from there on that
    has no record ever had one. None: unknown."""
    asked_from: int | None = None
    """The offset to begin with: if that is before `read_from`, the source had deleted the offsets in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    """The segments that a compaction merges, by names and defaults of kafka-replicator. Sizes are of stored bytes."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts about the source that are published besides its records."""

    cluster_id: str | None = None
    brokers: tuple[str, ...] = ()
    topics: Mapping[str, ForeignTopic] = field(default_factory=dict)
    groups: tuple[ForeignGroup, ...] = ()
    gaps: tuple[ForeignGap, ...] = ()
    """Offsets within the published ranges that the source itself lacks."""
    empty: tuple[TopicPartition, ...] = ()
    """Partitions that never had a record."""
    log_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The ends of the source's logs when this was taken."""
    committed: bool = True
    """False: records of aborted transactions may be among those that are published."""
    taken_at_ms: int = 0


class Publish(Protocol):
    def __call__(
        self,
        storage: Storage,
        survey: Survey,
        written: Sequence[ForeignSegment],
        options: WriteOptions,
        facts: ClusterFacts,
        /,
    ) -> None:
        """Make everything that was written part of the archive. There is one writer.

        May be repeated after a crash. Ends with the metadata files that the tool itself relies on.
        """


class Prune(Protocol):
    def __call__(self, storage: Storage, survey: Survey, going: Collection[str], /) -> None:
        """Delete or empty the objects `going`, by their paths; of each partition they are the oldest, and never all.

        The layout's own metadata changes first: after a crash it names no deleted object, and the next call finishes.
        """


class Check(Protocol):
    def __call__(self, storage: Storage, survey: Survey, /, *, deep: bool) -> Iterator[Fault]: ...


class ReadBatches(Protocol):
    def __call__(
        self, storage: Storage, segment: ForeignSegment, /, *, check_crc: bool = True
    ) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
        """Yield the batches of a segment in pieces, each with its headers. Errors as those of `Layout.read`."""


class RecordAccess(NamedTuple):
    """The functions of a layout that touch records. See the methods of `Layout` that call them."""

    read: Callable[[Storage, ForeignSegment, Sequence[str] | None], Iterator[pa.RecordBatch]]
    write: Callable[
        [Storage, TopicPartition, Iterable[pa.RecordBatch], WriteOptions, Survey],
        list[ForeignSegment],
    ]
    check: Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The way in which one tool keeps an archive. Has no state: everything is in the storage."""

    name: str
    losses: Sequence[Loss]
    """The parts of records that are lost when they are written in this layout."""
    detect: Callable[[Storage], bool]
    """True if the storage holds such an archive. Cheap: lists names, and reads a few bytes at most."""
    look: Callable[..., Survey]
    """The survey of a storage. Its keyword parameters are `choices`, and `seen` if it `remembers`."""
    publish: Publish
    records: Callable[[], RecordAccess] | None = None
    """None: they are `read` and `check` of the layout's module `reader`, and `write` of its `writer`."""
    prune: Prune | None = None
    """None: the layout is read, and never changed."""
    repair: Callable[[Storage], list[Fault]] | None = None
    """Rebuilds the metadata, and returns what was wrong. None: it cannot be rebuilt from the segments."""
    choices: tuple[str, ...] = ()
    """The options by which `survey` selects one of several archives in one place."""
    remembers: bool = False
    """True if `survey` uses what earlier ones have seen."""
    losses_by: Callable[[WriteOptions], Sequence[Loss]] | None = None
    """Returns what options lose in addition to `losses`."""
    read_batches: ReadBatches | None = None
    """Only in a layout that keeps record batches as brokers store them, so that records need not be encoded again."""

    def losses_with(self, options: WriteOptions) -> Sequence[Loss]:
        """Return what is lost when records are written with these options."""
        return (*self.losses, *(self.losses_by(options) if self.losses_by else ()))

    def survey(
        self, storage: Storage, options: Mapping[str, str] | None = None, *, seen: dict[str, Any] | None = None
    ) -> Survey:
        """Return the contents of the archive. Damage is in `faults`, not raised, if anything can still be read.

        `seen` is what earlier surveys of the same storage have read of its objects. A layout that must open every
        object reads only new and changed ones, and adds them; others ignore it.
        `options`, such as `backup_id` or `region`, select one of several archives in the same place.
        UsageError: there are several and none is selected, or the layout has no such option.
        """
        unknown = sorted(set(options or {}) - set(self.choices))
        if unknown:
            known = f"it has {', '.join(self.choices)}" if self.choices else "leave it out"
            raise UsageError(f"reading the layout {self.name} has no option {', '.join(unknown)}", hint=known)
        memory = {"seen": seen} if self.remembers else {}
        return self.look(storage, **(options or {}), **memory)

    def _records(self) -> RecordAccess:
        if self.records is not None:
            return self.records()
        # Only when records are read or written: that loads numba, which takes a second, and a survey must not.
        package = f"maxbrod.layouts.{self.name}"
        reader, writer = import_module(f"{package}.reader"), import_module(f"{package}.writer")
        return RecordAccess(read=reader.read, write=writer.write, check=reader.check)

    def read(
        self, storage: Storage, segment: ForeignSegment, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a segment as batches of RECORD_SCHEMA, or of some of its columns, in bounded memory.

        Fields that the layout does not hold have Kafka's default. CorruptDataError, TruncatedDataError name the object
        and the offset; records before the damage have been yielded by then.
        """
        return self._records().read(storage, segment, columns)

    def write(
        self,
        storage: Storage,
        where: TopicPartition,
        records: Iterable[pa.RecordBatch],
        options: WriteOptions,
        *,
        survey: Survey,
    ) -> list[ForeignSegment]:
        """Write records of one partition after those that `survey` has, and return the new segments.

        Runs anywhere, also twice at once, for any number of partitions at a time. Nothing counts as archived before it
        is published. What an earlier run wrote and did not publish is overwritten, or stays without being read.
        """
        return self._records().write(storage, where, records, options, survey)

    def check(self, storage: Storage, survey: Survey, *, deep: bool) -> Iterator[Fault]:
        """Yield all deviations from the layout, including the faults of the survey.

        Quick: compares objects, names and metadata. Deep: also reads every record, and verifies every checksum.
        """
        return self._records().check(storage, survey, deep=deep)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignBroker:
    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAcl:
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignQuota:
    entities: tuple[tuple[str, str | None], ...]
    """Pairs of type and name. None is the default of the type."""
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignUser:
    """A user who can log in by this SCRAM mechanism. The secret is never kept."""

    name: str
    mechanism: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignCluster:
    brokers: tuple[ForeignBroker, ...] = ()
    acls: tuple[ForeignAcl, ...] = ()
    quotas: tuple[ForeignQuota, ...] = ()
    users: tuple[ForeignUser, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Cluster-wide broker settings that are defaults of topic settings, under the names of the latter."""
