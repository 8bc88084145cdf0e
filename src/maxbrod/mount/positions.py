"""Where consumer groups stand when a mount begins: the archive's committed offsets, under the names of the mount. Pure.

An offset belongs to one incarnation of a topic. One that was committed for another topic of the same name is no
position in this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from uuid import UUID

from maxbrod.kafka.groups import CLASSIC
from maxbrod.kafka.state.cluster_state import CommittedOffset, Group

PositionKey: TypeAlias = tuple[str, int]
"""The key of a `GroupTopic`, and a partition."""

PROTOCOL_TYPE: Final = "consumer"
_READABLE: Final = frozenset({CLASSIC, "consumer"})
"""The types of groups whose offsets a consumer can continue from. Share and streams groups need another coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOffset:
    """The offset at which a group continues. Its leader epoch is unknown: the source's has no meaning elsewhere."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic:
    """A mounted topic as groups see it: one incarnation, under the name that the mount gives it."""

    name: str
    source: str
    """Its name in the archive."""
    topic_id: str
    archive: str
    logs: Mapping[int, tuple[int, int]]
    """The first offset and the end of each partition, as mounted."""
    newest: bool = True
    """False for an older incarnation, which the mount shows under another name."""
    served_id: UUID | None = None
    """The id under which clients know the topic; None if they know names only."""

    @property
    def key(self) -> str:
        """Names the incarnation, whatever the mount calls it."""
        return f"{self.topic_id} {self.archive}"


@dataclass(frozen=True, slots=True)
class Positions:
    """The mounted topics, and where the archives' groups stand in them."""

    topics: Mapping[str, GroupTopic]
    """By mounted name."""
    groups: Mapping[str, Mapping[PositionKey, HeldOffset]]
    """By group id. A group may have no offset in these topics."""
    protocol_types: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[UUID, str] = field(init=False)
    """By the id that clients know."""

    def __post_init__(self) -> None:
        named = {topic.served_id: name for name, topic in self.topics.items() if topic.served_id is not None}
        object.__setattr__(self, "names", named)

    def key_of(self, topic: str, partition: int) -> PositionKey | None:
        """None if the mount has no such partition."""
        found = self.topics.get(topic)
        return None if found is None or partition not in found.logs else (found.key, partition)

    def named(self, offsets: Mapping[PositionKey, HeldOffset]) -> Iterator[tuple[str, int, HeldOffset]]:
        """Offsets in mounted topics by their names, in order."""
        for name in sorted(self.topics):
            topic = self.topics[name]
            for partition in sorted(topic.logs):
                if (found := offsets.get((topic.key, partition))) is not None:
                    yield name, partition, found


def archived_positions(topics: Iterable[GroupTopic], groups: Mapping[str, Iterable[Group]]) -> Positions:
    """`groups` has the groups of each archive, by the name that `GroupTopic.archive` has."""
    mounted = {topic.name: topic for topic in topics}
    by_archive: dict[str, list[GroupTopic]] = {}
    for topic in mounted.values():
        by_archive.setdefault(topic.archive, []).append(topic)
    found: dict[str, dict[PositionKey, HeldOffset]] = {}
    types: dict[str, str] = {}
    for archive, known in groups.items():
        by_id = {topic.topic_id: topic for topic in by_archive.get(archive, ())}
        by_name = {topic.source: topic for topic in by_id.values() if topic.newest}
        for group in known:
            if group.type not in _READABLE:
                continue
            types.setdefault(group.group_id, group.protocol_type or PROTOCOL_TYPE)
            offsets = found.setdefault(group.group_id, {})
            for committed in group.offsets or ():
                # Without an id the topic was gone or hidden when the group was read; its name is all that is known.
                topic_of = by_name.get(committed.topic) if committed.topic_id is None else by_id.get(committed.topic_id)
                if topic_of is not None and committed.partition in topic_of.logs:
                    # An offset of this very incarnation wins over one without an id.
                    key = (topic_of.key, committed.partition)
                    if key not in offsets or committed.topic_id is not None:
                        offsets[key] = _within(committed, *topic_of.logs[committed.partition])
    return Positions(mounted, found, types)


def _within(committed: CommittedOffset, start: int, end: int) -> HeldOffset:
    """The offset within the mounted log: from outside, a client would go where its reset policy says, and may skip."""
    return HeldOffset(offset=min(max(committed.offset, start), end), metadata=committed.metadata or "")
