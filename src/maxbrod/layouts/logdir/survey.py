"""What log directories hold: every log is gone over, because nothing else tells where a crash has left it.

Several files at a time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError
from maxbrod.layouts.foreign import Fault, Survey
from maxbrod.layouts.logdir.checkpoints import META, read_cluster_id, read_directory_id
from maxbrod.layouts.logdir.decisions import TOPIC as STATES
from maxbrod.layouts.logdir.decisions import Verdict, read_decisions
from maxbrod.layouts.logdir.loading import Notes, load_copy
from maxbrod.layouts.logdir.metadata_log import read_metadata
from maxbrod.layouts.logdir.names import CLUSTER_METADATA, arrange
from maxbrod.layouts.logdir.partition import join
from maxbrod.layouts.logdir.topics import find_topics
from maxbrod.layouts.offsets_topic import TOPIC as OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from maxbrod.layouts.foreign import ForeignGap, ForeignSegment, ForeignTopic
    from maxbrod.layouts.logdir.copies import Copy
    from maxbrod.layouts.logdir.decisions import Decision
    from maxbrod.layouts.logdir.names import Tree
    from maxbrod.layouts.logdir.transactions import OpenTransaction
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

NAME: Final = "logdir"
_FILES_AT_A_TIME: Final = 4
_SMALL: Final = frozenset({CLUSTER_METADATA, OFFSETS_TOPIC, STATES})
"""What is read here and now, so that nobody will look at its checksums later."""


def survey(storage: Storage, *, uncommitted_tail: bool, check_crc: bool = True) -> Survey:
    tree = arrange(storage.list())
    faults = [
        Fault(path=path, message=f"its broker had put it aside ({what}); it is passed over", fatal=False)
        for path, what in sorted(tree.aside.items())
    ]
    notes = Notes(storage, tree, faults)
    segments: list[ForeignSegment] = []
    gaps: list[ForeignGap] = []
    positions: dict[TopicPartition, int] = {}
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        folders = [*tree.metadata, *(each for found in tree.folders.values() for each in found)]
        read = dict(
            zip(
                (each.path for each in folders),
                pool.map(
                    lambda each: load_copy(storage, each, notes, check_crc=check_crc or each.where.topic in _SMALL),
                    folders,
                ),
                strict=True,
            )
        )
    faults += [fault for _, told in read.values() for fault in told]
    copies = {where: [read[each.path][0] for each in found] for where, found in tree.folders.items()}
    image = read_metadata(storage, [read[each.path][0] for each in tree.metadata], faults)
    topics = find_topics(copies, image, _directory_ids(storage, tree), faults)
    meant = {
        where: [each for each in found if each.topic_id in {None, topics[where.topic].topic_id}]
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
        taken_at_ms=max((each.modified_ms for each in folders), default=None),
        faults=tuple(faults),
    )


class _Coordinators:
    """What they had decided of open transactions. Read when the first one is met: most logs have none."""

    def __init__(
        self,
        storage: Storage,
        copies: Mapping[TopicPartition, Sequence[Copy]],
        topics: Mapping[str, ForeignTopic],
        faults: list[Fault],
    ) -> None:
        self._storage, self._copies, self._topics, self._faults = storage, copies, topics, faults

    def decide(self, where: TopicPartition, transaction: OpenTransaction) -> Verdict:
        found = self._decisions.get(transaction.producer_id)
        if found is None:
            return Verdict.UNKNOWN
        replicas = self._topics[where.topic].replicas[where.partition : where.partition + 1]
        all_copies = any(replicas) and len(self._copies[where]) >= len(replicas[0])
        return found.verdict(where, transaction.producer_epoch, all_copies=all_copies)

    @cached_property
    def _decisions(self) -> dict[int, Decision]:
        """To the end of the log: a copy that would be elected decides, also by what stands above the watermark."""
        partitions = [
            join(self._storage, where, copies, uncommitted_tail=True).segments
            for where, copies in self._copies.items()
            if where.topic == STATES and copies
        ]
        return read_decisions(self._storage, partitions, self._faults)


def _cluster_id(storage: Storage, tree: Tree) -> str | None:
    found = {root: read_cluster_id(storage, f"{root}{META}") for root, names in tree.roots.items() if META in names}
    ids = {each for each in found.values() if each is not None}
    if len(ids) > 1:
        raise RefusedError(
            f"these directories are of several clusters: {', '.join(sorted(ids))}",
            object_name=storage.url,
            hint="put those of one cluster under a folder of their own",
        )
    return next(iter(ids), None)


def _directory_ids(storage: Storage, tree: Tree) -> Iterator[UUID]:
    for root, names in tree.roots.items():
        found = read_directory_id(storage, f"{root}{META}") if META in names else None
        if found is not None:
            yield found
