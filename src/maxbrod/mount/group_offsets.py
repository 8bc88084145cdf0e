"""The offsets of groups on a mount: the archive's, and over them what was committed here.

Answers the requests that read, commit and delete them.

A leader epoch is never given out: the one that was committed with belongs to a log that the mount does not have, and a
consumer that moves to the restored cluster would be told of a truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final, TypeAlias
from uuid import UUID

from kafka.protocol.consumer import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse

from maxbrod.kafka.wire.connection import Message
from maxbrod.kafka.wire.error_codes import Code
from maxbrod.mount.journal import CommitJournal, JournalFailedError, TopicCommit
from maxbrod.mount.positions import HeldOffset, PositionKey, Positions

_METADATA_BYTES_MAX: Final = 4096
_GROUPS_MAX: Final = 20_000
_NO_OFFSET: Final = HeldOffset(offset=-1)
_NO_EPOCH: Final = -1
_BY_ID: Final = 10
"""The first version that has ids of topics in place of their names."""
_Shown: TypeAlias = str | UUID
"""A topic as a message has it, by its name or by its id."""
_Row: TypeAlias = tuple[_Shown, int, HeldOffset, Code]


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
        codes: list[tuple[_Shown, list[tuple[int, Code]]]] = []
        commits: list[TopicCommit] = []
        if (
            allowed is Code.NONE
            and not self.knows(request.group_id)
            and len(self._journal.state.offsets) >= _GROUPS_MAX
        ):
            allowed = Code.GROUP_MAX_SIZE_REACHED
        for topic in request.topics:
            shown = _shown(topic, version)
            name = self._name(shown)
            rows: list[tuple[int, Code]] = []
            for partition in topic.partitions:
                code = allowed
                metadata = partition.committed_metadata or ""
                if code is Code.NONE and len(metadata.encode(errors="replace")) > _METADATA_BYTES_MAX:
                    code = Code.OFFSET_METADATA_TOO_LARGE
                if code is Code.NONE and partition.committed_offset < 0:
                    code = Code.INVALID_REQUEST
                if code is Code.NONE:
                    code = self._unknown(name, partition.partition_index)
                if code is Code.NONE and name is not None:
                    held = HeldOffset(offset=partition.committed_offset, metadata=metadata)
                    commits.append(TopicCommit(self.positions.topics[name], partition.partition_index, held))
                rows.append((partition.partition_index, code))
            codes.append((shown, rows))
        failed = await self._write(request.group_id, commits)
        response = OffsetCommitResponse
        return response(
            version=version,
            topics=[
                response.OffsetCommitResponseTopic(
                    **_field(shown),
                    partitions=[
                        response.OffsetCommitResponseTopic.OffsetCommitResponsePartition(
                            partition_index=index, error_code=failed if code is Code.NONE else code
                        )
                        for index, code in rows
                    ],
                )
                for shown, rows in codes
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
            topic_class = response.OffsetFetchResponseTopic
            partition_class = topic_class.OffsetFetchResponsePartition
            topics = self._topics(request.group_id, request.topics, version, topic_class, partition_class)
            return response(version=version, topics=topics, error_code=Code.NONE)
        group_class = response.OffsetFetchResponseGroup
        topic_class = group_class.OffsetFetchResponseTopics
        partition_class = topic_class.OffsetFetchResponsePartitions
        return response(
            version=version,
            groups=[
                group_class(
                    group_id=group.group_id,
                    topics=self._topics(group.group_id, group.topics, version, topic_class, partition_class),
                    error_code=Code.NONE,
                )
                for group in request.groups
            ],
        )

    def _topics(
        self,
        group_id: str,
        topics: Iterable[Message] | None,
        version: int,
        topic_class: Message,
        partition_class: Message,
    ) -> list[Message]:
        held = self.held(group_id)
        rows = self._all(held, version) if topics is None else self._wanted(held, topics, version)
        return [
            topic_class(
                **_field(shown),
                partitions=[
                    partition_class(
                        partition_index=partition,
                        committed_offset=found.offset,
                        committed_leader_epoch=_NO_EPOCH,
                        metadata=found.metadata,
                        error_code=code,
                    )
                    for _, partition, found, code in of_topic
                ],
            )
            for shown, of_topic in groupby(rows, key=lambda row: row[0])
        ]

    def _all(self, held: Mapping[PositionKey, HeldOffset], version: int) -> Iterator[_Row]:
        for name, partition, found in self.positions.named(held):
            served_id = self.positions.topics[name].served_id
            yield (name if version < _BY_ID or served_id is None else served_id), partition, found, Code.NONE

    def _wanted(
        self, held: Mapping[PositionKey, HeldOffset], topics: Iterable[Message], version: int
    ) -> Iterator[_Row]:
        wanted = {_shown(topic, version): tuple(dict.fromkeys(topic.partition_indexes)) for topic in topics}
        for shown, partitions in wanted.items():
            name = self._name(shown)
            for partition in partitions:
                key = None if name is None else self.positions.key_of(name, partition)
                # A partition that there is not has no offset, as with Kafka; an id that there is not is an error.
                code = Code.UNKNOWN_TOPIC_ID if name is None else Code.NONE
                yield shown, partition, _NO_OFFSET if key is None else held.get(key, _NO_OFFSET), code

    def _name(self, shown: _Shown) -> str | None:
        """The mounted name of a topic; None: no topic has this id."""
        return shown if isinstance(shown, str) else self.positions.names.get(shown)

    def _unknown(self, name: str | None, partition: int) -> Code:
        """The error of a partition that the mount does not have."""
        if name is None:
            return Code.UNKNOWN_TOPIC_ID
        return Code.UNKNOWN_TOPIC_OR_PARTITION if self.positions.key_of(name, partition) is None else Code.NONE

    async def _write(self, group_id: str, commits: list[TopicCommit]) -> Code:
        """The error of every commit if the journal failed. A client tries again after this one."""
        try:
            if commits:
                await self._journal.commit(group_id, commits)
        except JournalFailedError:
            return Code.COORDINATOR_NOT_AVAILABLE
        return Code.NONE


def _shown(topic: Message, version: int) -> _Shown:
    shown: _Shown = topic.name if version < _BY_ID else topic.topic_id
    return shown


def _field(shown: _Shown) -> dict[str, _Shown]:
    return {"name" if isinstance(shown, str) else "topic_id": shown}
