"""Topics of log directories: by the folders that there are, and by what the cluster's metadata knows of them. Pure.

What the two say of each other is told: folders of topics that were deleted or never known, partitions without a folder.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from maxbrod.layouts.foreign import Fault, ForeignTopic
from maxbrod.layouts.logdir.names import CLUSTER_METADATA
from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from maxbrod.layouts.logdir.copies import Copy
    from maxbrod.layouts.logdir.metadata_image import MetadataImage

_LISTED: Final = 10


def find_topics(
    copies: Mapping[TopicPartition, Sequence[Copy]],
    image: MetadataImage | None,
    directories: Iterable[UUID],
    faults: list[Fault],
) -> dict[str, ForeignTopic]:
    """`directories` are the ids of those that are here: what no other can have is not lost."""
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
    """Of a name that stands for two topics, the one that the metadata knows, else the one that was written to last."""
    named = [each for each in found if each.topic_id is not None]
    newest = max(named, key=lambda each: each.folder.modified_ms, default=None)
    wanted = None if newest is None else newest.topic_id
    if known is not None and any(each.topic_id in {None, known} for each in found):
        wanted = known
    for each in named:
        if each.topic_id != wanted:
            message = f"is of another topic of this name ({each.topic_id}) and is passed over"
            faults.append(Fault(path=each.folder.path, message=message, fatal=False))
    return wanted


def _topic(name: str, topic_id: str | None, count: int, image: MetadataImage | None) -> ForeignTopic:
    assigned = {} if image is None or topic_id is None else image.partitions.get(topic_id, {})
    if image is None or topic_id not in image.topics:
        return ForeignTopic(name=name, partition_count=count, topic_id=topic_id)
    replicas = tuple(assigned.get(number, ()) for number in range(max(count, *(each + 1 for each in assigned), 0)))
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
    """Folders that a broker would put aside. Here they are read: nobody knows that they are not wanted."""
    for where, found in copies.items():
        for each in found:
            topic_id = each.topic_id
            if topic_id is None or topic_id in image.topics or topic_id != topics[where.topic].topic_id:
                continue
            why = "the topic was deleted" if topic_id in image.removed else "the cluster's metadata does not know it"
            yield Fault(path=each.folder.path, message=f"{why} ({topic_id}); it is read all the same", fatal=False)


def _missing(
    name: str,
    topic_id: str,
    image: MetadataImage,
    copies: Mapping[TopicPartition, Sequence[Copy]],
    here: frozenset[UUID],
) -> Iterator[Fault]:
    """Partitions that no directory has. A broker makes the folder when it hears of the partition."""
    lost: list[int] = []
    unwritten: list[int] = []
    for partition, replicas in sorted(image.partitions.get(topic_id, {}).items()):
        if TopicPartition(topic=name, partition=partition) not in copies:
            whole = replicas and all(image.log_dirs.get(each) and image.log_dirs[each] <= here for each in replicas)
            (unwritten if whole else lost).append(partition)
    if lost:
        brokers = sorted({each for partition in lost for each in image.partitions[topic_id][partition]})
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
