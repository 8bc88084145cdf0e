"""Converts the survey of another tool's archive into rows and a snapshot, as our own archives have them. Pure.

Few tools record topic ids. Other topics get an id derived from their name, the same at every survey. One run stands for
all earlier ones. `SurveyedCatalog` holds the rows in memory; it is never written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds

from maxbrod.archive.snapshot_document import Snapshot
from maxbrod.bounds import PARTITIONS_MAX, count_partitions
from maxbrod.catalog.queries import Queries
from maxbrod.catalog.rows import Gap, Row, Run, Segment, encode_rows
from maxbrod.catalog.validity import find_fault, refused_row
from maxbrod.errors import CorruptDataError, RefusedError
from maxbrod.kafka.state.cluster_state import (
    MECHANISMS,
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    Acl,
    Broker,
    ClusterState,
    CommittedOffset,
    Group,
    MissingState,
    Quota,
    QuotaEntity,
    ScramUser,
    TopicState,
    encode_state,
    name_of,
)
from maxbrod.layouts.foreign import (
    UNCOMMITTED,
    ForeignGap,
    ForeignGroup,
    ForeignSegment,
    Survey,
    by_partition,
    describe,
)
from maxbrod.model import GapReason, PartitionId, TopicPartition, topic_id_text

RUN_ID: Final = "survey"
SNAPSHOT_PATH: Final = "snapshots/survey.json.zst"
_NUMBER: Final = re.compile(r"[0-9]+")
_REASONS: Final = {str(reason): reason for reason in GapReason}
_REPLICAS_MAX: Final = 32_767
"""Kafka's own limit of a partition."""
_ALL_REPLICAS_MAX: Final = 10 * PARTITIONS_MAX
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

_NO_ROW: Final = (pa.ArrowException, OverflowError, TypeError, ValueError, KeyError)
_HINT: Final = (
    "the files of the other tool are damaged or not what they claim to be; 'maxbrod check' examines each of them"
)


def topic_id_for(name: str) -> str:
    """The id of a topic whose archive has only its name."""
    digest = hashlib.sha256(f"maxbrod topic {name}".encode()).digest()
    return topic_id_text(UUID(bytes=digest[:16], version=5))


def topic_id_in(survey: Survey, name: str) -> str:
    """The topic's own id, or the one derived from its name."""
    known = survey.topics.get(name)
    return topic_id_for(name) if known is None or known.topic_id is None else known.topic_id


def rows_of(survey: Survey) -> list[Row]:
    """Every segment, every gap between segments, and one run."""
    at = survey.taken_at_ms or 0
    rows: list[Row] = []
    segments = by_partition(survey.segments)
    for where in sorted({*segments, *(gap.where for gap in survey.gaps if gap.reason == GapReason.CORRUPT)}):
        found = sorted(_partition_rows(survey, where, segments.get(where, []), at), key=lambda row: row.base_offset)
        rows.extend(found)
    rows.append(Run(run_id=RUN_ID, started_at=at, finished_at=at, snapshot=SNAPSHOT_PATH, written_at=at))
    return rows


def snapshot_of(survey: Survey) -> Snapshot:
    """The archive's state of its cluster, as our own runs record it."""
    counts = _checked_counts(survey)
    ends = {_id(survey, where): end for where, end in survey.positions.items()}
    for segment in survey.segments:
        known = _id(survey, segment.where)
        ends[known] = max(ends.get(known, 0), segment.end_offset)
    for where in partitions_without_records(survey):
        # Lost segments may have been all that there was of it.
        lost = (gap.end_offset for gap in survey.gaps if gap.where == where)
        ends[_id(survey, where)] = max(lost, default=0)
    state = ClusterState(
        cluster_id=survey.cluster_id,
        taken_at_ms=survey.taken_at_ms or 0,
        brokers=(),
        topics=tuple(_topic_state(survey, name, topic_id_in(survey, name), count) for name, count in counts.items()),
        acls=None,
        quotas=None,
        users=None,
        groups=tuple(_group(survey, group) for group in survey.groups),
        gaps=(),
    )
    return Snapshot(
        run_id=RUN_ID,
        taken_at_ms=survey.taken_at_ms or 0,
        cluster=encode_state(_with_access(state, survey)),
        ends=ends,
        topics={topic_id_in(survey, name): name for name in counts},
    )


