"""Plans an append of records that come from no cluster: their offsets, rows and topics. Pure.

Topic ids are derived from names, as in archives that know names only. A name that a topic of a cluster has in the
archive is refused: the next backup of that cluster would take the records for a diverging history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from maxbrod.archive.surveyed import topic_id_for
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Run, Segment
from maxbrod.errors import RefusedError
from maxbrod.kafka.state.cluster_state import ClusterState, MissingState, TopicState
from maxbrod.layouts.kafka.format import Slice
from maxbrod.model import GapReason, PartitionId, TopicPartition

IN_ORDER: Final = (
    'write with maxbrod.write(df, url), or df.repartition("topic", "partition").sortWithinPartitions("topic", '
    '"partition", "offset") first'
)
"""The way to sort a DataFrame by offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRange:
    """The part of a partition that one task has written: slices in the order of offsets."""

    where: TopicPartition
    slices: tuple[Slice, ...]

    @property
    def base_offset(self) -> int:
        return self.slices[0].base_offset

    @property
    def offsets(self) -> int:
        return self.slices[-1].end_offset - self.base_offset


def id_of(where: TopicPartition) -> PartitionId:
    return PartitionId(topic_id=topic_id_for(where.topic), partition=where.partition)


def number(ranges: Iterable[WrittenRange], ends: Mapping[PartitionId, int]) -> list[tuple[WrittenRange, int]]:
    """Each range with its base offset, for records without offsets: one after another, in the given order.

    `ends` has the end offset of each partition in the archive.
    """
    reached = defaultdict(int, ends)
    placed = []
    for written in ranges:
        place = id_of(written.where)
        placed.append((written, reached[place]))
        reached[place] += written.offsets
    return placed


def rows_of(ranges: Iterable[WrittenRange], ends: Mapping[PartitionId, int], run: Run) -> list[Segment | Gap]:
    """Rows that continue the tiling from `ends`. Offsets between slices become gaps with the reason `unrecorded`.

    RefusedError: slices overlap each other or the archive.
    """
    slices: dict[TopicPartition, list[Slice]] = defaultdict(list)
    for written in ranges:
        slices[written.where] += written.slices
    rows: list[Segment | Gap] = []
    for where, found in sorted(slices.items()):
        rows += _partition_rows(where, sorted(found, key=lambda part: part.base_offset), ends.get(id_of(where)), run)
    return rows


def _partition_rows(where: TopicPartition, slices: Sequence[Slice], end: int | None, run: Run) -> list[Segment | Gap]:
    shared: dict[str, Any] = {
        "topic": where.topic,
        "topic_id": topic_id_for(where.topic),
        "partition": where.partition,
        "run_id": run.run_id,
        "written_at": run.written_at,
    }
    rows: list[Segment | Gap] = []
    reached = end
    for part in slices:
        if reached is not None and part.base_offset < reached:
            raise _overlap(where, part, reached, archived=reached == end)
        if reached is not None and part.base_offset > reached:
            unrecorded = GapReason.UNRECORDED
            rows.append(Gap(**shared, base_offset=reached, end_offset=part.base_offset, reason=unrecorded))
        reason = GapReason.UNRECORDED if part.records < part.end_offset - part.base_offset else None
        rows.append(Segment(**shared, **{name: getattr(part, name) for name in SLICE_FIELDS}, reason=reason))
        reached = part.end_offset
    return rows


def _overlap(where: TopicPartition, part: Slice, reached: int, *, archived: bool) -> RefusedError:
    if archived:
        return RefusedError(
            f"the archive already has this partition up to offset {reached}",
            operation="write",
            object_name=str(where),
            offset=part.base_offset,
            hint="leave out what it has (where offset >= ...), name another archive, or drop the column 'offset' to "
            "number the records anew; nothing was changed",
        )
    return RefusedError(
        f"the records are not sorted by offset: another task, or the same one earlier, has written up to {reached}",
        operation="write",
        object_name=str(where),
        offset=part.base_offset,
        hint=f"{IN_ORDER}; nothing was changed",
    )


def refuse_other_topics(names: Iterable[str], known: Mapping[str, str]) -> None:
    """RefusedError: the archive has a topic of this name from a cluster. `known` has the name of each topic id."""
    others = {name: topic_id for topic_id, name in known.items() if topic_id != topic_id_for(name)}
    for name in sorted(names):
        if name in others:
            raise RefusedError(
                f"the archive has a topic of this name from a cluster ({others[name]})",
                operation="write",
                object_name=name,
                hint="write into another archive, or under another name: records of a backup are never mixed with "
                "others; nothing was changed",
            )


def cluster_with(state: ClusterState | None, counts: Mapping[str, int], taken_at_ms: int) -> ClusterState:
    """The state of the cluster, with these topics and at least these numbers of partitions."""
    if state is None:
        unknown = MissingState(
            what="brokers, configurations, ACLs, quotas, users and groups",
            why="the records were written from a DataFrame",
            hint="back a cluster up to have them",
        )
        state = ClusterState(
            cluster_id=None,
            taken_at_ms=taken_at_ms,
            brokers=(),
            topics=(),
            acls=None,
            quotas=None,
            users=None,
            groups=(),
            gaps=(unknown,),
        )
    topics = {topic.name: topic for topic in state.topics}
    for name, count in counts.items():
        topics[name] = _grown(topics.get(name), name, count)
    return replace(state, topics=tuple(topics.values()))


def _grown(known: TopicState | None, name: str, count: int) -> TopicState:
    if known is None:
        # No replicas and no configuration: a restore uses the defaults of its brokers.
        replicas = ((),) * count
        return TopicState(
            name=name, topic_id=topic_id_for(name), internal=False, replicas=replicas, configs=None, effective=None
        )
    return replace(known, replicas=known.replicas + ((),) * (count - len(known.replicas)))
