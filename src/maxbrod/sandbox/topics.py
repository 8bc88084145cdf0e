"""Topics of a sandbox: creates, describes, configures and deletes them, and waits until every broker agrees."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import UnknownTopicOrPartitionError

from maxbrod.errors import UnavailableError, UsageError
from maxbrod.sandbox.probe import known_config, known_offsets, known_topic
from maxbrod.sandbox.process import wait_for
from maxbrod.sandbox.spec import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from maxbrod.sandbox.cluster import Cluster

_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The brokers that hold a partition. `leader` is None while it has none."""

    leader: int | None
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = 1,
    replication_factor: int = -1,
    assignments: Mapping[int, Sequence[int]] | None = None,
    config: Mapping[str, str] | None = None,
) -> UUID:
    """Create a topic, wait until every partition has a leader, and return the topic's id."""
    details: dict[str, Any] = {"configs": dict(config or {})}
    if assignments:
        details["assignments"] = {partition: list(brokers) for partition, brokers in assignments.items()}
    else:
        details |= {"num_partitions": partitions, "replication_factor": replication_factor}
    with cluster.admin() as admin:
        admin.create_topics({topic: details})
    return wait_until_known(cluster, topic)


def topic_id(cluster: Cluster, topic: str) -> UUID:
    found: UUID = _describe(cluster, topic).topic_id
    return found


def delete_topic(cluster: Cluster, topic: str) -> None:
    """Delete a topic and wait until no running broker has a folder of it."""
    with cluster.admin() as admin:
        admin.delete_topics([topic])
    wait_for(f"deletion of {topic}", lambda: not _folders(cluster, topic), timeout_s=_TIMEOUT_S)


def recreate_topic(
    cluster: Cluster, topic: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> tuple[UUID, UUID]:
    """Delete a topic and create it again: same name, offsets from 0, another id. Returns the old and the new id."""
    old = topic_id(cluster, topic)
    delete_topic(cluster, topic)
    return old, create_topic(cluster, topic, partitions=partitions, config=config)


def set_topic_config(cluster: Cluster, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic, and wait until every running broker knows them."""
    with cluster.admin() as admin:
        answers = admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))])
    if (answer := answers["topic"][topic]) != "OK":
        raise UsageError(f"Kafka refused new settings: {answer}", object_name=topic)

    def known() -> bool:
        ports = [cluster.spec.broker(broker).ports[PLAINTEXT] for broker in cluster.running]
        return all(config.items() <= known_config(port, topic).items() for port in ports)

    wait_for(f"every broker to know the settings of {topic}", known, timeout_s=_TIMEOUT_S)


def offsets(cluster: Cluster, topic: str, partition: int = 0) -> tuple[int, int]:
    """The log start offset and the log end offset of a partition."""

    def found() -> tuple[int, int] | None:
        leader = replicas(cluster, topic, partition).leader
        answer = None if leader is None else _offsets(cluster, leader, topic, [partition])
        return None if answer is None else answer[0]

    return wait_for(f"a leader of {topic}-{partition}", found, timeout_s=_TIMEOUT_S)


def replicas(cluster: Cluster, topic: str, partition: int = 0) -> Replicas:
    for found in _describe(cluster, topic).partitions:
        if found.partition_index == partition:
            return Replicas(
                leader=found.leader_id if found.leader_id >= 0 else None,
                replicas=tuple(found.replica_nodes),
                in_sync=frozenset(found.isr_nodes),
            )
    raise UsageError(f"no partition {partition}", object_name=topic)


def wait_for_in_sync(cluster: Cluster, topic: str, brokers: Collection[int], *, partition: int = 0) -> None:
    """Wait until exactly these brokers are in sync, and every running broker knows it: also the leader, which may be
    the last to hear of it.
    """

    def known() -> bool:
        answers = [known_topic(cluster.spec.broker(broker).ports[PLAINTEXT], topic) for broker in cluster.running]
        return all(answer is not None and _in_sync(answer, partition) == frozenset(brokers) for answer in answers)

    wait_for(f"{sorted(brokers)} in sync for {topic}-{partition}", known, timeout_s=_TIMEOUT_S)


def wait_until_known(cluster: Cluster, topic: str) -> UUID:
    """Wait until every running broker knows a new topic and all leaders answer; returns the topic's id.

    Until a broker has learnt of a topic, it answers that there is none. It may know from the metadata that it leads a
    partition, and open the log a moment later.
    """

    def known() -> UUID | None:
        answers = [known_topic(cluster.spec.broker(broker).ports[PLAINTEXT], topic) for broker in cluster.running]
        first: Any = answers[0] if answers and all(map(_is_known, answers)) else None
        return first.topic_id if first is not None and _is_led(cluster, first) else None

    return wait_for(f"every broker to know {topic}", known, timeout_s=_TIMEOUT_S)


def _in_sync(answer: Any, partition: int) -> frozenset[int]:  # noqa: ANN401 - kafka-python is untyped
    return frozenset(
        broker for each in answer.partitions if each.partition_index == partition for broker in each.isr_nodes
    )


def _is_known(answer: Any) -> bool:  # noqa: ANN401 - kafka-python is untyped
    if answer is None or answer.error_code:
        return False
    return all(not partition.error_code and partition.leader_id >= 0 for partition in answer.partitions)


def _is_led(cluster: Cluster, answer: Any) -> bool:  # noqa: ANN401 - kafka-python is untyped
    led = defaultdict[int, list[int]](list)
    for partition in answer.partitions:
        led[partition.leader_id].append(partition.partition_index)
    return all(_offsets(cluster, leader, answer.name, partitions) for leader, partitions in led.items())


def _offsets(cluster: Cluster, leader: int, topic: str, partitions: Sequence[int]) -> list[tuple[int, int]] | None:
    return known_offsets(cluster.spec.broker(leader).ports[PLAINTEXT], topic, partitions)


def _describe(cluster: Cluster, topic: str) -> Any:  # noqa: ANN401 - kafka-python is untyped
    for broker in cluster.running:
        found = known_topic(cluster.spec.broker(broker).ports[PLAINTEXT], topic)
        if found is not None and found.error_code == UnknownTopicOrPartitionError.errno:
            raise UsageError("no such topic", object_name=topic)
        if found is not None:
            return found
    raise UnavailableError("no broker answers", object_name=topic, operation="describe")


def _folders(cluster: Cluster, topic: str) -> list[str]:
    # A deleted partition is first renamed to <topic>-<partition>.<uuid>-delete, and removed later.
    names = (folder.name for broker in cluster.running for folder in cluster.log_dir(broker).iterdir())
    return [name for name in names if name.partition(".")[0].rpartition("-")[0] == topic]
