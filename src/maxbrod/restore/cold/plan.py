"""Plans a restore directly into the log directories of brokers: what is written where. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from maxbrod.bounds import count_partitions
from maxbrod.catalog.schema import SORT_ORDER, Kind
from maxbrod.errors import UsageError
from maxbrod.kafka.state.cluster_state import ClusterState, TopicState
from maxbrod.model import GapReason, PartitionId, TopicPartition
from maxbrod.restore.plan.columns import RowColumns, read_columns
from maxbrod.restore.plan.request import OffsetsMode, RestoreRequest
from maxbrod.restore.plan.targets import LogExtent, Right, TargetState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from maxbrod.layouts.logdir.target import Assignments, TargetDirectory
    from maxbrod.restore.plan.rename import Rename
    from maxbrod.restore.plan.sources import Source

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


class LeaderEpochs(StrEnum):
    """What happens to the leader epochs in batches."""

    KEEP = "keep"
    """Nothing: logs stay the same byte for byte."""
    LOWER = "lower"
    """Epochs above the target's become the target's: four bytes of a batch, which its checksum does not cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLog:
    """Where the log of one source began at its cluster, and the highest leader epoch in it."""

    start: int
    last_epoch: int


def parse_leader_epochs(word: str) -> LeaderEpochs:
    try:
        return LeaderEpochs(word)
    except ValueError:
        raise UsageError(f"--leader-epochs {word!r} is unknown", hint="give keep or lower") from None


def check_cold(request: RestoreRequest) -> None:
    """UsageError: the request needs single records, or a running cluster."""
    usual = RestoreRequest()
    for name in (field.name for field in fields(RestoreRequest) if field.name not in _COLD):
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
            replicas=tuple(tuple(found.get(each, ())) for each in range(counts[name])),
            configs=None,
            effective=effective.get(name),
        )
        for name, found in partitions.items()
    ]
    cluster = ClusterState(
        cluster_id=next((each.cluster_id for each in directories), None),
        taken_at_ms=now_ms,
        brokers=(),
        topics=tuple(topics),
        acls=None,
        quotas=None,
        users=None,
        groups=(),
        gaps=(),
    )
    everywhere = (TopicPartition(topic=topic, partition=each) for topic, found in partitions.items() for each in found)
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
    rows = rows.filter(pc.field("kind") == Kind.DATA).sort_by(SORT_ORDER)
    columns = read_columns(rows)
    kept = np.zeros(rows.num_rows, np.bool_)
    for source in sources:
        span = columns.spans.get(source.id)
        if span is not None:
            kept[span] = (columns.end[span] > source.asked_first) & (columns.base[span] < source.asked_end)
    return rows.take(np.flatnonzero(kept))


def measure_extents(portions: Iterable[pa.Table], sources: Iterable[Source]) -> dict[PartitionId, SourceLog]:
    """Rows need the columns of `SOURCE_COLUMNS` and `COLD_COLUMNS`; a portion has all rows of its partitions."""
    left = {each.id: each for each in sources}
    # The log of a source without rows is empty.
    found = {each: SourceLog(start=source.asked_end, last_epoch=-1) for each, source in left.items()}
    for portion in portions:
        rows = portion.filter(pc.field("kind") != Kind.RUN).sort_by(SORT_ORDER)
        columns = read_columns(rows)
        epochs = pc.fill_null(rows["last_leader_epoch"], -1).to_numpy()
        for each in columns.spans.keys() & left.keys():
            found[each] = _measure_log(columns, epochs, columns.spans[each], left[each])
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
