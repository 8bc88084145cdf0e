"""The consumer group in which an egress keeps its progress, as the original does: the first offset not in the tree yet.

The original's instances are members of the group. Kafka accepts offsets from outside only for a group without members:
so a commit is refused as long as one of them runs. Of our own processes the one that was started last commits under its
name, and the one before sees that and ends. Both together could only write segments that overlap, which readers of such
a tree expect.
"""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError, UnavailableError, UsageError
from maxbrod.kafka.admin.groups import ACTIVE, commit_offsets
from maxbrod.kafka.state.cluster_state import CommittedOffset
from maxbrod.kafka.state.groups import CLASSIC, ListedGroup, read_offsets
from maxbrod.kafka.wire.deadline import Deadline
from maxbrod.kafka.wire.error_codes import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maxbrod.kafka.wire.client import KafkaClient
    from maxbrod.model import TopicPartition

_OPERATION: Final = "commit the progress of an egress"
_OURS: Final = "maxbrod "


class EgressGroup:
    """The offsets of the topics that this egress follows. Another one may have other topics in the same group."""

    def __init__(
        self, client: KafkaClient, group_id: str, is_followed: Callable[[str], bool], *, patience_s: float
    ) -> None:
        self.group_id = group_id
        self._is_followed = is_followed
        self._client, self._patience_s = client, patience_s
        self._mark = f"{_OURS}{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._mine: dict[TopicPartition, int] = {}

    def claim(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Take the group over, and return how far each partition is by its offsets.

        `positions` are those of the tree. An offset never goes back: segments may have been moved elsewhere.
        """
        found = {where: each.offset for where, each in self._read().items() if self._is_followed(where.topic)}
        self.commit({where: max(at, found.get(where, 0)) for where, at in {**found, **positions}.items()})
        return found

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        """Commit the starts of partitions of which the tree has nothing yet, so that another process is noticed."""
        self.commit({where: at for where, at in starts.items() if where not in self._mine})

    def demand(self) -> None:
        """RefusedError: another process has taken the group over."""
        for where, each in self._read().items():
            if where in self._mine and each.metadata != self._mark:
                raise RefusedError(
                    f"another egress has committed the offset {each.offset} of {where}"
                    + (f": {each.metadata}" if each.metadata else ""),
                    operation=_OPERATION,
                    object_name=self.group_id,
                    hint="run one egress for a tree, or give each its own --group and its own tree",
                )

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Commit what is new. RefusedError: the group has members."""
        news = {
            where: at
            for where, at in positions.items()
            if self._is_followed(where.topic) and at > self._mine.get(where, -1)
        }
        offsets = [
            CommittedOffset(
                topic=where.topic,
                topic_id=None,
                partition=where.partition,
                offset=at,
                leader_epoch=-1,
                metadata=self._mark,
            )
            for where, at in news.items()
        ]
        if not offsets:
            return
        outcomes = commit_offsets(self._client, self.group_id, offsets, deadline=Deadline.after(self._patience_s))
        for where, outcome in outcomes.items():
            if outcome.done:
                self._mine[where] = news[where]
            elif outcome.code in ACTIVE:
                raise RefusedError(
                    "the group has members: kafka-replicator, or a consumer, is running",
                    operation=_OPERATION,
                    object_name=self.group_id,
                    hint="stop it first; this egress continues where it ends",
                )
            elif outcome.code != Code.UNKNOWN_TOPIC_OR_PARTITION:  # the tree outlives a deleted topic
                raise UsageError(
                    f"the offset of {where} is refused: {outcome.reason}",
                    operation=_OPERATION,
                    object_name=self.group_id,
                    hint="this user needs ACLs that allow it to Read the group and the topic",
                )

    def _read(self) -> dict[TopicPartition, CommittedOffset]:
        listed = ListedGroup(group_id=self.group_id, type=CLASSIC, state="", protocol_type="")
        answers = read_offsets(self._client, [listed], {}, deadline=Deadline.after(self._patience_s))
        for why in answers.refused.values():
            raise UnavailableError(f"the offsets cannot be read: {why}", object_name=self.group_id)
        return {each.where: each for each in answers.found.get(self.group_id, ())}
