"""Plans a restore directly into the log directories of brokers, and finds every obstacle before it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from maxbrod.archive.renames import Rename
from maxbrod.bounds import count_partitions
from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.errors import UsageError
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
from maxbrod.model import GapReason, PartitionId, TopicPartition
from maxbrod.restore.plan.obstacles import Obstacle, ObstacleKind
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.sources import RowColumns, Source, read_columns, rows_to_read
from maxbrod.restore.plan.targets import LogExtent, Right, TargetState

if TYPE_CHECKING:
    from maxbrod.layouts.logdir.target import Assignments, TargetDirectory, TargetFolder
    from maxbrod.restore.plan.plan import RestorePlan, TopicPlan


COLD_COLUMNS: Final = ("last_leader_epoch",)
"""Columns that are read besides those of every restore."""
_KAFKA_DEFAULTS: Final = {"retention.ms": "604800000", "segment.bytes": "1073741824"}
_REASONS: Final = tuple(GapReason)
_COMPACTED: Final = _REASONS.index(GapReason.COMPACTED)
_COLD: Final = frozenset(
    {
        *("topics", "exclude", "internal", "partitions", "as_of", "topic_ids", "rename", "strict", "accept_gaps"),
        "again",
        *("offsets", "groups", "force_groups"),
    }
)
"""Options that are allowed, or refused with a message of their own. Others need records or a running cluster."""
_FLAGS: Final = {
    "since_ms": "since",
    "until_ms": "until",
    "ranges": "range",
    "partition_counts": "partition-count",
    "configs": "config-set",
    "rate_bytes_per_s": "rate",
}

_INDEX_SHARE: Final = 256
"""For 4 KiB of log, one index has an entry of 8 bytes and the other one of 12, at most."""
_NAMED_MAX: Final = 5
_NOT_HERE: Final = frozenset({ObstacleKind.CONFIG, ObstacleKind.PARTITION_COUNT, ObstacleKind.OFFSETS})
"""Obstacles of a restore through brokers. Nothing is configured here, and the others have messages of their own."""


class LeaderEpochs(StrEnum):
    """The treatment of the leader epochs in batches."""

    KEEP = "keep"
    """Nothing: logs stay the same byte for byte."""
    LOWER = "lower"
    """Epochs above the target's become the target's: four bytes of a batch, which its checksum does not cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLog:
    """The start of the log of one source at its cluster, and the highest leader epoch in it."""

    start: int
    last_epoch: int


def check_cold(request: RestoreRequest) -> None:
    """UsageError: the request needs single records, or a running cluster."""
    usual = RestoreRequest()
    for name in {option.name for option in fields(RestoreRequest)} - _COLD:
        if getattr(request, name) != getattr(usual, name):
            flag = _FLAGS.get(name, name.replace("_", "-"))
            raise UsageError(
                f"--{flag} cannot be used with --to-logdir: logs are written unchanged",
                hint="restore into a running cluster, with --bootstrap"
                if request.transform is None
                else "convert the archive with --where and --select, and restore the result",
            )
    if request.offsets is OffsetsMode.APPEND:
        raise UsageError("--to-logdir keeps all offsets", hint="leave out --offsets append")
    if request.groups:
        raise UsageError(
            "--groups cannot be used with --to-logdir: groups need running brokers",
            hint="restore, start the brokers, and then run 'maxbrod groups apply'",
        )


def cold_state(
    directories: Sequence[TargetDirectory],
    rename: Rename,
    snapshot: ClusterState | None,
    assignments: Assignments | None,
    *,
    now_ms: int,
) -> TargetState:
    """The directories in the form of a cluster. Logs count as empty here: the preflight checks that they are."""
    effective = cold_configs(rename, snapshot, assignments)
    partitions: dict[str, dict[int, list[int]]] = {}
    ids: dict[str, str] = {}
    for directory in directories:
        for where, folder in directory.folders.items():
            partitions.setdefault(where.topic, {}).setdefault(where.partition, []).append(directory.node_id)
            if folder.topic_id is not None:
                ids.setdefault(where.topic, folder.topic_id)
    counts = count_partitions((name, number) for name, found in partitions.items() for number in found)
    topics = [
        TopicState(
            name=name,
            topic_id=ids.get(name, ""),
            internal=False,
            replicas=tuple(tuple(found.get(number, ())) for number in range(counts[name])),
            configs=None,
            effective=effective.get(name),
        )
        for name, found in partitions.items()
    ]
    cluster = ClusterState(
        cluster_id=next((directory.cluster_id for directory in directories), None),
        taken_at_ms=now_ms,
        brokers=(),
        topics=tuple(topics),
        acls=None,
        quotas=None,
        users=None,
        groups=(),
        gaps=(),
    )
    everywhere = (
        TopicPartition(topic=topic, partition=number) for topic, found in partitions.items() for number in found
    )
    return TargetState(
        cluster=cluster,
        extents={where: LogExtent(start=0, end=0) for where in everywhere},
        rights=dict.fromkeys(Right, True),
    )


