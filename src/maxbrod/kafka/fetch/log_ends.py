"""The log end offset of the leader, once all in-sync replicas have reached it.

ListOffsets returns the high watermark, which lags behind. The end of the current leader epoch is the leader's log end
offset. Where both agree, no clean election can lose a record below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from maxbrod.errors import UnavailableError
from maxbrod.kafka.fetch.offsets import LATEST, epoch_ends, list_offsets
from maxbrod.kafka.wire.client import KafkaClient, retry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.kafka.wire.deadline import Deadline
    from maxbrod.model import TopicPartition


def log_end(client: KafkaClient, where: TopicPartition, *, deadline: Deadline | None = None) -> int:
    """The offset of the next record. No clean election can lose a record below it."""
    return log_ends(client, [where], deadline=deadline)[where]


def log_ends(
    client: KafkaClient, partitions: Iterable[TopicPartition], *, deadline: Deadline | None = None
) -> dict[TopicPartition, int]:
    """`log_end` of many partitions."""
    wanted = list(partitions)
    found: dict[TopicPartition, int] = {}

    def once(limit: Deadline) -> None:
        missing = [where for where in wanted if where not in found]
        epochs = {where: client.leader(where, deadline=limit).leader_epoch for where in missing}
        ends = epoch_ends(client, epochs, deadline=limit)
        visible = list_offsets(client, dict.fromkeys(missing, LATEST), deadline=limit)
        found.update(
            {where: ends[where].end_offset for where in missing if ends[where].end_offset == visible[where].offset}
        )
        behind = [where for where in missing if where not in found]
        if behind:
            raise UnavailableError("replicas have not caught up with their leader", object_name=str(behind[0]))

    retry(once, deadline=deadline, what="replicas to catch up")
    return found
