"""What the tests of a cluster's state share: changes to clusters and groups, by kafka-python and by Java's tools."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer, OffsetAndMetadata
from kafka import TopicPartition as LibraryPartition
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from kafka.protocol.admin import AlterClientQuotasRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

from maxbrod.sandbox.jars import CONSOLE_CONSUMER, run_tool
from maxbrod.sandbox.process import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.state.cluster_state import QuotaEntity
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.sandbox.cluster import Cluster

_CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
_SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_GROUP_RESOURCE = 32


def commit(cluster: Cluster, group_id: str, topic: str, committed: Mapping[int, tuple[int, str, int]]) -> None:
    """Offsets, metadata and leader epochs of a group that has no members."""
    offsets = {LibraryPartition(topic, index): OffsetAndMetadata(*each) for index, each in committed.items()}
    with cluster.admin() as admin:
        await_coordinator(admin, group_id)
        answers = admin.alter_group_offsets(group_id, offsets)
    assert all(error.errno == 0 for error in answers.values()), answers


def await_coordinator(admin: KafkaAdminClient, group_id: str) -> None:
    """The first group of a cluster makes it create the topic of offsets, which takes a moment."""

    def found() -> bool:
        with suppress(CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError):
            return bool(admin.list_group_offsets([group_id]) is not None)
        return False

    wait_for("a coordinator", found, timeout_s=60)


def commit_many(cluster: Cluster, topic: str, count: int) -> list[str]:
    """So many groups, each of which stands at offset 9."""
    groups = [f"{topic}-{number}" for number in range(count)]
    with cluster.admin() as admin:
        await_coordinator(admin, groups[0])
        for group_id in groups:
            admin.alter_group_offsets(group_id, {LibraryPartition(topic, 0): OffsetAndMetadata(9)})
    return groups


@contextmanager
def classic_member(cluster: Cluster, group_id: str, topic: str, *, until: int) -> Iterator[None]:
    """A consumer that has joined its group, read partition 0 up to an offset, and committed it.

    kafka-python may join before it knows the topic's partitions, and is then given none of them, for minutes.
    """
    consumer = KafkaConsumer(group_id=group_id, auto_offset_reset="earliest", bootstrap_servers=cluster.bootstrap)
    wait_for("the topic", lambda: consumer.partitions_for_topic(topic), timeout_s=60)
    consumer.subscribe([topic])

    def arrived() -> bool:
        consumer.poll(200)
        return bool(consumer.assignment()) and consumer.position(LibraryPartition(topic, 0)) == until

    try:
        wait_for("the records", arrived, timeout_s=60)
        consumer.commit()
        yield
    finally:
        consumer.close()


def consume_by_the_new_protocol(cluster: Cluster, group_id: str, topic: str, count: int) -> None:
    run_tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group_id, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "30000", "--command-property", "group.protocol=consumer"),
    )


def make_share_group(cluster: Cluster, client: KafkaClient, group_id: str, topic: str) -> None:
    """A share group that reads a record or more, and is then set to the end of the topic.

    Kafka moves the start of a share group when it likes, but at once when it is told to.
    """
    set_group_config(client, group_id, {"share.auto.offset.reset": "earliest"})
    where = ("--bootstrap-server", cluster.bootstrap, "--topic", topic, "--group", group_id)
    run_tool(_CONSOLE_SHARE_CONSUMER, *where, "--max-messages", "1", "--timeout-ms", "30000")
    run_tool(_SHARE_GROUPS, *where, "--reset-offsets", "--to-latest", "--execute")


def set_group_config(client: KafkaClient, group_id: str, config: Mapping[str, str]) -> None:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [resource.AlterableConfig(name=k, config_operation=0, value=v) for k, v in config.items()]
    change = resource(resource_type=_GROUP_RESOURCE, resource_name=group_id, configs=configs)
    answer = client.ask_any(lambda: IncrementalAlterConfigsRequest(resources=[change], validate_only=False))
    assert not answer.responses[0].error_code
    wait_for(
        "the group's configuration", lambda: config.items() <= group_config(client, group_id).items(), timeout_s=60
    )


def group_config(client: KafkaClient, group_id: str) -> dict[str, str]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    asked = resource(resource_type=_GROUP_RESOURCE, resource_name=group_id, configuration_keys=None)
    answer = client.ask_any(
        lambda: DescribeConfigsRequest(resources=[asked], include_synonyms=False, include_documentation=False)
    )
    return {each.name: each.value for each in answer.results[0].configs}


def set_quota(client: KafkaClient, entities: Iterable[QuotaEntity], values: Mapping[str, float | None]) -> None:
    """A value of None removes the quota."""
    entry = AlterClientQuotasRequest.EntryData
    who = [entry.EntityData(entity_type=each.type, entity_name=each.name) for each in entities]
    ops: list[Any] = [entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
    answer = client.ask_any(lambda: AlterClientQuotasRequest(entries=[entry(entity=who, ops=ops)], validate_only=False))
    assert not answer.entries[0].error_code