def cold_configs(
    rename: Rename, snapshot: ClusterState | None, assignments: Assignments | None
) -> dict[str, Mapping[str, str]]:
    """The settings of target topics by name: those of the cluster's metadata, or else the archived ones."""
    if assignments is not None:
        return {name: {**_KAFKA_DEFAULTS, **configs} for name, configs in assignments.configs.items()}
    # Reversed: of topics with the same name, the one that the cluster had last wins.
    topics = () if snapshot is None else reversed(snapshot.topics)
    return {rename.apply(topic.name): topic.effective for topic in topics if topic.effective is not None}


def rows_to_write(rows: pa.Table, sources: Iterable[Source]) -> pa.Table:
    """The data rows of the sources in the order of offsets, with batches that hold no records."""
    return rows_to_read(rows, sources, RestoreRequest(), with_empty=True)


def measure_extents(portions: Iterable[pa.Table], sources: Iterable[Source]) -> dict[PartitionId, SourceLog]:
    """Rows need the columns of `SOURCE_COLUMNS` and `COLD_COLUMNS`; a portion has all rows of its partitions."""
    left = {source.id: source for source in sources}
    # The log of a source without rows is empty.
    found = {partition: SourceLog(start=source.asked_end, last_epoch=-1) for partition, source in left.items()}
    for portion in portions:
        rows = portion.filter(pc.field("kind") != Kind.RUN).sort_by(SORT_ORDER)
        columns = read_columns(rows)
        epochs = pc.fill_null(rows["last_leader_epoch"], -1).to_numpy()
        for partition in columns.spans.keys() & left.keys():
            found[partition] = _measure_log(columns, epochs, columns.spans[partition], left[partition])
    return found


