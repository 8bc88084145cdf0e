"""Clusters, topics and plans for tests of restore planning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from maxbrod.catalog.rows import Gap, Segment, encode_rows
from maxbrod.kafka.state.cluster_state import Broker, ClusterState, CommittedOffset, Group, TopicState
from maxbrod.model import PartitionId, TopicPartition
from maxbrod.restore.plan.plan import RestorePlan, SourceArchive, plan_restore
from maxbrod.restore.plan.request import Chosen, RestoreRequest
from maxbrod.restore.plan.targets import LogExtent, Right, TargetState
from support.catalog_rows import TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOW: Final = 1_700_000_000_000
CHOSEN: Final = Chosen(topics={TOPIC_ID: "orders"}, missing=())
ARCHIVE: Final = SourceArchive(url="file:///archive", version=7, run_id="run-1")
ALL_RIGHTS: Final = dict.fromkeys(Right, True)
EFFECTIVE: Final = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "segment.bytes": "1073741824",
}


def topic(name: str = "orders", *, partitions: int = 1, factor: int = 1, **changes: Any) -> TopicState:
    values: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "internal": False,
        "configs": {},
        "effective": EFFECTIVE,
        **changes,
    }
    return TopicState(name=name, replicas=(tuple(range(factor)),) * partitions, **values)


def cluster(*topics: TopicState, brokers: int = 3, groups: Sequence[Group] = ()) -> ClusterState:
    return ClusterState(
        cluster_id="cluster",
        taken_at_ms=NOW,
        brokers=tuple(Broker(node_id=number, host="localhost", port=9092 + number) for number in range(brokers)),
        topics=topics,
        acls=(),
        quotas=(),
        users=(),
        groups=tuple(groups),
        gaps=(),
    )


def target(
    *topics: TopicState, ends: Mapping[str, Sequence[tuple[int, int]]] | None = None, **others: Any
) -> TargetState:
    brokers = others.pop("brokers", 3)
    extents = {
        TopicPartition(topic=name, partition=partition): LogExtent(start=start, end=end)
        for name, each in (ends or {}).items()
        for partition, (start, end) in enumerate(each)
    }
    values: dict[str, Any] = {"rights": ALL_RIGHTS, **others}
    return TargetState(
        cluster=cluster(*topics, brokers=brokers),
        names=frozenset(each.name for each in topics),
        extents=extents,
        **values,
    )


def plan(
    rows: Sequence[Segment | Gap],
    request: RestoreRequest | None = None,
    *,
    into: TargetState | None = None,
    archived: TopicState | None = None,
    **changes: Any,
) -> RestorePlan:
    values: dict[str, Any] = {
        "restore_id": "restore-1",
        "archive": ARCHIVE,
        "chosen": CHOSEN,
        "ends": {},
        "snapshot": cluster(topic() if archived is None else archived),
        "now_ms": NOW,
        **changes,
    }
    return plan_restore(request or RestoreRequest(), rows=encode_rows(rows), target=into or target(), **values)


def group(group_id: str, *offsets: tuple[str, int, int], topic_id: str | None = TOPIC_ID, **changes: Any) -> Group:
    committed = tuple(
        CommittedOffset(
            topic=name, topic_id=topic_id, partition=partition, offset=offset, leader_epoch=4, metadata="note"
        )
        for name, partition, offset in offsets
    )
    values: dict[str, Any] = {"type": "classic", "state": "Empty", "protocol_type": "consumer", **changes}
    return Group(group_id=group_id, **{"offsets": committed, **values})


def partition_id(partition: int = 0) -> PartitionId:
    return PartitionId(topic_id=TOPIC_ID, partition=partition)