def _checked_counts(survey: Survey) -> dict[str, int]:
    """The partitions of each topic. CorruptDataError: the numbers are impossible, and would fill the memory."""
    known = {*survey.positions, *(segment.where for segment in survey.segments)}
    stated = {name: topic.partition_count or 0 for name, topic in survey.topics.items()}
    counts = count_partitions(((where.topic, where.partition) for where in known), stated)
    replicas = 0
    for name, topic in survey.topics.items():
        factor = topic.replication_factor or 0
        replicas += 0 if topic.replicas else counts[name] * factor
        if not 0 <= factor <= _REPLICAS_MAX or replicas > _ALL_REPLICAS_MAX:
            raise CorruptDataError(
                f"the archive says that each of {counts[name]:,} partitions has {factor:,} replicas",
                operation=f"read the layout {survey.layout}",
                object_name=name,
            )
    return counts


def partitions_without_records(survey: Survey) -> list[TopicPartition]:
    """Partitions that the archive knows only by the partition counts of its topics."""
    known = {*survey.positions, *(segment.where for segment in survey.segments)}
    counted = (
        TopicPartition(topic=name, partition=partition)
        for name, topic in survey.topics.items()
        for partition in range(topic.partition_count or 0)
    )
    return [where for where in counted if where not in known]


def _id(survey: Survey, where: TopicPartition) -> PartitionId:
    return PartitionId(topic_id=topic_id_in(survey, where.topic), partition=where.partition)


def _partition_rows(
    survey: Survey, where: TopicPartition, segments: Sequence[ForeignSegment], at: int
) -> Iterator[Segment | Gap]:
    recorded = [gap for gap in survey.gaps if gap.where == where]
    # Judged by its path: in every layout the topic is a folder of it, and the partition a number in it.
    lost = [
        fault
        for fault in survey.faults
        if fault.fatal
        and where.topic in fault.path.split("/")
        and where.partition in map(int, _NUMBER.findall(fault.path))
    ]
    # Losses before the first segment or after the last are between no two segments, so they are listed here.
    first, last = (segments[0].base_offset, segments[-1].end_offset) if segments else (0, 0)
    outside = [gap for gap in recorded if gap.reason == GapReason.CORRUPT and not first < gap.base_offset < last]
    for gap in outside:
        yield _gap(survey, where, gap.base_offset, gap.end_offset, GapReason.CORRUPT, at)
    reached = first
    for segment in segments:
        if segment.base_offset > reached:
            damaged = any(fault.offset is None or reached <= fault.offset < segment.base_offset for fault in lost)
            hole = (reached, segment.base_offset)
            for low, high, reason in [(*hole, GapReason.CORRUPT)] if damaged else _reasons(recorded, *hole):
                yield _gap(survey, where, low, high, reason, at)
        if segment.end_offset > segment.base_offset:
            yield _segment(survey, segment, at)
        reached = max(reached, segment.end_offset)


def _reasons(recorded: Sequence[ForeignGap], first: int, end: int) -> Iterator[tuple[int, int, GapReason]]:
    """Divide a hole by the reasons that the archive gives; the rest is `unrecorded`."""
    reached = first
    for gap in sorted(recorded, key=lambda gap: gap.base_offset):
        low, high = max(gap.base_offset, reached), min(gap.end_offset, end)
        if low < high:
            if reached < low:
                yield reached, low, GapReason.UNRECORDED
            yield low, high, _REASONS.get(gap.reason, GapReason.UNRECORDED)
            reached = high
    if reached < end:
        yield reached, end, GapReason.UNRECORDED


def _gap(survey: Survey, where: TopicPartition, first: int, end: int, reason: GapReason, at: int) -> Gap:
    return Gap(**_shared(survey, where, at), base_offset=first, end_offset=end, reason=reason)


def _shared(survey: Survey, where: TopicPartition, at: int) -> dict[str, Any]:
    """The fields of every row of a partition."""
    place = {"topic": where.topic, "topic_id": topic_id_in(survey, where.topic), "partition": where.partition}
    return {**place, "run_id": RUN_ID, "written_at": at}


def _segment(survey: Survey, segment: ForeignSegment, at: int) -> Segment:
    offsets = segment.end_offset - segment.base_offset
    records = offsets if segment.records is None else segment.records
    return Segment(
        **_shared(survey, segment.where, at),
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        path=segment.path,
        position=0,
        bytes=segment.bytes,
        raw_bytes=segment.bytes,
        codec=segment.codec,
        records=records,
        min_timestamp=segment.min_timestamp,
        max_timestamp=segment.max_timestamp,
        # Other layouts record the lowest timestamp of all records.
        min_timestamp_exact=segment.min_timestamp is not None,
        first_leader_epoch=segment.first_leader_epoch,
        last_leader_epoch=segment.last_leader_epoch,
        aborted=segment.aborted,
        digest="",
        # The number of markers that were left out is unknown.
        reason=_REASONS[segment.reason] if records < offsets or segment.details.get(UNCOMMITTED) else None,
        details=describe(survey.layout, segment),
    )


