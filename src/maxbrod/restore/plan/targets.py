"""The topics that a restore writes to: names, partitions, replicas and configuration, and what has to give for it."""

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
"""As many replicas as the target's brokers give a topic of which nobody says it."""

UNKNOWN_END: Final = -1


class Right(StrEnum):
    """What a restore may need to be allowed at the target."""

    CREATE = "Create"
    WRITE = "Write"
    READ = "Read"
    """To compare what stands there after a crash, and to commit the offsets of groups."""
    ALTER_CONFIGS = "AlterConfigs"
    DELETE = "Delete"
    """Of records below an offset."""
    CLUSTER_ACTION = "ClusterAction"
    """To write markers in bulk."""
    READ_GROUPS = "Read the groups"
    """To commit their offsets."""
    ALTER_CLUSTER = "Alter the cluster"
    """To create ACLs."""
    ALTER_CLUSTER_CONFIGS = "AlterConfigs on the cluster"
    """To set quotas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """Where a partition's log begins and ends now."""

    start: int
    end: int

    @property
    def empty(self) -> bool:
        return self.start == self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """The cluster to restore into, as it is now."""

    cluster: ClusterState
    """With the topics and groups that are restored to, where they exist."""
    names: frozenset[str] = frozenset()
    """Of all topics that exist."""
    extents: Mapping[TopicPartition, LogExtent] = field(default_factory=dict)
    """Of every partition of the topics that exist and are restored to."""
    known_configs: frozenset[str] | None = None
    """The names of topic configs that its brokers know; None: nobody asked."""
    defaults: Mapping[str, str] | None = None
    """How long its brokers keep records of a topic that does not say it; None: nobody could ask."""
    rights: Mapping[Right, bool] = field(default_factory=dict)
    """What this user may do; a right that is not in it is unknown."""
    denied: Mapping[Right, tuple[str, ...]] = field(default_factory=dict)
    """Of a right on topics or groups that is denied: on which."""
    authorized: bool = True
    """False where the cluster has no authorizer, and so takes no ACLs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTopic:
    """One topic to restore to, and what it is restored from."""

    name: str
    source_topic: str
    topic_id: str
    """Of the source."""
    exists: bool
    target_id: str | None
    """Of the topic that exists. Whoever goes on later must find the same."""
    partition_count: int
    source_partition_count: int
    replication_factor: int
    wanted_replication_factor: int
    configs: TopicConfigs | None
    """None where an existing topic's are not to be read: then nothing is held."""
    bases: tuple[int, ...]
    """The log end of each partition at planning: what is restored stands from there on. -1 where nobody knows it."""

    @property
    def repartitioned(self) -> bool:
        return self.partition_count != self.source_partition_count


def plan_target(
    request: RestoreRequest, sources: Sequence[Source], archived: TopicState | None, count: int, state: TargetState
) -> TargetTopic:
    """The target of one source topic, whose wanted-for partitions are `sources`.

    `archived` is the topic as the snapshot has it, None where that does not know this incarnation. `count` is how many
    partitions the source has.
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
    """Of a source topic: what the snapshot says, unless more partitions are `known` to the archive."""
    highest = max(source.partition for source in sources)
    return max(0 if archived is None else archived.partition_count, known, highest + 1)


def _base(state: TargetState, topic: str, partition: int) -> int:
    extent = state.extents.get(TopicPartition(topic=topic, partition=partition))
    return UNKNOWN_END if extent is None else extent.end