def _measure_log(columns: RowColumns, epochs: NDArray[np.int32], span: slice, source: Source) -> SourceLog:
    below = columns.base[span] < source.asked_end
    data = columns.data[span] & below
    leading = int(np.argmax(np.append(data, True)))
    gone = columns.reason[span][:leading] != _COMPACTED
    # Offsets that retention removed are before the log; those that compaction removed are within it.
    passed = int(np.argmin(np.append(gone, False)))
    start = source.asked_first if not passed else int(columns.end[span][passed - 1])
    return SourceLog(
        start=min(start, source.asked_end) if data.any() else source.asked_end,
        last_epoch=int(epochs[span][data].max(initial=-1)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdTarget:
    """The directories, and the partitions that an interrupted restore has put in place there."""

    directories: Sequence[TargetDirectory]
    assignments: Assignments | None = None
    """The topics in the cluster's metadata; None: unknown."""
    done: Collection[tuple[Path, TopicPartition]] = field(default=frozenset())

    def folders(self, where: TopicPartition) -> list[tuple[TargetDirectory, TargetFolder]]:
        return [(directory, directory.folders[where]) for directory in self.directories if where in directory.folders]

    def leader_epoch(self, where: TopicPartition) -> int:
        """The highest epoch that any of its brokers has stored. After the next start it is this one or higher."""
        return max((folder.leader_epoch for _, folder in self.folders(where)), default=-1)


def find_cold_obstacles(
    plan: RestorePlan, target: ColdTarget, extents: Mapping[PartitionId, SourceLog], epochs: LeaderEpochs
) -> Iterator[Obstacle]:
    """In no particular order."""
    yield from (obstacle for obstacle in plan.obstacles if obstacle.kind not in _NOT_HERE)
    yield from _clusters(target)
    for topic in plan.topics:
        yield from _partitions(topic, target)
        yield from _replicas(topic, target)
        yield from _identity(topic, target)
        for where, partition in topic.placed():
            yield from _contents(where, target)
            if epochs is LeaderEpochs.KEEP:
                yield from _epochs(where, target, extents[partition.source.id])
    yield from _space(plan, target)


def _clusters(target: ColdTarget) -> Iterator[Obstacle]:
    ids = sorted({directory.cluster_id or "unknown" for directory in target.directories})
    if len(ids) > 1:
        what = f"these directories belong to several clusters: {', '.join(ids)}"
        hint = "restore into one cluster at a time"
        yield Obstacle(ObstacleKind.BROKERS, None, what, hint)


def _partitions(topic: TopicPlan, target: ColdTarget) -> Iterator[Obstacle]:
    name, archived = topic.target.name, topic.target.source_partition_count
    there = topic.target.partition_count if topic.target.exists else 0
    if target.assignments is not None:
        there = max(there, target.assignments.partition_counts.get(name, 0))
    if there > archived:
        yield Obstacle(
            ObstacleKind.PARTITION_COUNT,
            name,
            f"it has {there} partitions, the archived topic {archived}",
            "restore under another name, or delete the topic and create it with as many as it had",
        )
    missing = [where for where, _ in topic.placed() if not target.folders(where)]
    if missing:
        yield Obstacle(
            ObstacleKind.PARTITION_COUNT,
            name,
            f"no directory has {_some(missing)}",
            "start the brokers, create the topic with that many partitions, stop them, and name the log "
            "directories of all of them",
        )


def _replicas(topic: TopicPlan, target: ColdTarget) -> Iterator[Obstacle]:
    """A replica that stays empty may become the leader, and then followers truncate what was restored."""
    name, held = topic.target.name, {where: target.folders(where) for where, _ in topic.placed()}
    what: str | None = None
    if target.assignments is None:
        if len({len(folders) for folders in held.values()} - {0}) > 1:
            what = "some of its partitions are in more of these directories than others"
    else:
        nodes = {where: {directory.node_id for directory, _ in folders} for where, folders in held.items() if folders}
        lacking = {where: set(target.assignments.replicas.get(where, ())) - found for where, found in nodes.items()}
        absent = sorted({node for nodes in lacking.values() for node in nodes})
        if absent:
            some = _some([where for where, nodes in lacking.items() if nodes])
            what = f"no directory of broker {', '.join(map(str, absent))} is named, which has replicas of {some}"
    if what is not None:
        hint = "name the log directories of every broker: one that stays empty may lead, and truncate the others"
        yield Obstacle(ObstacleKind.BROKERS, name, what, hint)
    elif target.assignments is None:
        what = "it is unknown which brokers have replicas of it"
        hint = "name the log directories of every broker with a replica: an empty one may truncate the others"
        yield Obstacle(ObstacleKind.BROKERS, name, what, hint, fatal=False)


def _some(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(str, partitions[:_NAMED_MAX])) + (", …" if len(partitions) > _NAMED_MAX else "")


def _identity(topic: TopicPlan, target: ColdTarget) -> Iterator[Obstacle]:
    name = topic.target.name
    ids = {folder.topic_id for where, _ in topic.placed() for _, folder in target.folders(where)}
    known = None if target.assignments is None else target.assignments.ids.get(name)
    if known is not None:
        ids.add(known)
    if len(ids) > 1:
        named = ", ".join(sorted(cluster_id or "none" for cluster_id in ids))
        what = f"its folders and the cluster's metadata have different topic ids: {named}"
        hint = "start the brokers once: they set aside folders of a deleted topic"
        yield Obstacle(ObstacleKind.NAME, name, what, hint)


def _contents(where: TopicPartition, target: ColdTarget) -> Iterator[Obstacle]:
    for directory, folder in target.folders(where):
        if folder.held is not None and (directory.path, where) not in target.done:
            yield Obstacle(
                ObstacleKind.TARGET_NOT_EMPTY,
                str(where),
                f"it is not empty: {directory.path / str(where)} has {folder.held}",
                "restore under another name, or delete the topic and create it again",
            )


def _epochs(where: TopicPartition, target: ColdTarget, extent: SourceLog) -> Iterator[Obstacle]:
    known = target.leader_epoch(where)
    if extent.last_epoch > max(known, 0):
        yield Obstacle(
            ObstacleKind.LEADER_EPOCHS,
            str(where),
            f"its batches have leader epochs up to {extent.last_epoch}, the target's is {max(known, 0)}: "
            "followers would never copy them, and consumers would wait for such a leader",
            "say --leader-epochs lower, which lowers epochs to the target's and changes nothing else",
        )


def _space(plan: RestorePlan, target: ColdTarget) -> Iterator[Obstacle]:
    needed: dict[int, int] = {}
    for topic in plan.topics:
        for where, partition in topic.placed():
            for directory, _ in target.folders(where):
                if (directory.path, where) not in target.done:
                    size = partition.source.raw_bytes
                    needed[directory.device] = needed.get(directory.device, 0) + size + size // _INDEX_SHARE
    for directory in {directory.device: directory for directory in target.directories}.values():
        size, free = needed.get(directory.device, 0), directory.free_bytes
        if size > free:
            what = f"{size} bytes are needed, and {free} are free"
            hint = "make room, or restore fewer topics at a time"
            yield Obstacle(ObstacleKind.SPACE, str(directory.path), what, hint)
