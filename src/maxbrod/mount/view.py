"""What is mounted: the archives, the topics that clients see, and which node serves which partition.

A topic that was deleted and created again is served under its name in its newest incarnation. Older ones follow as
`name@1`, `name@2`, …, the oldest first. Such a name is none in Kafka, so no other topic can have it.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid5

import pyarrow as pa

from maxbrod.archive.archive import Archive
from maxbrod.archive.renames import Rename, unused_rule
from maxbrod.archive.selection import matches_nothing, select_topics
from maxbrod.batch.cuts import Cut
from maxbrod.catalog.catalog import Catalog
from maxbrod.errors import UsageError
from maxbrod.model import TopicPartition
from maxbrod.mount.logs import LOG_COLUMNS, ArchivedPartition, PartitionLog, partitions_in, topics_in
from maxbrod.mount.ranges import Ranges, scope_of

if TYPE_CHECKING:
    from maxbrod.kafka.state.cluster_state import TopicState

_ROWS_AT_ONCE: Final = 1 << 19
"""A catalog with this many rows is read once; of a larger one, the rows of a topic when it is first asked for."""
_NODE_ID: Final = 100_000
"""Node ids begin here: far from those that clusters use, so that no client takes a node for one of the source."""
NIL: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedNode:
    """One process of the mount."""

    node_id: int
    host: str
    port: int


def node_id(number: int) -> int:
    return _NODE_ID + number


class MountedArchive:
    """One archive at one version."""

    def __init__(
        self,
        number: int,
        archive: Archive,
        *,
        as_of: str | None,
        until_ms: int | None,
        held: Ranges | None = None,
    ) -> None:
        """`held`: the ends of an older version of the same archive, beyond which no log may go."""
        self.number, self.archive = number, archive
        self._until_ms = until_ms
        scope = scope_of(archive, as_of, held)
        self.moment, self.ranges = scope.moment, scope.ranges
        self.names, self.newest = scope.names, scope.newest
        self._ends_given = held is not None or scope.moment.as_of is not None
        self._lock = threading.Lock()
        self._rows: dict[str, pa.Table] | None = None
        """The rows of all topics of a small archive, once they were read."""
        self._divided: dict[str, dict[int, pa.Table]] = {}
        """The same by partition, of topics that were asked for."""

    @property
    def is_cut(self) -> bool:
        """True if logs end where a time says, which only their records tell."""
        return self._until_ms is not None

    def is_newest(self) -> bool:
        """True if nobody has changed the archive since. Other tools do not say so: then it is looked at again."""
        catalog = self.archive.catalog
        return catalog.is_newest() if isinstance(catalog, Catalog) else False

    @cached_property
    def states(self) -> dict[str, TopicState]:
        """The topics of the snapshot by id."""
        cluster = self.moment.cluster
        return {} if cluster is None else {topic.topic_id: topic for topic in cluster.topics}

    @cached_property
    def partition_counts(self) -> dict[str, int]:
        """The number of partitions of each topic id, also of those without records."""
        counts = {topic_id: state.partition_count for topic_id, state in self.states.items()}
        for topic_id, count in self.ranges.counts():
            counts[topic_id] = max(counts.get(topic_id, 0), count)
        return counts

    def logs(self, topic_id: str, name: str) -> dict[int, PartitionLog]:
        """The logs of a topic. Reads its rows; blocks."""
        count = self.partition_counts.get(topic_id, 0)
        rows = self._rows_of(topic_id)
        nothing = None
        found = {}
        for number in range(count):
            table = rows.get(number)
            if table is None:
                nothing = table = nothing if nothing is not None else _no_rows(self.archive)
            start, end = self.ranges.of(topic_id, number)
            limit = end if self._ends_given else None
            archived = ArchivedPartition(
                archive=self.number,
                storage=self.archive.storage,
                rows=table,
                start=start,
                end=end,
                cut=Cut(end_offset=limit, until_ms=self._until_ms),
                erasures=self.archive.erasures(),
            )
            found[number] = PartitionLog(TopicPartition(topic=name, partition=number), archived)
        return found

    def range_of(self, topic_id: str, number: int) -> tuple[int, int]:
        """The first offset and the end of a partition as `logs` would find them, but for a time that cuts them.

        Making a log for each of 100,000 partitions would take longer than anybody waits for a mount. Of a large archive
        the rows are not read for this: where a partition may have nothing but gaps, the range begins with them.
        """
        start, end = self.ranges.of(topic_id, number)
        if start < end and self.ranges.is_unsure(topic_id, number) and self.is_small:
            return (start, end) if number in self._rows_of(topic_id) else (end, end)
        return start, end

    def _rows_of(self, topic_id: str) -> dict[int, pa.Table]:
        if not self.is_small:
            rows = topics_in(self._read([topic_id])).get(topic_id)
            return {} if rows is None else partitions_in(rows)
        with self._lock:
            if self._rows is None:
                self._rows = topics_in(self._read(None))
            # A table for each of many partitions takes far more memory than their rows: only of topics that are read.
            found = self._divided.get(topic_id)
            if found is None:
                rows = self._rows.get(topic_id)
                found = self._divided[topic_id] = {} if rows is None else partitions_in(rows)
            return found

    @cached_property
    def is_small(self) -> bool:
        """True if all rows are read at once."""
        count = self.archive.catalog._files().row_count  # noqa: SLF001
        return count is not None and count <= _ROWS_AT_ONCE

    def _read(self, topic_ids: Sequence[str] | None) -> pa.Table:
        return self.archive.catalog.rows(
            columns=LOG_COLUMNS, topic_ids=topic_ids, as_of=self.moment.ends, revisions=self.moment.revisions
        )


def _no_rows(archive: Archive) -> pa.Table:
    return archive.catalog.rows(columns=LOG_COLUMNS, topic_ids=[])


@dataclass(slots=True)
class ServedTopic:
    name: str
    source: str
    """Its name in the archive."""
    archive: MountedArchive
    topic_id: str
    """That of the source."""
    served_id: UUID
    """That which clients see."""
    partition_count: int
    internal: bool
    state: TopicState | None
    _logs: dict[int, PartitionLog] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def logs(self) -> dict[int, PartitionLog] | None:
        """None while they are not loaded."""
        return self._logs

    @property
    def newest(self) -> bool:
        return self.topic_id in self.archive.newest

    def load(self) -> dict[int, PartitionLog]:
        """The logs of all partitions; reads rows the first time. Blocks."""
        with self._lock:
            if self._logs is None:
                self._logs = self.archive.logs(self.topic_id, self.name)
            return self._logs


class OffsetRanges(Mapping[int, tuple[int, int]]):
    """The first offset and the end of each partition of a topic, found when they are asked for."""

    def __init__(self, topic: ServedTopic) -> None:
        self._topic = topic

    def __getitem__(self, partition: int) -> tuple[int, int]:
        if not 0 <= partition < len(self):
            raise KeyError(partition)
        archive = self._topic.archive
        if self._topic.logs is not None or (archive.is_cut and archive.is_small):
            log = self._topic.load()[partition]
            return log.start, log.archived_end
        return archive.range_of(self._topic.topic_id, partition)

    def __contains__(self, partition: object) -> bool:
        # Without a look at the logs, which may have to be read first.
        return isinstance(partition, int) and 0 <= partition < len(self)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._topic.partition_count


class ClusterView:
    """The cluster as clients see it: its id, its nodes, its topics."""

    def __init__(self, cluster_id: str, topics: Iterable[ServedTopic]) -> None:
        self.cluster_id = cluster_id
        self.topics: dict[str, ServedTopic] = {topic.name: topic for topic in topics}
        self.by_id: dict[UUID, ServedTopic] = {
            topic.served_id: topic for topic in self.topics.values() if topic.served_id != NIL
        }
        self.nodes: tuple[ServedNode, ...] = ()

    def take_over(self, older: ClusterView) -> None:
        """Load the topics that the older view has loaded, with what is known of their slices. Blocks."""
        for name, topic in self.topics.items():
            before = older.topics.get(name)
            if before is None or before.logs is None:
                continue
            for partition, log in topic.load().items():
                if partition in before.logs:
                    log.take_over(before.logs[partition])

    def become(self, newer: ClusterView) -> None:
        """Show what another view shows, at the same nodes and under the same id."""
        self.topics, self.by_id = newer.topics, newer.by_id

    def leader(self, topic: str, partition: int) -> ServedNode:
        """The node that serves a partition. Partitions of a topic take turns."""
        return self.nodes[(zlib.crc32(topic.encode()) + partition) % len(self.nodes)]


def identity(parts: Sequence[str]) -> str:
    """A cluster id that is always the same for the same archives and choices, and never that of a source."""
    digest = hashlib.sha256("\n".join(["maxbrod mount", *parts]).encode()).digest()
    return urlsafe_b64encode(digest[:16]).rstrip(b"=").decode()


def view_of(
    archives: Sequence[MountedArchive],
    *,
    cluster_id: str,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    rename: Rename | None = None,
    with_ids: bool = False,
) -> ClusterView:
    """Choose topics. UsageError: two get the same name, or a word matches no topic."""
    names = {name: False for archive in archives for name in archive.names.values()}
    names |= {state.name: state.internal for archive in archives for state in archive.states.values()}
    chosen = select_topics(names, include, exclude)
    if chosen.wrong is not None:
        raise matches_nothing(chosen.wrong, names, whose="the mount")
    rules = rename or Rename()
    if (unused := next(iter(rules.unused(chosen.chosen)), None)) is not None:
        raise unused_rule(unused, chosen.chosen)
    found: dict[str, ServedTopic] = {}
    for archive in archives:
        for topic in _topics(archive, cluster_id, frozenset(chosen.chosen), rules, names, with_ids=with_ids):
            other = found.setdefault(topic.name, topic)
            if other is not topic:
                raise UsageError(
                    f"{other.source} of {other.archive.archive.url} and {topic.source} of {archive.archive.url} would "
                    f"both be {topic.name}",
                    hint="rename one with --rename, choose topics with --topic, or mount the archives one by one",
                )
    return ClusterView(cluster_id, found.values())


def _topics(
    archive: MountedArchive,
    cluster_id: str,
    chosen: frozenset[str],
    rename: Rename,
    internal: Mapping[str, bool],
    *,
    with_ids: bool,
) -> Iterator[ServedTopic]:
    older: dict[str, list[str]] = {}
    for topic_id, name in archive.names.items():
        if topic_id not in archive.newest:
            older.setdefault(name, []).append(topic_id)
    ranks = archive.moment.ranks
    for topic_id, name in archive.names.items():
        if name not in chosen:
            continue
        served = rename.apply(name)
        if topic_id not in archive.newest:
            order = sorted(older[name], key=lambda found: (ranks.get(found, -1), found))
            served = f"{served}@{order.index(topic_id) + 1}"
        yield ServedTopic(
            name=served,
            source=name,
            archive=archive,
            topic_id=topic_id,
            served_id=uuid5(NIL, f"{cluster_id}/{archive.number}/{topic_id}") if with_ids else NIL,
            partition_count=archive.partition_counts.get(topic_id, 0),
            internal=internal.get(name, False),
            state=archive.states.get(topic_id),
        )
