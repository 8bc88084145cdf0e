"""The log directory of a stopped broker as the target of a cold restore: its contents, its lock, its topics; and the
replacement of its empty partitions by partitions that were written aside.

The broker itself has made the folders of partitions. A link does not count as one: nothing is ever written outside the
directory.

A partition is first written into a folder whose name marks it for deletion by the broker. If a broker starts after a
killed restore, it deletes such folders, and its directory is as before. When all partitions are written, a journal
records it, and then they are renamed. After a crash the next restore finds the journal and renames the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError, RefusedError, UsageError
from maxbrod.layouts.foreign import Fault
from maxbrod.layouts.logdir.format import (
    CLUSTER_METADATA,
    EPOCHS,
    META,
    METADATA,
    arrange,
    folder_of,
    note_logs,
    own_like,
    parse_settings,
    read_epochs,
    read_topic_id,
    replace_file,
)
from maxbrod.layouts.logdir.metadata_log import MetadataImage, read_metadata
from maxbrod.layouts.logdir.partition import load_copy, read_notes
from maxbrod.layouts.logdir.writer import WrittenLog
from maxbrod.model import TopicPartition
from maxbrod.storage.beneath import sync_folder
from maxbrod.storage.failures import translate_os
from maxbrod.storage.local import LocalStorage

_OPERATION: Final = "look at a log directory"
_LOCK: Final = ".lock"
_EMPTY_LOG: Final = "00000000000000000000.log"
JOURNAL: Final = ".maxbrod-restore.json"
_FORMAT: Final = "maxbrod-cold-restore/1"
_MARK: Final = b"maxbrod".hex()
_NAME_MAX: Final = 255


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
    settings = parse_settings((directory / META).read_bytes())
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
    _, image = max(found, key=lambda copy: copy[0])
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
    tree = arrange(storage.list(f"{CLUSTER_METADATA}-0"))
    notes = read_notes(storage, tree, faults)
    copies = [load_copy(storage, folder, notes)[0] for folder in tree.metadata]
    image = read_metadata(storage, copies, faults)
    return None if image is None else (max(copy.end for copy in copies), image)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A partition that is written and not yet renamed."""

    where: TopicPartition
    folder: str
    log: WrittenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The partitions to rename. `command` identifies the restore: another one does not resume it."""

    command: str
    staged: tuple[Staged, ...]


def stage(directory: Path, where: TopicPartition) -> Path:
    """Makes a new folder for a partition, with the topic id that the broker has recorded."""
    place = directory / str(where)
    folder = directory / _aside(where)
    folder.mkdir(mode=place.stat().st_mode & 0o777)
    own_like(folder, place)
    if (place / METADATA).is_file():
        shutil.copyfile(place / METADATA, folder / METADATA)
        own_like(folder / METADATA, place / METADATA)
    return folder


def discard_staged(directory: Path) -> None:
    """Removes what was written aside and is in no journal."""
    for folder in _aside_in(directory):
        shutil.rmtree(folder)


def staged_bytes(directory: Path) -> int:
    """The bytes that `discard_staged` would free."""
    return sum(path.stat().st_size for folder in _aside_in(directory) for path in folder.iterdir())


def _aside_in(directory: Path) -> list[Path]:
    found = sorted(directory.glob(f"*.{_MARK}*-delete"))
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def read_journal(directory: Path) -> Journal | None:
    path = directory / JOURNAL
    if not path.exists():
        return None
    try:
        document = strict_json.parse(path.read_text())
        if document["format"] != _FORMAT:
            raise ValueError(document["format"])
        return Journal(command=document["command"], staged=tuple(map(_staged, document["staged"])))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            "the journal of a restore cannot be read",
            object_name=str(path),
            hint="delete the topics, create them again, and remove this file",
        ) from error


def write_journal(directory: Path, journal: Journal) -> None:
    """The commit point: from here on the restore is completed, if need be by the next run. All folders are on disk."""
    document = {"format": _FORMAT, "command": journal.command, "staged": [asdict(staged) for staged in journal.staged]}
    replace_file(directory / JOURNAL, json.dumps(document, sort_keys=True).encode())


def finish(directory: Path, journal: Journal) -> tuple[Staged, ...]:
    """Renames the partitions of the journal, or the rest of them, and returns those that are in place.

    A partition that a broker has deleted in the meantime is not among them.
    """
    done = []
    for staged in journal.staged:
        place, folder = directory / str(staged.where), directory / staged.folder
        # A broker may have run in between. Then it has begun to delete the folder, or the place has new records.
        if _holds(folder, staged.log) and held_in(place) is None:
            # After a crash between the two renames the place is missing, and the next run does the second one only.
            if place.exists():
                place.rename(directory / _aside(staged.where))
            folder.rename(place)
        if _holds(place, staged.log):
            done.append(staged)
    # The renames must be durable first: a broker does not read logs up to their recovery point again.
    sync_folder(directory)
    note_logs(directory, {staged.where: (staged.log.start, staged.log.base, staged.log.end) for staged in done})
    discard_staged(directory)
    return tuple(done)


def forget(directories: Sequence[Path]) -> None:
    """Removes the journals. The last step, when all directories are done."""
    for directory in directories:
        (directory / JOURNAL).unlink(missing_ok=True)
        sync_folder(directory)


def _holds(place: Path, log: WrittenLog) -> bool:
    """True if a folder has what was written, and perhaps more by now."""
    return (place / f"{log.end:020d}.log").is_file() and sum(
        path.stat().st_size for path in place.glob("*.log")
    ) >= log.bytes


def _aside(where: TopicPartition) -> str:
    """A name that a broker uses for a folder to delete. The first half of the number marks it as ours."""
    suffix = f"-{where.partition}.{_MARK}{uuid.uuid4().hex[len(_MARK) :]}-delete"
    return f"{where.topic[: _NAME_MAX - len(suffix)]}{suffix}"


def _staged(values: dict[str, Any]) -> Staged:
    where, folder = TopicPartition(**values["where"]), str(values["folder"])
    # A forged journal must not lead out of the directory.
    if folder_of(str(where)) != where or "/" in folder or not folder.endswith("-delete"):
        raise ValueError(folder)
    return Staged(where=where, folder=folder, log=WrittenLog(**values["log"]))
