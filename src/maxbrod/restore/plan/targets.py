"""The topics that a restore writes to: names, partitions, replicas, configuration, and offsets mode of each partition.

During the restore temporary values keep brokers from deleting, compacting, recompressing or refusing restored records,
and from changing their timestamps. How to undo them is part of the plan, which is stored before anything is changed. So
a resumed restore still knows the topic's own values.

A broker assigns the next free offset to each batch, so offsets without a record must be filled: fillers before the
first record, transaction markers after it. The rates were measured on Kafka 4.3.1, one broker on two cores. An estimate
counts compaction, gaps and aborted transactions. The catalog does not record the markers of committed transactions, so
the estimate is a lower bound.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING, Final

from maxbrod.batch.provenance import PROVENANCE_BYTES_MAX
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest

if TYPE_CHECKING:
    from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
    from maxbrod.restore.plan.sources import Source


RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
CLEANUP_POLICY: Final = "cleanup.policy"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
_MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_SEGMENT_BYTES: Final = "segment.bytes"
_TIMESTAMP_BEFORE: Final = "message.timestamp.before.max.ms"
_TIMESTAMP_DIFFERENCE: Final = "message.timestamp.difference.max.ms"
_ANY_MS: Final = str(2**63 - 1)

_HELD: Final = {
    CLEANUP_POLICY: "delete",
    "compression.type": "producer",
    "message.timestamp.after.max.ms": _ANY_MS,
    _TIMESTAMP_BEFORE: _ANY_MS,
    "message.timestamp.type": "CreateTime",
    RETENTION_BYTES: "-1",
    RETENTION_MS: "-1",
}
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
"""Kafka's default. A batch of fillers is a little smaller."""
_SEGMENT_BYTES_DEFAULT: Final = 1 << 30
_REQUEST_BYTES_MAX: Final = 100 << 20
"""The largest request that a broker reads by default (socket.request.max.bytes)."""
_BATCH_SLACK_BYTES: Final = 1024
"""Messages of magic 0 and 1 grow by their new header."""
PLACED: Final = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
"""Settings that name brokers of the cluster that was backed up."""

FILLERS_PER_S: Final = 7_000_000
"""Batches of null records, which are deleted afterwards; possible only before the first record."""
MARKERS_PER_S: Final = 18_000
"""`WriteTxnMarkers` in bulk; needs ClusterAction."""
EMPTY_TRANSACTIONS_PER_S: Final = 200
EXACT_SECONDS_MAX: Final = 60.0
"""The most that `auto` spends on one partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Values to set, and names to delete, which resets them to the broker's default."""

    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.set or self.delete)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConfigs:
    """`create` is for a topic that does not exist, `hold` for one that exists; `release` is for both, at the end."""

    create: Mapping[str, str] = field(default_factory=dict)
    hold: ConfigChange = field(default_factory=ConfigChange)
    release: ConfigChange = field(default_factory=ConfigChange)
    final: Mapping[str, str] = field(default_factory=dict)
    """The topic's own values after the restore."""
    dropped: tuple[str, ...] = ()
    """Archived settings that the target's brokers do not know."""
    left_out: tuple[str, ...] = ()
    """Archived settings that are not restored: they name brokers of the other cluster, or have no archived value."""


def plan_new_configs(
    source: TopicState | None,
    overrides: Mapping[str, str],
    *,
    replication_factor: int,
    batch_bytes_max: int,
    known: Container[str] | None,
) -> PlannedConfigs:
    """The configuration of a topic that the restore creates.

    `known` are the settings that the target's brokers know; None: unknown. `source` is the topic as it was backed up;
    None, or a topic without configs, if the archive does not know it.
    """
    archived = {} if source is None else source.configs or {}
    configs = {name: value for name, value in archived.items() if name not in PLACED and value is not None}
    left_out = sorted(name for name in archived if name not in configs and name not in overrides)
    configs |= overrides
    dropped = sorted(name for name in configs if known is not None and name not in known and name not in overrides)
    final = {name: value for name, value in configs.items() if name not in dropped}
    effective = {**({} if source is None else source.effective or {}), **final}
    if _as_int(effective.get(MIN_INSYNC_REPLICAS), 1) > replication_factor > 0:
        final[MIN_INSYNC_REPLICAS] = str(replication_factor)
    held = _held(effective, batch_bytes_max, known)
    return PlannedConfigs(
        create=dict(sorted({**final, **held}.items())),
        release=_way_back(held, final),
        final=dict(sorted(final.items())),
        dropped=tuple(dropped),
        left_out=tuple(left_out),
    )


def plan_existing_configs(
    target: TopicState, *, batch_bytes_max: int, known: Container[str] | None
) -> PlannedConfigs | None:
    """The configuration of a topic that exists, which keeps its own in the end. None: this user may not read it."""
    if target.configs is None or target.effective is None:
        return None
    own = {name: value for name, value in target.configs.items() if value is not None}
    held = _held({**target.effective, **own}, batch_bytes_max, known)
    if _as_int(target.effective.get(MIN_INSYNC_REPLICAS), 1) > target.replication_factor:
        held[MIN_INSYNC_REPLICAS] = str(target.replication_factor)
    held = {name: value for name, value in held.items() if own.get(name) != value}
    return PlannedConfigs(
        hold=ConfigChange(set=dict(sorted(held.items()))),
        release=_way_back(held, own),
        final=dict(sorted(own.items())),
    )


