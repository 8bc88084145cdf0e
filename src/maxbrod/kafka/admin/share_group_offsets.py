"""Sets and deletes where share groups stand, for those without members. Kafka 4.1 and later. To read it: `groups`."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from maxbrod.kafka.admin.group_offsets import ask_until_final
from maxbrod.kafka.wire.messages.share_groups import AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from maxbrod.kafka.admin.outcomes import Outcome
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.kafka.wire.deadline import Deadline


def set_share_offsets(
    client: KafkaClient, group_id: str, offsets: Mapping[TopicPartition, int], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Let the group begin at these offsets; it is created if there is none."""
    topic = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
    partition = topic.AlterShareGroupOffsetsRequestPartition
    topics: dict[str, list[Any]] = defaultdict(list)
    for where, offset in offsets.items():
        topics[where.topic].append(partition(partition_index=where.partition, start_offset=offset))

    def request() -> Any:  # noqa: ANN401 - kafka-python is untyped
        wanted = [topic(topic_name=name, partitions=partitions) for name, partitions in topics.items()]
        return AlterShareGroupOffsetsRequest(group_id=group_id, topics=wanted)

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int]]:  # noqa: ANN401 - kafka-python is untyped
        if answer.error_code:
            yield from ((where, answer.error_code) for where in offsets)
        for each in () if answer.error_code else answer.responses:
            for one in each.partitions:
                yield TopicPartition(topic=each.topic_name, partition=one.partition_index), one.error_code

    return ask_until_final(client, group_id, offsets, request, read, deadline=deadline) if offsets else {}


def delete_share_offsets(
    client: KafkaClient, group_id: str, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, Outcome]:
    """Let the group forget the topics of these partitions, with all others that they have: Kafka knows no less."""
    wanted = list(partitions)
    topic = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic

    def request() -> Any:  # noqa: ANN401 - kafka-python is untyped
        names = sorted({where.topic for where in wanted})
        return DeleteShareGroupOffsetsRequest(group_id=group_id, topics=[topic(topic_name=name) for name in names])

    def read(answer: Any) -> Iterator[tuple[TopicPartition, int]]:  # noqa: ANN401 - kafka-python is untyped
        codes = {each.topic_name: each.error_code for each in answer.responses or ()}
        yield from ((where, answer.error_code or codes.get(where.topic, 0)) for where in wanted)

    return ask_until_final(client, group_id, wanted, request, read, deadline=deadline) if wanted else {}