def _group(survey: Survey, group: ForeignGroup) -> Group:
    offsets = tuple(
        CommittedOffset(
            topic=where.topic,
            topic_id=topic_id_in(survey, where.topic),
            partition=where.partition,
            offset=offset,
            leader_epoch=-1,
            metadata=None,
        )
        for where, offset in group.offsets.items()
    )
    return Group(group_id=group.group_id, type="classic", state="Empty", protocol_type="consumer", offsets=offsets)


def _topic_state(survey: Survey, name: str, topic_id: str, count: int) -> TopicState:
    known = survey.topics.get(name)
    configs = None if known is None or not (known.configs or known.replicas) else dict(known.configs)
    defaults = {} if survey.cluster is None else survey.cluster.defaults
    # Without a replication factor there are no replicas: a restore then uses the default of its brokers.
    replicas = (tuple(range((known and known.replication_factor) or 0)),) * count
    return TopicState(
        name=name,
        topic_id=topic_id,
        internal=name in _INTERNAL,
        replicas=known.replicas if known is not None and len(known.replicas) == count else replicas,
        configs=configs,
        effective=None if configs is None else {**defaults, **configs},
    )


def _with_access(state: ClusterState, survey: Survey) -> ClusterState:
    """The state with brokers, ACLs, quotas and users, or a note that the layout does not keep them."""
    cluster = survey.cluster
    if cluster is None:
        missing = MissingState(
            what="ACLs, quotas and users",
            why=f"the layout {survey.layout} does not keep them",
            hint="back up with maxbrod's own layout to have them",
        )
        return replace(state, gaps=(missing,))
    return replace(
        state,
        brokers=tuple(
            Broker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in cluster.brokers
        ),
        acls=tuple(
            Acl(
                resource_type=name_of(RESOURCE_TYPES, acl.resource_type),
                resource_name=acl.resource_name,
                pattern_type=name_of(PATTERN_TYPES, acl.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=name_of(OPERATIONS, acl.operation),
                permission=name_of(PERMISSIONS, acl.permission),
            )
            for acl in cluster.acls
        ),
        quotas=tuple(
            Quota(
                entities=tuple(QuotaEntity(type=kind, name=name) for kind, name in quota.entities),
                values=dict(quota.values),
            )
            for quota in cluster.quotas
        ),
        users=tuple(
            ScramUser(name=user.name, mechanism=name_of(MECHANISMS, user.mechanism), iterations=user.iterations)
            for user in cluster.users
        ),
    )


class SurveyedCatalog(Queries):
    """Answers the same queries as a `Catalog`. It has one version and no replaced rows: other tools record none."""

    version: Final = 0

    def __init__(self, url: str, rows: Iterable[Row]) -> None:
        self.url: Final = url
        self._rows: Final = _Rows(_encoded(rows))

    def __repr__(self) -> str:
        return f"SurveyedCatalog({self.url!r})"

    def _files(self) -> _Rows:
        return self._rows

    def refresh(self) -> None:
        """Does nothing: to repeat a survey, open the archive again."""

    def recent_paths(self, since_ms: int) -> set[str]:
        """Empty: which objects another tool has stopped using is unknown."""
        del since_ms
        return set()

    def commit(self, *_: object, **__: object) -> NoReturn:
        """Always refused."""
        raise RefusedError(
            "this archive is in the layout of another tool, and has no catalog to commit to",
            operation="commit to the catalog",
            object_name=self.url,
            hint="'maxbrod convert' makes a writable archive of it",
        )


class _Rows:
    """A table in memory that is read like the files of a catalog."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.row_count: Final = int(table.num_rows)

    def read(self, columns: Sequence[str], condition: ds.Expression | None = None) -> pa.Table:
        return ds.dataset(self._table).to_table(columns=list(columns), filter=condition)

    def stream(self, columns: Sequence[str], condition: ds.Expression | None = None) -> Iterator[pa.Table]:
        yield self.read(columns, condition)


def _encoded(rows: Iterable[Row]) -> pa.Table:
    """CorruptDataError: what the other tool's files say is not a valid row."""
    rows = list(rows)
    try:
        table = encode_rows(rows)
    except _NO_ROW:
        # Find the row only now that it matters.
        for row in rows:
            try:
                encode_rows([row])
            except _NO_ROW as error:
                raise CorruptDataError(
                    f"the description of a segment is invalid: {error}",
                    operation="read the archive",
                    object_name=getattr(row, "path", None),
                    hint=_HINT,
                ) from error
        raise
    fault = find_fault(table, native=False)
    if fault is not None:
        raise refused_row(fault, table, hint=_HINT)
    return table
