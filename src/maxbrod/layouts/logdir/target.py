"""The log directory of a stopped broker as the target of a cold restore: its contents, its lock, its topics.

Writes nothing. The broker itself has made the folders of partitions. A link does not count as one: nothing is ever
written outside the directory.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from maxbrod.errors import RefusedError, UsageError
from maxbrod.layouts.logdir.format import (
    CLUSTER_METADATA,
    EPOCHS,
    META,
    METADATA,
    arrange,
    folder_of,
    read_epochs,
    read_topic_id,
)
from maxbrod.layouts.logdir.metadata_log import MetadataImage, read_metadata
from maxbrod.layouts.logdir.partition import Notes, load_copy
from maxbrod.model import TopicPartition
from maxbrod.storage.failures import translate_os
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from maxbrod.layouts.foreign import Fault


_OPERATION: Final = "look at a log directory"
_LOCK: Final = ".lock"
_EMPTY_LOG: Final = "00000000000000000000.log"
_SETTING: Final = re.compile(r"^(cluster\.id|node\.id|broker\.id|directory\.id)=(\S+)\s*$", re.MULTILINE)
_FOLDER: Final = f"{CLUSTER_METADATA}-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFolder:
    """The folder of a partition, as its broker has left it."""

    where: TopicPartition
    topic_id: str | None
    """None if the broker has recorded none."""
    held: str | None
    """A description of its contents; None if it is empty."""
    leader_epoch: int
    """The last one that the broker has recorded; -1 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDirectory:
    path: Path
    cluster_id: str | None
    node_id: int
    folders: Mapping[TopicPartition, TargetFolder]
    device: int
    """The file system of the directory, which others may share."""
    free_bytes: int


def look_at(path: Path, begun: Mapping[TopicPartition, str] | None = None) -> TargetDirectory:
    """Reads the state of a log directory. UsageError: it is not the log directory of a broker.

    `begun` are folders that are about to be renamed to those of partitions, which may be missing at the moment.
    """
    directory = path.resolve()
    if not (directory / META).is_file():
        raise UsageError(
            f"there is no {META}: this is not the log directory of a broker",
            operation=_OPERATION,
            object_name=str(path),
            hint="use a directory of log.dirs whose broker has run once",
        )
    settings: dict[str, str] = dict(_SETTING.findall((directory / META).read_text(errors="replace")))
    node_id = settings.get("node.id") or settings.get("broker.id") or ""
    if not node_id.isdecimal():
        raise UsageError(f"{META} has no node id", operation=_OPERATION, object_name=str(path))
    names = {
        **{where: name for where, name in (begun or {}).items() if (directory / name).is_dir()},
        **{where: str(where) for where in _partitions(directory)},
    }
    folders = (_folder(directory, where, name) for where, name in names.items())
    space = os.statvfs(directory)
    return TargetDirectory(
        path=directory,
        device=directory.stat().st_dev,
        free_bytes=space.f_bavail * space.f_frsize,
        cluster_id=settings.get("cluster.id"),
        node_id=int(node_id),
        folders={folder.where: folder for folder in folders},
    )


@contextmanager
def locked(directories: Sequence[Path]) -> Iterator[None]:
    """Within the block no broker can start on the directories. RefusedError: a broker or another restore is running."""
    with ExitStack() as undo:
        for directory in directories:
            undo.enter_context(_locked(directory))
        yield


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    path = directory / _LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise translate_os(error, _OPERATION, str(path)) from error
    try:
        if not _is_free(descriptor):
            raise RefusedError(
                "a broker runs on this directory, or another restore into it",
                operation=_OPERATION,
                object_name=str(directory),
                hint="stop it first: a running broker would not see what is written, and would overwrite it",
            )
        try:
            yield
        finally:
            # As with a broker, the file exists while the lock is held.
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    """Acquires a lock of the kind that Java uses. A file that its last holder has just removed does not count."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return os.fstat(descriptor).st_nlink > 0


def _partitions(directory: Path) -> list[TopicPartition]:
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    found = {name: folder_of(name) for name in names}
    return sorted(
        where
        for name, where in found.items()
        if where is not None and where.topic != CLUSTER_METADATA and str(where) == name
    )


def _folder(directory: Path, where: TopicPartition, name: str) -> TargetFolder:
    storage, path = LocalStorage(directory), directory / name
    faults: list[Fault] = []
    epochs = read_epochs(storage, f"{name}/{EPOCHS}", faults) if (path / EPOCHS).is_file() else []
    known = read_topic_id(storage, f"{name}/{METADATA}", faults) if (path / METADATA).is_file() else None
    return TargetFolder(
        where=where,
        topic_id=known,
        held=held_in(path),
        leader_epoch=max((epoch for epoch, _ in epochs), default=-1),
    )


def held_in(path: Path) -> str | None:
    """A description of the contents of a partition's folder; None if it is empty, as a broker has made it."""
    logs = sorted(path.glob("*.log"))
    size = sum(log.stat().st_size for log in logs)
    if size:
        return f"{size} bytes of log"
    if logs and logs[-1].name != _EMPTY_LOG:
        return f"an empty log that continues at offset {int(logs[-1].stem)}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """Facts about the topics of a cluster of stopped brokers, by name, from its own copies of the controllers' log."""

    ids: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """The brokers that hold each partition."""
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The settings of each topic, and the defaults of all topics."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)


def read_assignments(directories: Iterable[Path]) -> Assignments | None:
    """The assignments in the copy that reaches furthest. None: no directory has a readable copy."""
    found = [image for image in map(_read, directories) if image is not None]
    if not found:
        return None
    _, image = max(found, key=lambda one: one[0])
    names = image.names()
    defaults = image.cluster().defaults
    return Assignments(
        ids=names,
        replicas={
            TopicPartition(topic=name, partition=partition): replicas
            for name, topic_id in names.items()
            for partition, replicas in image.partitions.get(topic_id, {}).items()
        },
        configs={name: {**defaults, **image.configs_of(name)} for name in names},
        partition_counts={name: len(image.partitions.get(topic_id, ())) for name, topic_id in names.items()},
    )


def _read(directory: Path) -> tuple[int, MetadataImage] | None:
    """The state of a directory's copy, with the offset at which it ends."""
    storage = LocalStorage(directory)
    faults: list[Fault] = []
    tree = arrange(storage.list(_FOLDER))
    notes = Notes(storage, tree, faults)
    copies = [load_copy(storage, folder, notes)[0] for folder in tree.metadata]
    image = read_metadata(storage, copies, faults)
    return None if image is None else (max(copy.end for copy in copies), image)
