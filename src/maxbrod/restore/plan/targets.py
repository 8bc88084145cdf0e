"""The topics that a restore writes to: names, partitions, replicas and configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from maxbrod.batch.provenance import PROVENANCE_BYTES_MAX
from maxbrod.model import TopicPartition
from maxbrod.restore.plan.configs import TopicConfigs, plan_existing_configs, plan_new_configs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
    from maxbrod.restore.plan.request import RestoreRequest
    from maxbrod.restore.plan.sources import Source

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
    """What this user may do. A right that is not in it is unknown."""
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
    configs: TopicConfigs | None
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
    configs: TopicConfigs | None
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
        bases=tuple(0 if present is None else _base(state, name, each) for each in range(partitions)),
    )


def count_partitions(sources: Sequence[Source], archived: TopicState | None, known: int) -> int:
    """The number of partitions of a source topic: that in the snapshot, or `known` from the archive if it is higher."""
    highest = max(source.partition for source in sources)
    return max(0 if archived is None else archived.partition_count, known, highest + 1)


def _base(state: TargetState, topic: str, partition: int) -> int:
    extent = state.extents.get(TopicPartition(topic=topic, partition=partition))
    return UNKNOWN_END if extent is None else extent.end
