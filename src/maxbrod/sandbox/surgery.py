"""Does to a partition at once what Kafka does at some time: compaction, retention, data loss.

Each function returns only after the effect: compaction on every running replica, all else on the leader.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafka import TopicPartition
from kafka.protocol.admin import ElectionType

from maxbrod.errors import UsageError
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.topics import offsets, replicas, set_topic_config, wait_for_in_sync
from maxbrod.sandbox.traffic import Message, produce

if TYPE_CHECKING:
    from maxbrod.sandbox.cluster import Cluster

_TIMEOUT_S: Final = 60.0
_SOON: Final = {"min.cleanable.dirty.ratio": "0.0", "min.compaction.lag.ms": "0", "segment.ms": "1"}
ROLL_KEY: Final = b"maxbrod-sandbox-roll"


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElection:
    """The result of an unclean election. The records at `lost_offsets` were readable before, and are lost."""

    old_leader: int
    new_leader: int
    lost_offsets: tuple[int, ...]


def roll_segment(cluster: Cluster, topic: str, *, partition: int = 0) -> int:
    """Close the active segment, which only an append does, and return the offset of the appended record."""
    # Later than the segment's records by more than segment.ms, or Kafka would not roll.
    time.sleep(0.01)
    roll = Message(key=ROLL_KEY, value=b"", timestamp_ms=int(time.time() * 1000))
    (offset,) = produce(cluster, topic, [roll], partition=partition)
    return offset


def compact(cluster: Cluster, topic: str, *, partition: int = 0) -> int:
    """Compact all present records. Appends one record with the key ROLL_KEY, and returns its offset.

    Leaves the topic with `cleanup.policy=compact` and with settings that compact as soon as possible.
    """
    set_topic_config(cluster, topic, {"cleanup.policy": "compact", **_SOON})
    end = roll_segment(cluster, topic, partition=partition)
    holders = [broker for broker in replicas(cluster, topic, partition).replicas if broker in cluster.running]
    for broker in holders:
        wait_for(
            f"compaction of {topic}-{partition} on broker {broker}",
            lambda broker=broker: _cleaned_until(cluster, broker, topic, partition) >= end,  # type: ignore[misc]
            timeout_s=_TIMEOUT_S,
        )
    return end


def _cleaned_until(cluster: Cluster, broker: int, topic: str, partition: int) -> int:
    """The offset that the cleaner has reached, by its checkpoint: a version, a count, and a line for each partition."""
    checkpoint = cluster.log_dir(broker) / "cleaner-offset-checkpoint"
    try:
        lines = checkpoint.read_text().splitlines()[2:]
    except FileNotFoundError:
        return 0
    for name, number, offset in (line.split(" ") for line in lines):
        if (name, number) == (topic, str(partition)):
            return int(offset)
    return 0


def expire(cluster: Cluster, topic: str, *, partition: int = 0) -> int:
    """Let retention delete all present records, and return the new log start offset."""
    _, end = offsets(cluster, topic, partition)
    set_topic_config(cluster, topic, {"cleanup.policy": "delete", "retention.ms": "1"})
    wait_for(
        f"retention of {topic}-{partition}",
        lambda: offsets(cluster, topic, partition)[0] >= end,
        timeout_s=_TIMEOUT_S,
    )
    # Records written from now on stay.
    set_topic_config(cluster, topic, {"retention.ms": "-1"})
    return end


def delete_records(cluster: Cluster, topic: str, *, before_offset: int, partition: int = 0) -> None:
    """Move the log start offset at once, as an administrator can."""
    where = TopicPartition(topic, partition)
    with cluster.admin() as admin:
        admin.delete_records({where: before_offset})


def lose_by_unclean_election(
    cluster: Cluster, topic: str, lost: Sequence[Message], *, partition: int = 0
) -> UncleanElection:
    """Let the leader acknowledge records that no follower has, kill it, and elect a follower without them.

    The old leader stays dead; when it is restarted it truncates those records from its own log.
    """
    before = replicas(cluster, topic, partition)
    old_leader = before.leader
    followers = [broker for broker in before.replicas if broker != old_leader]
    if old_leader is None or not followers:
        raise UsageError("an unclean election needs a leader and a follower", object_name=f"{topic}-{partition}")
    for follower in followers:
        cluster.kill(follower)
    wait_for_in_sync(cluster, topic, {old_leader}, partition=partition)
    cluster.wait_until_settled()
    lost_offsets = produce(cluster, topic, lost, partition=partition)
    cluster.kill(old_leader)
    for follower in followers:
        cluster.restart(follower)
    new_leader = _elect_unclean(cluster, topic, partition, old_leader)
    return UncleanElection(old_leader=old_leader, new_leader=new_leader, lost_offsets=tuple(lost_offsets))


def _elect_unclean(cluster: Cluster, topic: str, partition: int, old_leader: int) -> int:
    # The controller must have noticed the death, or it would find nothing to elect.
    wait_for(
        f"{topic}-{partition} to be without a leader",
        lambda: replicas(cluster, topic, partition).leader is None,
        timeout_s=_TIMEOUT_S,
    )
    cluster.wait_until_settled()
    with cluster.admin() as admin:
        admin.elect_leaders(ElectionType.UNCLEAN, {topic: [partition]})

    def other_leader() -> int | None:
        leader = replicas(cluster, topic, partition).leader
        return leader if leader != old_leader else None

    return wait_for(f"a new leader of {topic}-{partition}", other_leader, timeout_s=_TIMEOUT_S)