def _held(effective: Mapping[str, str], batch_bytes_max: int, known: Container[str] | None) -> dict[str, str]:
    held = {name: value for name, value in _HELD.items() if known is None or name in known}
    if known is not None and _TIMESTAMP_BEFORE not in known and _TIMESTAMP_DIFFERENCE in known:
        held[_TIMESTAMP_DIFFERENCE] = _ANY_MS  # brokers before 3.6
    batch_bytes = min(max(batch_bytes_max + _BATCH_SLACK_BYTES, MESSAGE_BYTES_DEFAULT), _REQUEST_BYTES_MAX)
    if _as_int(effective.get(_MAX_MESSAGE_BYTES), MESSAGE_BYTES_DEFAULT) < batch_bytes:
        held[_MAX_MESSAGE_BYTES] = str(batch_bytes)
    # A broker refuses batches that are larger than a segment.
    if _as_int(effective.get(_SEGMENT_BYTES), _SEGMENT_BYTES_DEFAULT) < batch_bytes:
        held[_SEGMENT_BYTES] = str(batch_bytes)
    return held


def _way_back(held: Mapping[str, str], own: Mapping[str, str]) -> ConfigChange:
    changed = {name: own[name] for name in sorted(held) if name in own and own[name] != held[name]}
    return ConfigChange(set=changed, delete=tuple(sorted(held.keys() - own.keys())))


def _as_int(text: str | None, otherwise: int) -> int:
    try:
        return otherwise if text is None else int(text)
    except ValueError:
        return otherwise


def retention_of(configs: Mapping[str, str], name: str) -> int | None:
    """The value of `retention.ms` or `retention.bytes`; None: it deletes nothing, or is unknown."""
    if "delete" not in configs.get(CLEANUP_POLICY, "delete").split(","):
        return None
    found = _as_int(configs.get(name), -1)
    return None if found < 0 else found


FACTOR_DEFAULT: Final = -1
"""The default replication factor of the target's brokers."""

UNKNOWN_END: Final = -1


class Right(StrEnum):
    """Rights that a restore may need at the target."""

    CREATE = "Create"
    WRITE = "Write"
    READ = "Read"
    """To compare the end of a log when a restore is resumed, and to commit the offsets of groups."""
    ALTER_CONFIGS = "AlterConfigs"
    DELETE = "Delete"
    """To delete records below an offset."""
    CLUSTER_ACTION = "ClusterAction"
    """To write transaction markers."""
    READ_GROUPS = "Read the groups"
    """To commit their offsets."""
    ALTER_CLUSTER = "Alter the cluster"
    """To create ACLs."""
    ALTER_CLUSTER_CONFIGS = "AlterConfigs on the cluster"
    """To set quotas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """The current start and end of a partition's log."""

    start: int
    end: int

    @property
    def empty(self) -> bool:
        return self.start == self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The current state of the cluster to restore into."""

    cluster: ClusterState
    """Includes the target topics and groups that exist."""
    names: frozenset[str] = frozenset()
    """The names of all topics that exist."""
    extents: Mapping[TopicPartition, LogExtent] = field(default_factory=dict)
    """The logs of all partitions of target topics that exist."""
    known_configs: frozenset[str] | None = None
    """The names of topic settings that the brokers know; None: unknown."""
    defaults: Mapping[str, str] | None = None
    """The brokers' default retention for topics; None: unknown."""
    rights: Mapping[Right, bool] = field(default_factory=dict)
    """The rights of this user. A right that is not in it is unknown."""
    denied: Mapping[Right, tuple[str, ...]] = field(default_factory=dict)
    """The topics or groups on which a right is denied."""
    authorized: bool = True
    """False if the cluster has no authorizer, and so accepts no ACLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopic:
    """One topic to restore to, and its source."""

    name: str
    source_topic: str
    topic_id: str
    """The id of the source topic."""
    exists: bool
    target_id: str | None
    """The id of a target topic that exists. A resumed restore must find the same."""
    partition_count: int
    source_partition_count: int
    replication_factor: int
    wanted_replication_factor: int
    configs: PlannedConfigs | None
    """None if this user may not read those of an existing topic: then retention and compaction are not paused."""
    bases: tuple[int, ...]
    """The log end of each partition at planning, from which on records are restored. -1: unknown."""

    @property
    def repartitioned(self) -> bool:
        return self.partition_count != self.source_partition_count


def plan_target(
    request: RestoreRequest, sources: Sequence[Source], archived: TopicState | None, count: int, state: TargetState
) -> TargetTopic:
    """The target of one source topic, of which the partitions `sources` are requested.

    `archived` is the topic in the snapshot; None if that does not know this incarnation. `count` is the number of
    partitions of the source.
    """
    first = sources[0]
    name = request.rename.apply(first.topic)
    present = state.cluster.topic(name)
    partitions = request.partition_count_of(first.topic) or count
    batch_bytes_max = max(source.slice_bytes_max for source in sources)
    batch_bytes_max += PROVENANCE_BYTES_MAX if request.provenance else 0
    wanted = FACTOR_DEFAULT if archived is None or not archived.replication_factor else archived.replication_factor
    configs: PlannedConfigs | None
    if present is not None:
        factor = wanted = present.replication_factor
        partitions = present.partition_count
        configs = plan_existing_configs(present, batch_bytes_max=batch_bytes_max, known=state.known_configs)
    else:
        factor = min(wanted, len(state.cluster.brokers))
        configs = plan_new_configs(
            archived,
            request.configs,
            replication_factor=factor,
            batch_bytes_max=batch_bytes_max,
            known=state.known_configs,
        )
    return TargetTopic(
        name=name,
        source_topic=first.topic,
        topic_id=first.topic_id,
        exists=present is not None,
        target_id=None if present is None else present.topic_id,
        partition_count=partitions,
        source_partition_count=count,
        replication_factor=factor,
        wanted_replication_factor=wanted,
        configs=configs,
        bases=tuple(0 if present is None else _base(state, name, number) for number in range(partitions)),
    )


def group_by_topic(
    sources: Iterable[Source], ends: Iterable[PartitionId], snapshot: ClusterState | None
) -> list[tuple[list[Source], TopicState | None, int]]:
    """Return the sources of each topic, the topic in the snapshot, and how many partitions it has there or here."""
    known: dict[str, int] = {}
    for end in ends:
        known[end.topic_id] = max(known.get(end.topic_id, 0), end.partition + 1)
    # By its id: another incarnation may have had another configuration.
    archived = {} if snapshot is None else {topic.topic_id: topic for topic in snapshot.topics}
    found = []
    for (_, topic_id), group in groupby(sources, key=lambda source: (source.topic, source.topic_id)):
        mine, state = list(group), archived.get(topic_id)
        highest = max(source.partition for source in mine)
        count = max(0 if state is None else state.partition_count, known.get(topic_id, 0), highest + 1)
        found.append((mine, state, count))
    return found


def _base(state: TargetState, topic: str, partition: int) -> int:
    extent = state.extents.get(TopicPartition(topic=topic, partition=partition))
    return UNKNOWN_END if extent is None else extent.end


@dataclass(frozen=True, slots=True, kw_only=True)
class FillCost:
    """The number of offsets without a record, and the time to fill them."""

    leading: int
    """Before the first record."""
    holes: int
    """After the first record: known holes, and offsets of aborted transactions."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsPlan:
    """`mode` is exact or append. `obstacle` is set if exact was requested and is impossible."""

    mode: OffsetsMode
    why: str
    cost: FillCost
    """The cost of exact, whatever the mode is."""
    obstacle: str | None = None


