"""Replaces empty partitions by partitions that were written aside.

A partition is first written into a folder whose name marks it for deletion by the broker. If a broker starts after a
killed restore, it deletes such folders, and its directory is as before. When all partitions are written, a journal
records it, and then they are renamed. After a crash the next restore finds the journal and renames the rest.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod import strict_json
from maxbrod.errors import CorruptDataError
from maxbrod.layouts.logdir.format import METADATA, folder_of, note_logs, own_like, replace_file
from maxbrod.layouts.logdir.target import held_in
from maxbrod.layouts.logdir.writer import WrittenLog
from maxbrod.model import TopicPartition
from maxbrod.storage.beneath import sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

JOURNAL: Final = ".maxbrod-restore.json"
_FORMAT: Final = "maxbrod-cold-restore/1"
_MARK: Final = b"maxbrod".hex()
_NAME_MAX: Final = 255


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
