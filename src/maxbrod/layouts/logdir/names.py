"""The names in a broker's log directory: partitions, their logs, and files that a broker would not load."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from maxbrod.storage.interface import ObjectInfo

EPOCHS: Final = "leader-epoch-checkpoint"
METADATA: Final = "partition.metadata"
CLUSTER_METADATA: Final = "__cluster_metadata"
"""The log of the controllers. It is stored like a topic, and is not one."""

_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_ASIDE: Final = re.compile(r".+-\d+\.[0-9a-f]{32}-(?P<what>delete|future|stray)")
_LOG: Final = re.compile(r"(?P<base>\d{20})\.log(?:\.(?P<state>swap|cleaned|deleted))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    path: str
    base_offset: int
    """The offset in its name."""
    size: int
    swap: bool = False
    """A file by which the cleaner, or a split, was about to replace the segments that it covers."""


@dataclass(slots=True, kw_only=True)
class PartitionFolder:
    """One broker's copy of a partition. `root` is the log directory, empty or ending in a slash."""

    where: TopicPartition
    root: str
    path: str
    files: list[LogFile] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    modified_ms: int = 0
    cleaned_from: int | None = None
    """The lowest segment that the cleaner was still writing."""

    def loaded(self) -> list[LogFile]:
        """The logs that a broker would load. Swap files of a cleaning that was still running are incomplete."""
        limit = self.cleaned_from
        kept = [file for file in self.files if not file.swap or limit is None or file.base_offset < limit]
        return sorted(kept, key=lambda each: (each.base_offset, each.swap))


@dataclass(slots=True, kw_only=True)
class Tree:
    folders: dict[TopicPartition, list[PartitionFolder]]
    aside: dict[str, str]
    """Folders that a broker has put aside, and why: delete, future or stray."""
    roots: dict[str, set[str]]
    """The names of the files directly in each log directory."""
    metadata: list[PartitionFolder]
    """Copies of the controllers' log. Those of dedicated controllers are in directories of their own."""


def folder_of(name: str) -> TopicPartition | None:
    """The partition whose folder has this name; None if it is not the folder of a partition."""
    found = _FOLDER.fullmatch(name)
    return None if found is None else TopicPartition(topic=found["topic"], partition=int(found["partition"]))


def is_log(path: str) -> bool:
    """Whether it is named like a log of a partition."""
    parts = path.rsplit("/", 2)
    return len(parts) >= 2 and _FOLDER.fullmatch(parts[-2]) is not None and _LOG.fullmatch(parts[-1]) is not None


def arrange(listed: Iterable[ObjectInfo]) -> Tree:
    """Every copy of every partition, by folder, of one log directory or of several below one root."""
    folders: dict[str, PartitionFolder] = {}
    aside: dict[str, str] = {}
    loose: dict[str, set[str]] = defaultdict(set)
    for info in listed:
        parent, _, name = info.path.rpartition("/")
        above, _, folder = parent.rpartition("/")
        if (put := _ASIDE.fullmatch(folder)) is not None:
            aside[parent] = put["what"]
        elif (found := _FOLDER.fullmatch(folder)) is not None:
            root = f"{above}/" if above else ""
            where = TopicPartition(topic=found["topic"], partition=int(found["partition"]))
            copy = folders.setdefault(parent, PartitionFolder(where=where, root=root, path=parent))
            _add(copy, info, name)
        else:
            loose[f"{parent}/" if parent else ""].add(name)
    copies: dict[TopicPartition, list[PartitionFolder]] = defaultdict(list)
    for copy in folders.values():
        # Any folder may be named like that of a partition. A real one has a log, or files that describe one.
        if copy.files or METADATA in copy.names or EPOCHS in copy.names:
            copies[copy.where].append(copy)
    roots = {copy.root: loose[copy.root] for found in copies.values() for copy in found}
    metadata = [copy for where in list(copies) if where.topic == CLUSTER_METADATA for copy in copies.pop(where)]
    return Tree(folders=dict(sorted(copies.items())), aside=aside, roots=roots, metadata=metadata)


def _add(copy: PartitionFolder, info: ObjectInfo, name: str) -> None:
    copy.names.add(name)
    found = _LOG.fullmatch(name)
    if found is None:
        return
    base_offset = int(found["base"])
    if found["state"] == "cleaned":
        copy.cleaned_from = base_offset if copy.cleaned_from is None else min(copy.cleaned_from, base_offset)
    elif found["state"] != "deleted":
        copy.modified_ms = max(copy.modified_ms, info.modified_ms)
        swap = found["state"] == "swap"
        copy.files.append(LogFile(path=info.path, base_offset=base_offset, size=info.size, swap=swap))
