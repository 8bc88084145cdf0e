"""Sets and deletes the offsets of share groups without members. Kafka 4.1 and later. `state.groups` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.kafka.admin.group_offsets import ask_until_final
from maxbrod.kafka.wire.messages.share_groups import AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest
from maxbrod.kafka.wire.partitions import by_topic
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.admin.outcomes import Outcome
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.connection import Message
    from maxbrod.kafka.wire.deadline import Deadline


def set_share_offsets(
    client: KafkaClient, group_id: str, offsets: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Set the start offsets of the group. Creates the group if it does not exist."""
    topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = topic.AlterShareGroupOffsetsRequestPartition

    def request() -> Message:
        topics = [
            topic(
                topic_name=name,
                partitions=[partition(partition_index=index, start_offset=offset) for index, offset in each.items()],
            )
            for name, each in by_topic(offsets).items()
        ]
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        if answer.error_code:
            yield from ((where, answer.error_code) for where in offsets)
        for each in () if answer.error_code else answer.responses:
            for one in each.partitions:
                yield TopicPartition(topic=each.topic_name, partition=one.partition_index), one.error_code

    return ask_until_final(client, group_id, offsets, request, read, deadline=deadline) if offsets else {}


def delete_share_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Delete the offsets of the topics of these partitions. Kafka deletes those of all partitions of a topic."""
    wanted = list(partitions)
    topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic

    def request() -> Message:
        names = sorted({where.topic for where in wanted})
        return DeleteShareGroupOffsetsRequest(group_id=group_id, topics=[topic(topic_name=name) for name in names])

    def read(answer: Message) -> Iterator[tuple[TopicPartition, int]]:
        codes = {response.topic_name: response.error_code for response in answer.responses or ()}
        yield from ((where, answer.error_code or codes.get(where.topic, 0)) for where in wanted)

    return ask_until_final(client, group_id, wanted, request, read, deadline=deadline) if wanted else {}
