"""The contents of log directories. Every log is scanned, several at a time: nothing else shows where a crash left it.

Without checksums, the two ends of a large log are enough (`scan_ends`).

Topics follow from the folders and from the cluster's metadata. Faults report where the two disagree: folders of topics
that were deleted or never known, partitions without a folder.

`__transaction_state` holds what coordinators had decided before they wrote the markers. A key is `version int16 ·
transactional id`. A value begins with its version; version 1 is flexible. The last record of a producer names the
partitions of the transaction in progress, and its state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Final
from uuid import UUID

from maxbrod.bounds import count_partitions
from maxbrod.errors import CorruptDataError, RefusedError, UnsupportedFormatError
from maxbrod.layouts.foreign import Fault, ForeignSegment, ForeignTopic, Survey
from maxbrod.layouts.internal_topics import COLUMNS, OFFSETS_TOPIC, RecordFields, apply_each
from maxbrod.layouts.logdir.format import CLUSTER_METADATA, META, PartitionFolder, arrange, parse_settings
from maxbrod.layouts.logdir.metadata_log import MetadataImage, read_metadata
from maxbrod.layouts.logdir.partition import Copy, OpenTransaction, join, load_copy, read_notes
from maxbrod.layouts.logdir.reader import Fate, read
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.storage.interface import Storage

NAME: Final = "logdir"
STATES: Final = "__transaction_state"
_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT = 1, 2, 3  # states of a transaction
_VALUE_VERSION_MAX: Final = 1
_CLIENT_VERSION_TAG: Final = 2
_EPOCH_FOR_EACH: Final = 2
"""From this version of transactions on, each transaction has its own producer epoch."""
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
    notes = read_notes(storage, tree, faults)
    metas = [storage.get(f"{root}{META}") for root, names in tree.roots.items() if META in names]
    settings = [parse_settings(bytes(meta)) for meta in metas]
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        folders = [*tree.metadata, *(folder for found in tree.folders.values() for folder in found)]

        def load(folder: PartitionFolder) -> tuple[Copy, list[Fault]]:
            return load_copy(storage, folder, notes, check_crc=check_crc or folder.where.topic in _SMALL)

        read = dict(zip((folder.path for folder in folders), pool.map(load, folders), strict=True))
    faults += [fault for _, found in read.values() for fault in found]
    copies = {where: [read[folder.path][0] for folder in found] for where, found in tree.folders.items()}
    image = read_metadata(storage, [read[folder.path][0] for folder in tree.metadata], faults)
    topics = find_topics(copies, image, _directory_ids(settings), faults)
    meant = {
        where: [copy for copy in found if copy.topic_id in {None, topics[where.topic].topic_id}]
        for where, found in copies.items()
    }
    decide = _decider(storage, meant, topics, faults)
    joined = {}
    for where, mine in meant.items():
        if mine:
            joined[where] = join(storage, mine, uncommitted_tail=uncommitted_tail, decide=partial(decide, where))
            faults += joined[where].faults
    return Survey(
        layout=NAME,
        segments=tuple(segment for found in joined.values() for segment in found.segments),
        topics=topics,
        gaps=tuple(gap for found in joined.values() for gap in found.gaps),
        positions={where: found.end for where, found in joined.items()},
        cluster_id=_cluster_id(storage, settings),
        cluster=None if image is None else image.cluster(),
        taken_at_ms=max((folder.modified_ms for folder in folders), default=None),
        faults=tuple(faults),
    )


def _decider(
    storage: Storage,
    copies: Mapping[TopicPartition, Sequence[Copy]],
    topics: Mapping[str, ForeignTopic],
    faults: list[Fault],
) -> Callable[[TopicPartition, OpenTransaction], Fate]:
    """The decisions of coordinators about open transactions. Read on demand: most logs have no open transaction."""

    @cache
    def decisions() -> dict[int, ProducerState]:
        # To the end of the log: records above the watermark count, if an election would choose the copy.
        states = [found for where, found in copies.items() if where.topic == STATES and found]
        partitions = [join(storage, found, uncommitted_tail=True).segments for found in states]
        return read_decisions(storage, partitions, faults)

    def decide(where: TopicPartition, transaction: OpenTransaction) -> Fate:
        found = decisions().get(transaction.producer_id)
        if found is None:
            return Fate.UNKNOWN
        replicas = topics[where.topic].replicas[where.partition : where.partition + 1]
        all_copies = any(replicas) and len(copies[where]) >= len(replicas[0])
        return found.verdict(where, transaction.producer_epoch, all_copies=all_copies)

    return decide


def _cluster_id(storage: Storage, settings: Iterable[Mapping[str, str]]) -> str | None:
    ids = {found["cluster.id"] for found in settings if "cluster.id" in found}
    if len(ids) > 1:
        raise RefusedError(
            f"these directories belong to several clusters: {', '.join(sorted(ids))}",
            object_name=storage.url,
            hint="put those of each cluster into a folder of its own",
        )
    return next(iter(ids), None)


def _directory_ids(settings: Iterable[Mapping[str, str]]) -> Iterator[UUID]:
    """The ids of log directories. Only later releases have them."""
    for found in settings:
        with suppress(CorruptDataError, KeyError):
            yield topic_id_of(found["directory.id"])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The state of the transaction that a producer had in progress."""

    producer_id: int
    producer_epoch: int
    status: int
    partitions: frozenset[TopicPartition]
    client_version: int

    def verdict(self, where: TopicPartition, producer_epoch: int, *, all_copies: bool) -> Fate:
        """The verdict on an open transaction whose batches have this epoch.

        The decision must be about this very transaction: the copy may lack its end, and the decision may be about the
        next one. Its own epoch proves it; otherwise, that no other copy of the partition exists.
        """
        preparing = self.status in {_PREPARE_COMMIT, _PREPARE_ABORT}
        own_epochs = self.client_version >= _EPOCH_FOR_EACH
        expected_epoch = producer_epoch + 1 if own_epochs and preparing else producer_epoch
        if where not in self.partitions or self.producer_epoch != expected_epoch or not (own_epochs or all_copies):
            return Fate.UNKNOWN
        if self.status == _PREPARE_COMMIT:
            return Fate.COMMITTED
        return Fate.ABORTED if preparing or self.status == _ONGOING else Fate.UNKNOWN


