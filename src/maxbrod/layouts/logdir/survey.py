"""What log directories hold: every log is gone over once, with its checksums, because nothing else tells where a crash
has left it. Several files at a time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError
from maxbrod.layouts.foreign import Fault, ForeignTopic, Survey
from maxbrod.layouts.logdir.checkpoints import (
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META,
    read_cluster_id,
    read_epochs,
    read_offsets,
    read_topic_id,
)
from maxbrod.layouts.logdir.copies import Copy, lineage, swapped
from maxbrod.layouts.logdir.names import EPOCHS, METADATA, arrange
from maxbrod.layouts.logdir.partition import join
from maxbrod.layouts.logdir.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from maxbrod.layouts.foreign import ForeignGap, ForeignSegment
    from maxbrod.layouts.logdir.names import PartitionFolder, Tree
    from maxbrod.model import TopicPartition
    from maxbrod.storage.interface import Storage

NAME: Final = "logdir"
_FILES_AT_A_TIME: Final = 4


class _Notes:
    """What brokers have noted for all partitions of each log directory."""

    def __init__(self, storage: Storage, tree: Tree, faults: list[Fault]) -> None:
        self._noted = {
            name: {
                root: read_offsets(storage, f"{root}{name}", faults) if name in names else {}
                for root, names in tree.roots.items()
            }
            for name in (HIGH_WATERMARKS, LOG_STARTS, CLEANED)
        }

    def of(self, name: str, folder: PartitionFolder) -> int | None:
        return self._noted[name][folder.root].get(folder.where)


def survey(storage: Storage, *, uncommitted_tail: bool) -> Survey:
    tree = arrange(storage.list())
    faults = [
        Fault(path=path, message=f"its broker had put it aside ({what}); it is passed over", fatal=False)
        for path, what in sorted(tree.aside.items())
    ]
    notes = _Notes(storage, tree, faults)
    segments: list[ForeignSegment] = []
    gaps: list[ForeignGap] = []
    positions: dict[TopicPartition, int] = {}
    with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:
        folders = [each for found in tree.folders.values() for each in found]
        read = dict(
            zip(
                (each.path for each in folders),
                pool.map(lambda each: _copy(storage, each, notes), folders),
                strict=True,
            )
        )
    faults += [fault for _, told in read.values() for fault in told]
    copies = {where: [read[each.path][0] for each in found] for where, found in tree.folders.items()}
    topics = _topics(copies, faults)
    for where, found in copies.items():
        wanted = topics[where.topic].topic_id
        joined = join(
            storage,
            where,
            [each for each in found if each.topic_id in {None, wanted}] or found,
            uncommitted_tail=uncommitted_tail,
        )
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
        taken_at_ms=max((each.modified_ms for each in folders), default=None),
        faults=tuple(faults),
    )


def _copy(storage: Storage, folder: PartitionFolder, notes: _Notes) -> tuple[Copy, list[Fault]]:
    faults: list[Fault] = []
    logs = swapped([scan(storage, each) for each in folder.loaded()])
    logs.sort(key=lambda each: each.file.base_offset)
    noted = read_epochs(storage, f"{folder.path}/{EPOCHS}", faults) if EPOCHS in folder.names else []
    known = read_topic_id(storage, f"{folder.path}/{METADATA}", faults) if METADATA in folder.names else None
    end = max((each.end_offset for each in logs), default=0)
    copy = Copy(
        folder=folder,
        logs=tuple(logs),
        topic_id=known,
        epochs=lineage(noted, logs, end),
        high_watermark=notes.of(HIGH_WATERMARKS, folder),
        log_start=notes.of(LOG_STARTS, folder) or 0,
        cleaned=notes.of(CLEANED, folder) or 0,
    )
    return copy, faults


def _topics(copies: Mapping[TopicPartition, Sequence[Copy]], faults: list[Fault]) -> dict[str, ForeignTopic]:
    """Of a name that stands for two topics, the one that was written to last; what is left of the other is told."""
    by_name: dict[str, list[Copy]] = {}
    counts: dict[str, int] = {}
    for where, found in copies.items():
        by_name.setdefault(where.topic, []).extend(found)
        counts[where.topic] = max(counts.get(where.topic, 0), where.partition + 1)
    topics = {}
    for name, found in by_name.items():
        known = [each for each in found if each.topic_id is not None]
        newest = max(known, key=lambda each: each.folder.modified_ms, default=None)
        wanted = None if newest is None else newest.topic_id
        for each in known:
            if each.topic_id != wanted:
                message = f"is of another topic of this name ({each.topic_id}) and is passed over"
                faults.append(Fault(path=each.folder.path, message=message, fatal=False))
        topics[name] = ForeignTopic(name=name, partition_count=counts[name], topic_id=wanted)
    return topics


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
