"""Sees that what a wave has read continues what is held: one history, not the beginning of one and the end of another.

Epochs are compared when a run is planned, and within a range the broker compares them with every fetch. Between the
two, and between ranges, an unclean election may cut a log that then grows again: where the epoch rises there, the
leader is asked whether the older one really reached so far.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from maxbrod.kafka.fetch.offsets import epoch_ends
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from maxbrod.backup.observing import Position
    from maxbrod.backup.plan.items import Outcome
    from maxbrod.errors import MaxbrodError
    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import PartitionId


def find_mixed(
    client: KafkaClient, held: Mapping[PartitionId, Position], outcomes: Sequence[Outcome], *, patience_s: float
) -> dict[PartitionId, str]:
    """Partitions whose outcomes must not be taken, and why. No request is sent where no epoch has risen."""
    seams = {
        partition: deque(found)
        for partition, each in _by_partition(outcomes).items()
        if (found := _seams(held.get(partition), each))
    }
    topics = {outcome.item.id: outcome.item.topic for outcome in outcomes}
    mixed: dict[PartitionId, str] = {}
    while seams:
        asked = {
            TopicPartition(topic=topics[partition], partition=partition.partition): (partition, *left.popleft())
            for partition, left in seams.items()
        }
        failed: dict[TopicPartition, MaxbrodError] = {}
        epochs = {where: epoch for where, (_, epoch, _) in asked.items()}
        answers = epoch_ends(client, epochs, deadline=Deadline.after(patience_s), failed=failed)
        for where, (partition, epoch, end) in asked.items():
            answer = answers.get(where)
            if answer is None:
                mixed[partition] = f"nobody could tell whether it is one history: {failed[where].message}"
            elif answer.end_offset >= 0 and (answer.leader_epoch < epoch or answer.end_offset < end):
                mixed[partition] = f"the log was truncated below offset {end} while it was read"
        seams = {partition: left for partition, left in seams.items() if left and partition not in mixed}
    return mixed


def _by_partition(outcomes: Iterable[Outcome]) -> dict[PartitionId, list[Outcome]]:
    found: dict[PartitionId, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.item.id, []).append(outcome)
    return found


def _seams(held: Position | None, outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
    """Where an epoch has risen between what was read apart: the older epoch, and up to where it was read."""
    epoch = -1 if held is None or held.last_leader_epoch is None else held.last_leader_epoch
    end = 0 if held is None else held.end_offset
    found = []
    for outcome in sorted(outcomes, key=lambda each: each.item.start):
        for number, each in enumerate(outcome.slices):
            # Within a range the broker has compared them itself.
            if number == 0 and 0 <= epoch < each.first_leader_epoch:
                found.append((epoch, end))
            epoch, end = each.last_leader_epoch, each.end_offset
    return found
