"""From the plan of a restore into log directories to the work of its tasks: which slices go into which folders."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from maxbrod.archive.snapshots import find_moment
from maxbrod.errors import RefusedError
from maxbrod.layouts.logdir.target import look_at, read_assignments
from maxbrod.layouts.logdir.writer import SEGMENT_BYTES, WrittenLog
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.cold.plan import LeaderEpochs, cold_configs, measure_extents, rows_to_write
from maxbrod.restore.cold.preflight import ColdTarget
from maxbrod.restore.cold.task import ColdItem
from maxbrod.restore.loss import sound_slices
from maxbrod.restore.plan.plan import RestorePlan, sources_of
from maxbrod.restore.plan.sources import revisions_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from maxbrod.archive.archive import Archive
    from maxbrod.layouts.kafka.format import Slice
    from maxbrod.restore.plan.request import RestoreRequest

Done: TypeAlias = "Mapping[tuple[Path, TopicPartition], WrittenLog]"


def cold_items(
    archive: Archive,
    plan: RestorePlan,
    request: RestoreRequest,
    paths: Sequence[Path],
    *,
    done: Done,
    leader_epochs: LeaderEpochs,
) -> list[tuple[int, ColdItem]]:
    """The partitions that some directory lacks, with their sizes. RefusedError: a folder is no longer empty."""
    target = ColdTarget(directories=list(map(look_at, paths)), done=done.keys())
    moment = find_moment(archive.storage, archive.catalog.runs(), plan.archive.run_id)
    configs = cold_configs(request.rename, moment.cluster, read_assignments(paths))
    sources = sources_of(plan)
    rows = archive.catalog.rows(topic_ids={each.topic_id for each in sources}, revisions=revisions_of(sources))
    extents, slices = measure_extents([rows], sources), cold_slices(rows, plan)
    items = []
    for topic in plan.topics:
        for source in (partition.source for partition in topic.partitions):
            where = TopicPartition(topic=topic.target.name, partition=source.partition)
            directories = _lacking(target, where)
            if directories:
                item = ColdItem(
                    where=where,
                    directories=tuple(map(str, directories)),
                    start=extents[source.id].start,
                    end=source.asked_end,
                    epoch_max=max(target.leader_epoch(where), 0) if leader_epochs is LeaderEpochs.LOWER else None,
                    segment_bytes=_segment_bytes(configs.get(where.topic, {})),
                    slices=tuple(slices.get(source.id, ())),
                )
                items.append((source.raw_bytes, item))
    return items


def cold_slices(rows: pa.Table, plan: RestorePlan) -> dict[PartitionId, list[Slice]]:
    """The slices of all sources in the order of offsets, without what is lost."""
    sources = sources_of(plan)
    return sound_slices(rows_to_write(rows, sources), sources)


def _lacking(target: ColdTarget, where: TopicPartition) -> list[Path]:
    """The directories that the partition is still to be written to."""
    found = []
    for directory, folder in target.folders(where):
        if (directory.path, where) in target.done:
            continue
        if folder.held is not None:
            raise RefusedError(
                f"the folder is not empty any more: {folder.held}",
                operation="restore",
                object_name=str(directory.path / str(where)),
                hint="nothing was changed; find out what has written there",
            )
        found.append(directory.path)
    return found


def _segment_bytes(configs: Mapping[str, str]) -> int:
    with suppress(KeyError, ValueError):
        return int(configs["segment.bytes"])
    return SEGMENT_BYTES
