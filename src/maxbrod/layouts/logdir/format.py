"""The layout `logdir`, a broker's log directory: names of partitions and logs, and the small text files beside them.

The log directories of one broker, or of several, are read as an archive; a cold restore alone writes them. The text
files are read, and written as a broker writes them. A damaged file counts as absent, with a fault. A file is written
aside, synced and renamed, so that a broker finds either the old one or the new one. It gets the owner of the directory,
because the user who restores is often not the user who runs the broker.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from maxbrod.errors import CorruptDataError, RefusedError, UsageError
from maxbrod.layouts.foreign import Fault, ForeignSegment, Layout, RecordAccess, Survey
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.storage.beneath import sync_folder
from maxbrod.storage.interface import ObjectInfo, Storage
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from maxbrod.batch.headers import BatchHeaders


EPOCHS: Final = "leader-epoch-checkpoint"
METADATA: Final = "partition.metadata"
CLUSTER_METADATA: Final = "__cluster_metadata"
"""The log of the controllers. It is stored like a topic, and is not one."""

_FOLDER: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_ASIDE: Final = re.compile(r".+-\d+\.[0-9a-f]{32}-(?P<what>delete|future|stray)")
_LOG: Final = re.compile(r"(?P<base>\d{20})\.log(?:\.(?P<state>swap|cleaned|deleted))?")

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
META: Final = "meta.properties"
_TOPIC_ID: Final = re.compile(r"^topic_id:\s*(\S+)\s*$", re.MULTILINE)
_SETTING: Final = re.compile(r"^([a-z.]+)=(\S+)\s*$", re.MULTILINE)
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
_OFFSET_FILES: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED)
_NEW_SUFFIX: Final = ".maxbrod"


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
        return sorted(kept, key=lambda file: (file.base_offset, file.swap))


@dataclass(slots=True, kw_only=True)
class DirectoryTree:
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
    """True if it is named like a log of a partition."""
    parts = path.rsplit("/", 2)
    return len(parts) >= 2 and _FOLDER.fullmatch(parts[-2]) is not None and _LOG.fullmatch(parts[-1]) is not None


def arrange(listed: Iterable[ObjectInfo]) -> DirectoryTree:
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
    return DirectoryTree(folders=dict(sorted(copies.items())), aside=aside, roots=roots, metadata=metadata)


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


def read_offsets(storage: Storage, path: str, faults: list[Fault]) -> dict[TopicPartition, int]:
    """An offset for each partition of a log directory."""
    try:
        rows = _rows(_text(storage, path), 3)
        return {
            TopicPartition(topic=topic, partition=_number(partition)): _number(offset)
            for topic, partition, offset in rows
        }
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"{error.message}; it is ignored", fatal=False))
        return {}


def read_epochs(storage: Storage, path: str, faults: list[Fault]) -> list[tuple[int, int]]:
    """Leader epochs of a partition and the offset at which each began, both rising."""
    try:
        found = [(_number(epoch), _number(start)) for epoch, start in _rows(_text(storage, path), 2)]
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"{error.message}; the epochs are taken from the batches", fatal=False))
        return []
    return sorted(found)


def read_topic_id(storage: Storage, path: str, faults: list[Fault]) -> str | None:
    try:
        found = _TOPIC_ID.search(_text(storage, path))
        if found is None:
            raise CorruptDataError("it has no topic id")
        topic_id_of(found[1])
    except CorruptDataError as error:
        faults.append(Fault(path=path, message=f"{error.message}; it is ignored", fatal=False))
        return None
    return found[1]


def parse_settings(meta: bytes) -> dict[str, str]:
    """The properties of a log directory: the ids of its cluster, its node, and in later releases its own."""
    return dict(_SETTING.findall(meta.decode("utf-8", "replace")))


def _text(storage: Storage, path: str) -> str:
    # A crash may leave anything in a file. Bytes that are not text are found when the fields are parsed.
    return bytes(storage.get(path)).decode("utf-8", "replace")


def _rows(text: str, width: int) -> list[list[str]]:
    """The rows of a checkpoint: a version, their number, then as many lines. Brokers begin with an empty file."""
    if not text:
        return []
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or lines[0] != ["0"] or len(lines[1]) != 1:
        raise CorruptDataError("this is not a checkpoint of version 0")
    rows = lines[2:]
    if len(rows) != _number(lines[1][0]) or any(len(row) != width for row in rows):
        raise CorruptDataError(f"the checkpoint does not have the {lines[1][0]} rows that it announces")
    return rows


def _number(word: str) -> int:
    try:
        value = int(word)
    except ValueError as error:
        raise CorruptDataError(f"{word[:40]!r} is not a number") from error
    if not 0 <= value < 1 << 63:
        raise CorruptDataError(f"{value} can be neither an offset nor an epoch")
    return value


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """The file of leader epochs and the offset at which each began."""
    return _encode([f"{epoch} {start}" for epoch, start in epochs])


def read_all(directory: Path) -> dict[str, dict[TopicPartition, int]]:
    """Every checkpoint of offsets in a log directory. CorruptDataError: one cannot be read, so it cannot be updated."""
    storage, found = LocalStorage(directory), {}
    for name in _OFFSET_FILES:
        faults: list[Fault] = []
        path = directory / name
        # A broker leaves an empty file if it never had anything to record.
        found[name] = read_offsets(storage, name, faults) if path.exists() and path.stat().st_size else {}
        for fault in faults:
            raise CorruptDataError(
                fault.message,
                object_name=str(path),
                hint="start and stop its broker once: it rewrites the file",
            )
    return found


def note_logs(directory: Path, logs: Mapping[TopicPartition, tuple[int, int, int]]) -> None:
    """Records for each log its start offset, the base offset of its first segment, and its end. The logs are on disk.

    The entries of other partitions are kept.
    """
    for name, noted in read_all(directory).items():
        changed = {where: offset for where, offset in noted.items() if where not in logs}
        for where, (start, base, end) in logs.items():
            if name in {RECOVERY_POINTS, HIGH_WATERMARKS}:
                changed[where] = end
            elif name == LOG_STARTS and start > base:
                changed[where] = start
        if changed != noted:
            rows = [f"{where.topic} {where.partition} {offset}" for where, offset in sorted(changed.items())]
            replace_file(directory / name, _encode(rows))


def replace_file(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{path.name}{_NEW_SUFFIX}")
    write_file(aside, data, like=path if path.exists() else path.parent)
    aside.replace(path)
    sync_folder(path.parent)


def write_file(path: Path, data: bytes, *, like: Path) -> None:
    """Writes a file with the owner of `like`. It is on disk when this returns."""
    # Remove what an earlier attempt has left. A link of this name must not be followed.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        own_like(descriptor, like)
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def own_like(target: int | Path, like: Path) -> None:
    """Gives a file or a folder the owner of another."""
    owner = like.stat()
    found = os.fstat(target) if isinstance(target, int) else target.stat()
    if (found.st_uid, found.st_gid) != (owner.st_uid, owner.st_gid):
        os.chown(target, owner.st_uid, owner.st_gid)


def _encode(rows: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", str(len(rows)), *rows)).encode()


TAIL: Final = "uncommitted_tail"
CHECK_CRC: Final = "check_crc"
_NAMES_MAX: Final = 10_000


def _detect(storage: Storage) -> bool:
    # By names alone: the survey's module takes long to load.
    return any(is_log(info.path) for info in islice(storage.list(), _NAMES_MAX))


def _survey(storage: Storage, uncommitted_tail: str = "false", check_crc: str = "true") -> Survey:
    """The option `uncommitted_tail` includes records above the high watermark.

    `check_crc=false` leaves the checksums, and the middle of large files, to the reader of the segments: it raises
    CorruptDataError if there is damage, or if the middle is not what the ends let assume.
    """
    from maxbrod.layouts.logdir.survey import survey  # noqa: PLC0415 - takes long to load

    for name, flag in ((TAIL, uncommitted_tail), (CHECK_CRC, check_crc)):
        if flag not in {"true", "false"}:
            raise UsageError(f"{name} is true or false, not {flag!r}")
    return survey(storage, uncommitted_tail=uncommitted_tail == "true", check_crc=check_crc == "true")


def _refuse(storage: Storage, *_: object) -> NoReturn:
    raise RefusedError(
        "a broker's log directory is read, never written",
        object_name=storage.url,
        hint="choose another place, and another layout",
    )


def _records() -> RecordAccess:
    from maxbrod.layouts.logdir import reader  # noqa: PLC0415 - takes long to load

    return RecordAccess(read=reader.read, write=_refuse, check=reader.check)


def _read_batches(
    storage: Storage, segment: ForeignSegment, *, check_crc: bool = True
) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    from maxbrod.layouts.logdir import reader  # noqa: PLC0415 - takes long to load

    return reader.read_batches(storage, segment, check_crc=check_crc)


LAYOUT: Final = Layout(
    name="logdir",
    detect=_detect,
    look=_survey,
    choices=(TAIL, CHECK_CRC),
    publish=_refuse,
    records=_records,
    read_batches=_read_batches,
    losses=(),
)
