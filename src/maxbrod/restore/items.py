"""From the plan of a restore to the work of its tasks: which slices go into which target partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.batch.provenance import Provenance
from maxbrod.groups.moves import archived_groups
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.loss import sound_slices
from maxbrod.restore.plan.plan import PartitionRestore, RestorePlan, TopicPlan, sources_of
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.sources import revisions_of, rows_to_read
from maxbrod.restore.repartition.items import SharedItem, shared_items
from maxbrod.restore.staging import as_staged, open_staged
from maxbrod.restore.task import RestoreItem
from maxbrod.work.windows import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from maxbrod.archive.archive import Archive
    from maxbrod.config import StorageConfig
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.restore.target import TargetTopics

    Slices = dict[PartitionId, list[Slice]]


def restore_slices(archive: Archive, storage: StorageConfig, plan: RestorePlan, request: RestoreRequest) -> Slices:
    """The slices of all sources by partition, in the order of offsets: of the archive, or of what is staged.

    The catalog is read once, whatever the number of partitions.
    """
    sources = sources_of(plan)
    if plan.transform is not None:
        archive, request = open_staged(plan.transform.staging, storage), as_staged(request, plan.transform)
    rows = archive.catalog.rows(topic_ids={source.topic_id for source in sources}, revisions=revisions_of(sources))
    return sound_slices(rows_to_read(rows, sources, request), sources)


def restore_tasks(
    archive: Archive, plan: RestorePlan, topics: TargetTopics, slices: Slices, parallelism: int
) -> list[list[RestoreItem | SharedItem]]:
    """Partitions spread over as many tasks as can run at once, the largest first."""
    items: list[tuple[int, RestoreItem | SharedItem]] = [
        (partition.source.bytes, _item(plan, topic, partition, topics, slices.get(partition.source.id, [])))
        for topic in plan.topics
        for partition in topic.partitions
        if not topic.target.repartitioned
    ]
    items += _shared_items(archive, plan, topics, slices, parallelism)
    return spread(items, parallelism)


def _item(
    plan: RestorePlan, topic: TopicPlan, planned: PartitionRestore, topics: TargetTopics, slices: Sequence[Slice]
) -> RestoreItem:
    source, target = planned.source, topic.target
    exact = planned.offsets.mode is OffsetsMode.EXACT
    provenance = Provenance(
        topic=target.source_topic,
        partition=source.partition,
        cluster_id=plan.source_cluster_id,
        restore_id=plan.restore_id,
    )
    return RestoreItem(
        where=TopicPartition(topic=target.name, partition=source.partition),
        topic_id=topics.ids[target.name],
        exact=exact,
        base=source.first_offset if exact else target.bases[source.partition],
        first_offset=source.first_offset,
        end_offset=source.asked_end,
        batch_bytes_max=topics.batch_bytes_max(target),
        slices=tuple(slices),
        provenance=provenance if plan.provenance else None,
        lossy=bool(source.lost),
    )


def _shared_items(
    archive: Archive,
    plan: RestorePlan,
    topics: TargetTopics,
    slices: Mapping[PartitionId, Sequence[Slice]],
    parallelism: int,
) -> Iterator[tuple[int, SharedItem]]:
    """Items of repartitioned topics. A topic gets the same part of all tasks as it has of all bytes."""
    shared = [each for each in plan.topics if each.target.repartitioned]
    groups = archived_groups(archive, plan) if shared else ()
    for topic in shared:
        size = sum(partition.source.bytes for partition in topic.partitions)
        items = shared_items(
            topic,
            slices,
            groups,
            topic_id=topics.ids[topic.target.name],
            batch_bytes_max=topics.batch_bytes_max(topic.target),
            tasks=-(-parallelism * size // max(plan.bytes, 1)),
        )
        # Each item reads all of its topic.
        yield from ((size, item) for item in items)
