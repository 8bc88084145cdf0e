"""The offsets of groups on a mount: the archive's, and over them what was committed here.

Answers the requests that read, commit and delete them.

A leader epoch is never given out: the one that was committed with belongs to a log that the mount does not have, and a
consumer that moves to the restored cluster would be told of a truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from kafka.protocol.consumer import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse

from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.journal import CommitJournal, JournalFailedError, TopicCommit
from maxbrod.mount.positions import HeldOffset, PositionKey, Positions

_METADATA_BYTES_MAX: Final = 4096
_GROUPS_MAX: Final = 20_000
_NO_OFFSET: Final = HeldOffset(offset=-1)
_NO_EPOCH: Final = -1


class GroupOffsets:
    """Read and commit offsets. `positions` may be replaced when the mount moves on to a newer run."""

    def __init__(self, positions: Positions, journal: CommitJournal) -> None:
        self.positions = positions
        self._journal = journal

    @property
    def group_ids(self) -> set[str]:
        """Groups that the archive or the journal knows."""
        return {*self.positions.groups, *self._journal.state.offsets}

    def knows(self, group_id: str) -> bool:
        return group_id in self.positions.groups or group_id in self._journal.state.offsets

    def protocol_type(self, group_id: str) -> str:
        """The archive's type for a group without members; empty for one that only stores offsets here."""
        return self.positions.protocol_types.get(group_id, "")

    def held(self, group_id: str) -> dict[PositionKey, HeldOffset]:
        """Where a group stands, in topics that the mount may or may not have."""
        here = self._journal.state.offsets.get(group_id, {})
        both = {**self.positions.groups.get(group_id, {}), **here}
        return {key: held for key, held in both.items() if held is not None}

    async def commit(self, request: Message, version: int, allowed: Code) -> Message:
        """Commit what can be, durably. `allowed` is the error of all partitions if the sender may not."""
        codes: list[tuple[str, list[tuple[int, Code]]]] = []
        commits: list[TopicCommit] = []
        if (
            allowed is Code.NONE
            and not self.knows(request.group_id)
            and len(self._journal.state.offsets) >= _GROUPS_MAX
        ):
            allowed = Code.GROUP_MAX_SIZE_REACHED
        for topic in request.topics:
            rows: list[tuple[int, Code]] = []
            for partition in topic.partitions:
                code = allowed
                metadata = partition.committed_metadata or ""
                if code is Code.NONE and len(metadata.encode(errors="replace")) > _METADATA_BYTES_MAX:
                    code = Code.OFFSET_METADATA_TOO_LARGE
                if code is Code.NONE and partition.committed_offset < 0:
                    code = Code.INVALID_REQUEST
                if code is Code.NONE and self.positions.key_of(topic.name, partition.partition_index) is None:
                    code = Code.UNKNOWN_TOPIC_OR_PARTITION
                if code is Code.NONE:
                    held = HeldOffset(offset=partition.committed_offset, metadata=metadata)
                    commits.append(TopicCommit(self.positions.topics[topic.name], partition.partition_index, held))
                rows.append((partition.partition_index, code))
            codes.append((topic.name, rows))
        failed = await self._write(request.group_id, commits)
        response = OffsetCommitResponse
        return response(
            version=version,
            topics=[
                response.OffsetCommitResponseTopic(
                    name=name,
                    partitions=[
                        response.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
                            partition_index=index, error_code=failed if code is Code.NONE else code
                        )
                        for index, code in rows
                    ],
                )
                for name, rows in codes
            ],
        )

    async def delete(self, request: Message, version: int, refusal: Callable[[str], Code]) -> Message:
        """Forget offsets. `refusal` is the reason why those of a topic cannot be."""
        response = OffsetDeleteResponse
        if not self.knows(request.group_id):
            return response(version=version, error_code=Code.GROUP_ID_NOT_FOUND, topics=[])
        codes: list[tuple[str, list[tuple[int, Code]]]] = []
        commits: list[TopicCommit] = []
        for topic in request.topics:
            rows: list[tuple[int, Code]] = []
            for partition in topic.partitions:
                code = refusal(topic.name)
                if self.positions.key_of(topic.name, partition.partition_index) is None:
                    code = Code.UNKNOWN_TOPIC_OR_PARTITION
                if code is Code.NONE:
                    commits.append(TopicCommit(self.positions.topics[topic.name], partition.partition_index, None))
                rows.append((partition.partition_index, code))
            codes.append((topic.name, rows))
        failed = await self._write(request.group_id, commits)
        return response(
            version=version,
            error_code=failed,
            topics=[
                response.OffsetDeleteResponseTopic(
                    name=name,
                    partitions=[
                        response.OffsetDeleteResponseTopic.OffsetDeleteResponsePartition(
                            partition_index=index, error_code=code
                        )
                        for index, code in rows
                    ],
                )
                for name, rows in codes
            ],
        )

    def fetch(self, request: Message, version: int) -> Message:
        """The offsets of one group, or from version 8 on of several. Without topics: of all."""
        response = OffsetFetchResponse
        if version < 8:
            wanted = None if request.topics is None else _wanted(request.topics)
            topic_class = response.OffsetFetchResponseTopic
            topics = self._topics(request.group_id, wanted, topic_class, topic_class.OffsetFetchResponsePartition)
            return response(version=version, topics=topics, error_code=Code.NONE)
        group_class = response.OffsetFetchResponseGroup
        topic_class = group_class.OffsetFetchResponseTopics
        return response(
            version=version,
            groups=[
                group_class(
                    group_id=group.group_id,
                    topics=self._topics(
                        group.group_id,
                        None if group.topics is None else _wanted(group.topics),
                        topic_class,
                        topic_class.OffsetFetchResponsePartitions,
                    ),
                    error_code=Code.NONE,
                )
                for group in request.groups
            ],
        )

    def _topics(
        self,
        group_id: str,
        wanted: Mapping[str, Collection[int]] | None,
        topic_class: Message,
        partition_class: Message,
    ) -> list[Message]:
        held = self.held(group_id)
        return [
            topic_class(
                name=name,
                partitions=[
                    partition_class(
                        partition_index=partition,
                        committed_offset=found.offset,
                        committed_leader_epoch=_NO_EPOCH,
                        metadata=found.metadata,
                        error_code=Code.NONE,
                    )
                    for _, partition, found in rows
                ],
            )
            for name, rows in groupby(self._rows(held, wanted), key=lambda row: row[0])
        ]

    def _rows(
        self, held: Mapping[PositionKey, HeldOffset], wanted: Mapping[str, Collection[int]] | None
    ) -> Iterator[tuple[str, int, HeldOffset]]:
        if wanted is None:
            yield from self.positions.named(held)
            return
        for name, partitions in wanted.items():
            for partition in partitions:
                key = self.positions.key_of(name, partition)
                yield name, partition, _NO_OFFSET if key is None else held.get(key, _NO_OFFSET)

    async def _write(self, group_id: str, commits: list[TopicCommit]) -> Code:
        """The error of every commit if the journal failed. A client tries again after this one."""
        try:
            if commits:
                await self._journal.commit(group_id, commits)
        except JournalFailedError:
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE


def _wanted(topics: Iterable[Message]) -> dict[str, Collection[int]]:
    return {topic.name: tuple(dict.fromkeys(topic.partition_indexes)) for topic in topics}
