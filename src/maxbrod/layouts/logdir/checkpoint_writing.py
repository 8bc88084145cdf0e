"""The small text files beside the logs, as a broker writes them: the other way round of `checkpoints`.

A file is written aside, synced and renamed, so that a broker finds the old one or the new one, and belongs to whom the
directory belongs: whoever restores is often not who runs the broker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.logdir.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, read_offsets
from maxbrod.storage.beneath import sync_folder
from maxbrod.storage.local import LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from maxbrod.layouts.foreign import Fault
    from maxbrod.model import TopicPartition

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
_ALL: Final = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED)
_ASIDE: Final = ".maxbrod"


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Leader epochs and the offset at which each began."""
    return _encode([f"{epoch} {start}" for epoch, start in epochs])


def read_all(directory: Path) -> dict[str, dict[TopicPartition, int]]:
    """Every checkpoint of offsets in a log directory. CorruptDataError: one cannot be read, so it cannot be kept."""
    storage, found = LocalStorage(directory), {}
    for name in _ALL:
        faults: list[Fault] = []
        path = directory / name
        # A broker leaves an empty one where it never had anything to note.
        found[name] = read_offsets(storage, name, faults) if path.exists() and path.stat().st_size else {}
        for fault in faults:
            raise CorruptDataError(
                fault.message,
                object_name=str(path),
                hint="let its broker start and stop once: it writes the file anew",
            )
    return found


def note_logs(directory: Path, logs: Mapping[TopicPartition, tuple[int, int, int]]) -> None:
    """Notes of each log where it begins, where its first segment does, and where it ends; all of it is on the disk.

    Other partitions stay as they are noted.
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
    """A file that is on the disk when this returns, owned as `like` is."""
    # What an earlier attempt left goes first: a link of this name is not written through.
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
    """Give a file, or a folder, the owner of another."""
    wanted = like.stat()
    found = os.fstat(target) if isinstance(target, int) else target.stat()
    if (found.st_uid, found.st_gid) != (wanted.st_uid, wanted.st_gid):
        os.chown(target, wanted.st_uid, wanted.st_gid)


def _encode(rows: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", str(len(rows)), *rows)).encode()
