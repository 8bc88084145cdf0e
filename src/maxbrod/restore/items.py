"""The tasks of a restore: their settings, items and outcomes, and the job that runs them. The work loads more.

A target partition belongs to one item. A topic that gets another number of partitions is shared by several items.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from maxbrod.config import KafkaConfig, StorageConfig
from maxbrod.errors import MaxbrodError
from maxbrod.kafka.produce.producer_ids import ProducerIdentity
from maxbrod.kafka.state.cluster_state import Group
from maxbrod.kafka.wire.client import PATIENCE_S
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.plan.request import BatchesMode
from maxbrod.restore.repartition.extents import SHARES_MAX, SourceExtent

if TYPE_CHECKING:
    from maxbrod.batch.provenance import Provenance
    from maxbrod.batch.schema_ids import SchemaIdMap
    from maxbrod.restore.plan.plan import TopicPlan
    from maxbrod.work.executor import Executor
    from maxbrod.work.progress import Watcher

TASKS_MAX: Final = 8
"""Tasks for one topic. Each reads the whole topic and writes its part, so more tasks would only read more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSettings:
    """The values that all tasks of a restore share. Holds secrets."""

    restore_id: str
    archive_url: str
    kafka: KafkaConfig
    storage: StorageConfig = field(repr=False)
    producer_id: int
    """The producer id of this restore. Every attempt uses it, and nobody else."""
    since_ms: int | None = None
    until_ms: int | None = None
    markers: bool = True
    """True if this user may write markers into holes; if not, empty transactions fill them."""
    marker_producer: ProducerIdentity | None = None
    """The producer of markers; None: a new one. Brokers refuse its markers once it has written with a higher epoch."""
    rate_bytes_per_s: float | None = None
    """The limit for one task."""
    batches: BatchesMode = BatchesMode.AUTO
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreItem:
    """One target partition, and the slices to restore it from, in the order of offsets."""

    where: TopicPartition
    topic_id: str
    """The id of the target topic."""
    exact: bool
    base: int
    """The target offset of the first record."""
    first_offset: int
    """The source offset of the first record."""
    end_offset: int
    """Source offsets from here on are not restored."""
    batch_bytes_max: int
    slices: tuple[Slice, ...]
    provenance: Provenance | None = None
    """The source that every record names in its headers."""
    schema_ids: SchemaIdMap | None = None
    """Exchange the schema ids of all records by this map."""
    lossy: bool = False
    """True if slices are left out because they cannot be read. An earlier attempt may have read and restored them."""
    adopted: bool = False
    """True if the log is known to have the right records up to its end, whoever has written them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The outcome of one item: the log end, the target offsets of its records, and why it stopped if it did."""

    where: TopicPartition
    end: int
    records: int
    map: dict[str, Any]
    failure: MaxbrodError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSource:
    """Offsets [first_offset, end_offset) of one source partition, and its slices in order."""

    partition: int
    first_offset: int
    end_offset: int
    slices: tuple[Slice, ...]
    marks: tuple[int, ...] = ()
    """Offsets at which groups stood, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedItem:
    """Some partitions of one target topic, and all sources of its records."""

    topic: str
    topic_id: str
    """The id of the target topic."""
    partition_count: int
    bases: dict[int, int]
    """The target partitions of this task, each with the target offset of its first record."""
    batch_bytes_max: int
    sources: tuple[SharedSource, ...]
    extents: tuple[SourceExtent, ...]
    schema_ids: SchemaIdMap | None = None


def transactional_id_of(restore_id: str, where: str) -> str:
    """The id by which holes of a partition are filled where this user may not write markers."""
    return f"maxbrod-{restore_id}-{where}"


def shared_items(
    topic: TopicPlan,
    slices: Mapping[PartitionId, Sequence[Slice]],
    groups: Iterable[Group],
    *,
    topic_id: str,
    batch_bytes_max: int,
    tasks: int,
) -> list[SharedItem]:
    """One item for each of up to `tasks` tasks. `groups` are all archived groups, whether they are moved or not."""
    target, marks = topic.target, group_marks(topic, groups)
    sources = tuple(
        SharedSource(
            partition=partition.source.partition,
            first_offset=partition.source.first_offset,
            end_offset=partition.source.asked_end,
            slices=tuple(slices.get(partition.source.id, ())),
            marks=marks.get(partition.source.partition, ()),
        )
        for partition in topic.partitions
    )
    tasks = max(1, min(tasks, TASKS_MAX, target.partition_count))
    return [
        SharedItem(
            topic=target.name,
            topic_id=topic_id,
            partition_count=target.partition_count,
            bases={partition: target.bases[partition] for partition in range(number, target.partition_count, tasks)},
            batch_bytes_max=batch_bytes_max,
            sources=sources,
            extents=topic.blocks,
        )
        for number in range(tasks)
    ]


def group_marks(topic: TopicPlan, groups: Iterable[Group]) -> dict[int, tuple[int, ...]]:
    """The offsets at which groups stood in each source partition. Shares end there, so that positions are exact.

    If there are too many, some are left out: a group that stood there may see more records twice, and skips none.
    """
    found: dict[int, set[int]] = {}
    for group in groups:
        for offset in group.offsets or ():
            if offset.topic == topic.target.source_topic and offset.topic_id in {None, topic.target.topic_id}:
                found.setdefault(offset.partition, set()).add(offset.offset)
    total = sum(map(len, found.values())) * topic.target.partition_count
    step = -(-total // SHARES_MAX) or 1
    return {partition: tuple(sorted(offsets)[::step]) for partition, offsets in found.items()}


def run_restore_tasks(
    executor: Executor,
    settings: RestoreSettings,
    tasks: Sequence[Sequence[RestoreItem | SharedItem]],
    *,
    meter: Watcher | None = None,
    stop: threading.Event | None = None,
) -> list[Restored]:
    """Return the outcome of every item. UnavailableError: `stop` was set before the tasks had finished."""
    name = f"restore-{settings.restore_id}"
    # Each partition has one writer. Two attempts side by side would not duplicate records, which have sequence
    # numbers, but they would duplicate the markers in holes, which have none.
    return executor.run(restore_items, settings, tasks, name=name, meter=meter, stop=stop, alone=True)


def restore_items(settings: RestoreSettings, items: Sequence[RestoreItem | SharedItem]) -> list[Restored]:
    """Restore the items of one task."""
    from maxbrod.restore.task import run_restore_task  # noqa: PLC0415 - it needs the types above

    own = tuple(item for item in items if isinstance(item, RestoreItem))
    restored = run_restore_task(settings, own) if own else []
    for item in items:
        if isinstance(item, SharedItem):
            # Loads numba, which a restore that keeps every record's partition does not need.
            from maxbrod.restore.repartition.task import run_shared_task  # noqa: PLC0415

            restored += run_shared_task(settings, item)
    return restored