def plan_offsets(
    requested: OffsetsMode,
    source: Source,
    extent: LogExtent | None,
    *,
    repartitioned: bool,
    markers_allowed: bool | None,
) -> OffsetsPlan:
    """`extent` is the log of the target partition; None if the restore creates the topic."""
    cost = estimate_fill(source, 0 if extent is None else extent.end, markers_allowed=markers_allowed)
    impossible = _impossible(source, extent, repartitioned=repartitioned)
    if requested is OffsetsMode.APPEND:
        return OffsetsPlan(mode=OffsetsMode.APPEND, why="as requested", cost=cost)
    if requested is OffsetsMode.EXACT:
        return OffsetsPlan(mode=OffsetsMode.EXACT, why="as requested", cost=cost, obstacle=impossible)
    if impossible is not None:
        return OffsetsPlan(mode=OffsetsMode.APPEND, why=impossible, cost=cost)
    if cost.seconds > EXACT_SECONDS_MAX:
        why = f"filling {cost.leading} offsets before and {cost.holes} between takes about {cost.seconds:.0f} s"
        return OffsetsPlan(mode=OffsetsMode.APPEND, why=why, cost=cost)
    why = "the target is empty" if not cost.leading + cost.holes else f"filling takes about {cost.seconds:.1f} s"
    return OffsetsPlan(mode=OffsetsMode.EXACT, why=why, cost=cost)


def estimate_fill(source: Source, log_end: int, *, markers_allowed: bool | None) -> FillCost:
    """The cost for a log that ends at `log_end`. If it is unknown whether markers are allowed, as if they were not."""
    leading = max(source.first_offset - log_end, 0)
    holes = min(source.holes + source.aborted, source.asked_end - source.first_offset)
    rate = MARKERS_PER_S if markers_allowed else EMPTY_TRANSACTIONS_PER_S
    return FillCost(leading=leading, holes=holes, seconds=leading / FILLERS_PER_S + holes / rate)


def _impossible(source: Source, extent: LogExtent | None, *, repartitioned: bool) -> str | None:
    if repartitioned:
        return "records change their partition"
    if extent is None:
        return None
    if not extent.empty:
        return f"the target holds offsets {extent.start} to {extent.end}"
    if extent.end > source.first_offset:
        return f"the target is empty, but its next offset is {extent.end}, after {source.first_offset}"
    return None
