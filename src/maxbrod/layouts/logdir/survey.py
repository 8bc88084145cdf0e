"""The contents of log directories. Every log is scanned, several at a time: nothing else shows where a crash left it.

Without checksums, the two ends of a large log are enough (`scan_ends`).

Topics follow from the folders and from the cluster's metadata. Faults report where the two disagree: folders of topics
that were deleted or never known, partitions without a folder.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from maxbrod.bounds import count_partitions
from maxbrod.errors import RefusedError
from maxbrod.layouts.foreign import Fault, ForeignGap, ForeignSegment, ForeignTopic, Survey
from maxbrod.layouts.logdir.format import (
    CLUSTER_METADATA,
    META,
    DirectoryTree,
    PartitionFolder,
    arrange,
    read_cluster_id,
    read_directory_id,
)
from maxbrod.layouts.logdir.metadata_log import MetadataImage, read_metadata
from maxbrod.layouts.logdir.partition import Copy, Notes, join, load_copy
from maxbrod.layouts.logdir.transactions import TOPIC as STATES
from maxbrod.layouts.logdir.transactions import Fate, OpenTransaction, ProducerState, read_decisions
from maxbrod.layouts.offsets_topic import TOPIC as OFFSETS_TOPIC
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from maxbrod.storage.interface import Storage

NAME: Final = "logdir"
_FILES_AT_A_TIME: Final = 4
_SMALL: Final = frozenset({CLUSTER_METADATA, OFFSETS_TOPIC, STATES})
"""Topics that are read during the survey, whose checksums are therefore verified now."""
_LISTED: Final = 10


def survey(storage: Storage, *, uncommitted_tail: bool, check_crc: bool = True) -> Survey:
    tree = arrange(storage.list())
    faults = [
        Fault(path=path, message=f"its broker had put it aside ({what}); it is skipped", fatal=False)
        for path, what in sorted(tree.aside.items())
    ]
    notes = Notes(storage, tree, faults)
    segments: list[ForeignSegment] = []
    gaps: list[ForeignGap] = []
    positions: dict[TopicPartition, int] = {}
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        folders = [*tree.metadata, *(folder for found in tree.folders.values() for folder in found)]

        def load(folder: PartitionFolder) -> tuple[Copy, list[Fault]]:
            return load_copy(storage, folder, notes, check_crc=check_crc or folder.where.topic in _SMALL)

        read = dict(zip((folder.path for folder in folders), pool.map(load, folders), strict=True))
    faults += [fault for _, found in read.values() for fault in found]
    copies = {where: [read[folder.path][0] for folder in found] for where, found in tree.folders.items()}
    image = read_metadata(storage, [read[folder.path][0] for folder in tree.metadata], faults)
    topics = find_topics(copies, image, _directory_ids(storage, tree), faults)
    meant = {
        where: [copy for copy in found if copy.topic_id in {None, topics[where.topic].topic_id}]
        for where, found in copies.items()
    }
    coordinators = _Coordinators(storage, meant, topics, faults)
    for where, mine in meant.items():
        if not mine:
            continue
        decide = partial(coordinators.decide, where)
        joined = join(storage, where, mine, uncommitted_tail=uncommitted_tail, decide=decide)
        segments += joined.segments
        gaps += joined.gaps
        faults += joined.faults
        positions[where] = joined.end
    return Survey(
        layout=NAME,
        segments=tuple(segments),
        topics=topics,
        gaps=tuple(gaps),
        positions=positions,
        cluster_id=_cluster_id(storage, tree),
        cluster=None if image is None else image.cluster(),
        taken_at_ms=max((folder.modified_ms for folder in folders), default=None),
        faults=tuple(faults),
    )


class _Coordinators:
    """Decisions of coordinators about open transactions. Read on demand: most logs have no open transaction."""

    def __init__(
        self,
        storage: Storage,
        copies: Mapping[TopicPartition, Sequence[Copy]],
        topics: Mapping[str, ForeignTopic],
        faults: list[Fault],
    ) -> None:
        self._storage, self._copies, self._topics, self._faults = storage, copies, topics, faults

    def decide(self, where: TopicPartition, transaction: OpenTransaction) -> Fate:
        found = self._decisions.get(transaction.producer_id)
        if found is None:
            return Fate.UNKNOWN
        replicas = self._topics[where.topic].replicas[where.partition : where.partition + 1]
        all_copies = any(replicas) and len(self._copies[where]) >= len(replicas[0])
        return found.verdict(where, transaction.producer_epoch, all_copies=all_copies)

    @cached_property
    def _decisions(self) -> dict[int, ProducerState]:
        """Read to the end of the log: records above the watermark count, if an election would choose the copy."""
        partitions = [
            join(self._storage, where, copies, uncommitted_tail=True).segments
            for where, copies in self._copies.items()
            if where.topic == STATES and copies
        ]
        return read_decisions(self._storage, partitions, self._faults)


def _cluster_id(storage: Storage, tree: DirectoryTree) -> str | None:
    found = {root: read_cluster_id(storage, f"{root}{META}") for root, names in tree.roots.items() if META in names}
    ids = {cluster_id for cluster_id in found.values() if cluster_id is not None}
    if len(ids) > 1:
        raise RefusedError(
            f"these directories belong to several clusters: {', '.join(sorted(ids))}",
            object_name=storage.url,
            hint="put those of each cluster into a folder of its own",
        )
    return next(iter(ids), None)


def _directory_ids(storage: Storage, tree: DirectoryTree) -> Iterator[UUID]:
    for root, names in tree.roots.items():
        found = read_directory_id(storage, f"{root}{META}") if META in names else None
        if found is not None:
            yield found


def find_topics(
    copies: Mapping[TopicPartition, Sequence[Copy]],
    image: MetadataImage | None,
    directories: Iterable[UUID],
    faults: list[Fault],
) -> dict[str, ForeignTopic]:
    """Topics by name. `directories` are the ids of those here: a partition that no other can have is not lost."""
    names = {} if image is None else image.names()
    topics = {}
    for name, group in groupby(sorted(copies), key=lambda where: where.topic):
        found = list(group)
        mine = [copy for where in found for copy in copies[where]]
        topic_id = _choose(mine, names.get(name), faults)
        topics[name] = _topic(name, topic_id, found[-1].partition + 1, image)
    if image is not None:
        faults += _strays(copies, image, topics)
        here = frozenset(directories)
        for name, topic_id in sorted(names.items()):
            topics.setdefault(name, _topic(name, topic_id, 0, image))
            faults += _missing(name, topic_id, image, copies, here)
    return topics


def _choose(found: Sequence[Copy], known: str | None, faults: list[Fault]) -> str | None:
    """The id of a topic. Of two topics with one name, that in the metadata, otherwise the one written to last."""
    named = [copy for copy in found if copy.topic_id is not None]
    newest = max(named, key=lambda copy: copy.folder.modified_ms, default=None)
    chosen = None if newest is None else newest.topic_id
    if known is not None and any(copy.topic_id in {None, known} for copy in found):
        chosen = known
    for copy in named:
        if copy.topic_id != chosen:
            message = f"belongs to another topic of this name ({copy.topic_id}) and is skipped"
            faults.append(Fault(path=copy.folder.path, message=message, fatal=False))
    return chosen


def _topic(name: str, topic_id: str | None, count: int, image: MetadataImage | None) -> ForeignTopic:
    assigned = {} if image is None or topic_id is None else image.partitions.get(topic_id, {})
    if image is None or topic_id not in image.topics:
        return ForeignTopic(name=name, partition_count=count, topic_id=topic_id)
    counts = count_partitions(((name, number) for number in assigned), {name: count})
    replicas = tuple(assigned.get(number, ()) for number in range(counts[name]))
    return ForeignTopic(
        name=name,
        partition_count=len(replicas),
        replication_factor=min(map(len, assigned.values()), default=None),
        configs=image.configs_of(name),
        topic_id=topic_id,
        replicas=replicas,
    )


def _strays(
    copies: Mapping[TopicPartition, Sequence[Copy]], image: MetadataImage, topics: Mapping[str, ForeignTopic]
) -> Iterator[Fault]:
    """Faults for folders that a broker would put aside. They are read here, because they may be needed."""
    for where, found in copies.items():
        for copy in found:
            topic_id = copy.topic_id
            if topic_id is None or topic_id in image.topics or topic_id != topics[where.topic].topic_id:
                continue
            why = "the topic was deleted" if topic_id in image.removed else "the cluster's metadata does not know it"
            yield Fault(path=copy.folder.path, message=f"{why} ({topic_id}); it is read nevertheless", fatal=False)


def _missing(
    name: str,
    topic_id: str,
    image: MetadataImage,
    copies: Mapping[TopicPartition, Sequence[Copy]],
    here: frozenset[UUID],
) -> Iterator[Fault]:
    """Faults for partitions without a folder. A broker makes the folder as soon as it knows the partition."""
    lost: list[int] = []
    unwritten: list[int] = []
    for partition, replicas in sorted(image.partitions.get(topic_id, {}).items()):
        if TopicPartition(topic=name, partition=partition) not in copies:
            whole = replicas and all(
                image.log_dirs.get(replica) and image.log_dirs[replica] <= here for replica in replicas
            )
            (unwritten if whole else lost).append(partition)
    if lost:
        brokers = sorted({broker for partition in lost for broker in image.partitions[topic_id][partition]})
        message = f"no directory has {_named(name, lost)}, which brokers {_listed(brokers)} held"
        yield Fault(path=f"{CLUSTER_METADATA}-0", message=message)
    if unwritten:
        message = f"no directory has {_named(name, unwritten)}, though all of the brokers are here: never written to"
        yield Fault(path=f"{CLUSTER_METADATA}-0", message=message, fatal=False)


def _named(name: str, partitions: Sequence[int]) -> str:
    return f"partition{'s' * (len(partitions) > 1)} {_listed(partitions)} of {name}"


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _LISTED} more" if len(numbers) > _LISTED else ""
    return ", ".join(map(str, numbers[:_LISTED])) + more
