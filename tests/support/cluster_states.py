"""States of a cluster, as snapshots hold them."""

from __future__ import annotations

from typing import Any

from maxbrod.kafka.state.cluster_state import (
    Broker,
    ClusterState,
    CommittedOffset,
    Group,
    TopicState,
)

HELD = {"A": "orders", "B": "payments", "C": "orders"}


def topic(topic_id: str, **changes: Any) -> TopicState:
    values: dict[str, Any] = {"configs": {"retention.ms": topic_id}, "effective": {"retention.ms": topic_id}, **changes}
    return TopicState(name=HELD.get(topic_id, topic_id), topic_id=topic_id, internal=False, replicas=((1,),), **values)


def offset(topic_id: str | None, at: int, partition: int = 0, name: str | None = None) -> CommittedOffset:
    name = name or HELD.get(topic_id or "", topic_id or "")
    return CommittedOffset(
        topic=name, topic_id=topic_id, partition=partition, offset=at, leader_epoch=-1, metadata=f"{at}"
    )


def group(group_id: str, *offsets: CommittedOffset, readable: bool = True) -> Group:
    return Group(
        group_id=group_id,
        type="classic",
        state="Empty",
        protocol_type="consumer",
        offsets=offsets if readable else None,
    )


def cluster(*topics: TopicState, groups: tuple[Group, ...] = (), **changes: Any) -> ClusterState:
    values: dict[str, Any] = {"cluster_id": "one", "acls": (), "quotas": (), "users": (), **changes}
    return ClusterState(
        taken_at_ms=1, brokers=(Broker(node_id=1, host="b", port=1),), topics=topics, groups=groups, gaps=(), **values
    )
