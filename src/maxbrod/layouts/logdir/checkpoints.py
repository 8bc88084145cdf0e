"""The small text files that a broker keeps beside its logs: read, and written as a broker writes them.

A damaged file counts as absent, with a fault. A file is written aside, synced and renamed, so that a broker finds
either the old one or the new one. It gets the owner of the directory, because the user who restores is often not the
user who runs the broker.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.foreign import Fault
from maxbrod.model import TopicPartition, topic_id_of
from maxbrod.storage.beneath import sync_folder
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from uuid import UUID

    from maxbrod.storage.interface import Storage

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANED: Final = "cleaner-offset-checkpoint"
META: Final = "meta.properties"

_TOPIC_ID: Final = re.compile(r"^topic_id:\s*(\S+)\s*$", re.MULTILINE)
_DIRECTORY_ID: Final = re.compile(r"^directory\.id=(\S+)\s*$", re.MULTILINE)
_CLUSTER_ID: Final = re.compile(r"^cluster\.id=(\S+)\s*$", re.MULTILINE)
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
_OFFSET_FILES: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED)
_ASIDE: Final = ".maxbrod"


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


def read_cluster_id(storage: Storage, path: str) -> str | None:
    found = _CLUSTER_ID.search(_text(storage, path))
    return None if found is None else found[1]


def read_directory_id(storage: Storage, path: str) -> UUID | None:
    """The id of a log directory. Only later releases have one."""
    found = _DIRECTORY_ID.search(_text(storage, path))
    try:
        return None if found is None else topic_id_of(found[1])
    except CorruptDataError:
        return None


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
    aside = path.with_name(f"{path.name}{_ASIDE}")
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
