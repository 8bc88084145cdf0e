"""Records that come from no cluster, appended to an archive: at which offsets, as which rows, of which topics. Pure.

Topics have ids made of their names, as those of archives that know names only; a name that a cluster's topic has in
the archive is refused, because the next backup of that cluster would take the records for a history that diverged.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maxbrod.archive.surveyed import topic_id_for
from maxbrod.catalog.rows import SLICE_FIELDS, Gap, Segment
from maxbrod.errors import RefusedError
from maxbrod.kafka.state.cluster_state import ClusterState, MissingState, TopicState
from maxbrod.model import GapReason, PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.layouts.kafka.slices import Slice
    from maxbrod.model import TopicPartition

IN_ORDER: Final = (
    'write with maxbrod.write(df, url), or df.repartition("topic", "partition").sortWithinPartitions("topic", '
    '"partition", "offset") first'
)
"""How a DataFrame is brought into the order of offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRange:
    """What one task has written of a partition: slices in the order of offsets."""

    where: TopicPartition
    slices: tuple[Slice, ...]

    @property
    def base_offset(self) -> int:
        return self.slices[0].base_offset

    @property
    def offsets(self) -> int:
        return self.slices[-1].end_offset - self.base_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The run that appends."""

    run_id: str
    written_at: int


def id_of(where: TopicPartition) -> PartitionId:
    return PartitionId(topic_id=topic_id_for(where.topic), partition=where.partition)


def number(stretches: Iterable[WrittenRange], ends: Mapping[PartitionId, int]) -> list[tuple[WrittenRange, int]]:
    """Each with the offset at which it must begin, for records that name none: one after another, as they are given.

    `ends` is how far the archive has each partition.
    """
    reached = defaultdict(int, ends)
    placed = []
    for each in stretches:
        place = id_of(each.where)
        placed.append((each, reached[place]))
        reached[place] += each.offsets
    return placed


def rows_of(stretches: Iterable[WrittenRange], ends: Mapping[PartitionId, int], run: Appended) -> list[Segment | Gap]:
    """Rows that tile on from `ends`. Offsets between slices are gaps: nobody has said why there is nothing.

    RefusedError: slices overlap each other, or what the archive has.
    """
    slices: dict[TopicPartition, list[Slice]] = defaultdict(list)
    for each in stretches:
        slices[each.where] += each.slices
    rows: list[Segment | Gap] = []
    for where, found in sorted(slices.items()):
        rows += _partition_rows(where, sorted(found, key=lambda each: each.base_offset), ends.get(id_of(where)), run)
    return rows


def _partition_rows(
    where: TopicPartition, slices: Sequence[Slice], end: int | None, run: Appended
) -> list[Segment | Gap]:
    place: dict[str, Any] = {"topic": where.topic, "topic_id": topic_id_for(where.topic), "partition": where.partition}
    rows: list[Segment | Gap] = []
    reached = end
    for each in slices:
        if reached is not None and each.base_offset < reached:
            raise _overlap(where, each, reached, archived=reached == end)
        if reached is not None and each.base_offset > reached:
            rows.append(
                Gap(
                    **place,
                    base_offset=reached,
                    end_offset=each.base_offset,
                    reason=GapReason.UNRECORDED,
                    run_id=run.run_id,
                    written_at=run.written_at,
                )
            )
        rows.append(
            Segment(
                **place,
                **{name: getattr(each, name) for name in SLICE_FIELDS},
                reason=GapReason.UNRECORDED if each.records < each.end_offset - each.base_offset else None,
                run_id=run.run_id,
                written_at=run.written_at,
            )
        )
        reached = each.end_offset
    return rows


def _overlap(where: TopicPartition, each: Slice, reached: int, *, archived: bool) -> RefusedError:
    if archived:
        return RefusedError(
            f"the archive has this partition up to offset {reached} already",
            operation="write",
            object_name=str(where),
            offset=each.base_offset,
            hint="leave out what it has (where offset >= ...), name another archive, or drop the column 'offset' to "
            "number the records anew; nothing was changed",
        )
    return RefusedError(
        f"the records do not come in the order of offsets: others were written up to {reached} by another task, or "
        "earlier by the same one",
        operation="write",
        object_name=str(where),
        offset=each.base_offset,
        hint=f"{IN_ORDER}; nothing was changed",
    )


def refuse_other_topics(names: Iterable[str], known: Mapping[str, str]) -> None:
    """RefusedError: the archive knows a topic of this name from a cluster. `known` has the name of each topic id."""
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
    """What the archive says of its cluster, with these topics and at least so many partitions of each."""
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
    topics = {each.name: each for each in state.topics}
    for name, count in counts.items():
        topics[name] = _grown(topics.get(name), name, count)
    return replace(state, topics=tuple(topics.values()))


def _grown(known: TopicState | None, name: str, count: int) -> TopicState:
    if known is None:
        # Without replicas there is no factor: a restore takes the default of its brokers, as with the configuration.
        replicas = ((),) * count
        return TopicState(
            name=name, topic_id=topic_id_for(name), internal=False, replicas=replicas, configs=None, effective=None
        )
    return replace(known, replicas=known.replicas + ((),) * (count - len(known.replicas)))