def read_decisions(
    storage: Storage, partitions: Sequence[Sequence[ForeignSegment]], faults: list[Fault]
) -> dict[int, ProducerState]:
    """Decisions by producer id. `partitions` are the segments of each partition of the topic, in order."""
    found: dict[int, ProducerState] = {}

    def apply(key: bytes, value: bytes | None) -> None:
        decision = decode_decision(key, value)
        if decision is not None:
            found[decision.producer_id] = decision

    for segments in filter(None, partitions):
        batches = (batch for segment in segments for batch in read(storage, segment, COLUMNS))
        for offset, why in apply_each(batches, apply, committed=True):
            message = f"{why}; this record of a transaction is skipped"
            faults.append(Fault(path=segments[0].path, message=message, offset=offset, fatal=False))
    return found


def decode_decision(key: bytes, value: bytes | None) -> ProducerState | None:
    """None for an expired producer, or a record of another kind."""
    if value is None or RecordFields(key).number("h") != 0:
        return None
    fields = RecordFields(value)
    version = fields.number("h")
    if not 0 <= version <= _VALUE_VERSION_MAX:
        raise UnsupportedFormatError(f"the state of a transaction has the version {version}")
    fields.flexible = version >= 1
    producer_id, producer_epoch = fields.number("q"), fields.number("h")
    fields.number("i")
    status = fields.number("b")
    partitions = set()
    for _ in range(fields.count_or_none() or 0):
        topic = fields.text()
        partitions |= {TopicPartition(topic=topic, partition=partition) for partition in fields.numbers("i")}
        fields.tags()
    fields.number("q"), fields.number("q")
    client_version = fields.tags().get(_CLIENT_VERSION_TAG, b"\0\0")
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        status=status,
        partitions=frozenset(partitions),
        client_version=int(struct.unpack(">h", client_version)[0]),
    )
