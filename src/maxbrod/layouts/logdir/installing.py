"""Puts partitions that were written aside into the places of empty ones.

A partition is written into a folder of a name that brokers take for one that waits to be deleted: should a broker start
on what a killed restore has left, it clears that away, and its directory is as it was. When all are written, a journal
says so, and then they are renamed. Whoever comes after a crash finds the journal and renames the rest.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from maxbrod.errors import CorruptDataError
from maxbrod.layouts.logdir.checkpoints import note_logs, own_like, replace_file
from maxbrod.layouts.logdir.log_writing import WrittenLog
from maxbrod.layouts.logdir.names import METADATA, folder_of
from maxbrod.layouts.logdir.target import held_in
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
    """A partition that is written and not yet in its place."""

    where: TopicPartition
    folder: str
    log: WrittenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """`command` is whose it is: another one does not go on with it."""

    command: str
    staged: tuple[Staged, ...]


def stage(directory: Path, where: TopicPartition) -> Path:
    """A new folder for a partition, with the topic's id as the broker has noted it."""
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
    """What removing it would free."""
    return sum(each.stat().st_size for folder in _aside_in(directory) for each in folder.iterdir())


def _aside_in(directory: Path) -> list[Path]:
    found = sorted(directory.glob(f"*.{_MARK}*-delete"))
    return [each for each in found if each.is_dir() and not each.is_symlink()]


def read_journal(directory: Path) -> Journal | None:
    path = directory / JOURNAL
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text())
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
    """From here on it is done or will be. Every folder of the journal is on the disk."""
    document = {"format": _FORMAT, "command": journal.command, "staged": [asdict(each) for each in journal.staged]}
    replace_file(directory / JOURNAL, json.dumps(document, sort_keys=True).encode())


def finish(directory: Path, journal: Journal) -> tuple[Staged, ...]:
    """Renames what the journal names, or what is left of it. Those that stand in their places in the end.

    One that a broker has cleared away meanwhile is not among them.
    """
    done = []
    for each in journal.staged:
        place, folder = directory / str(each.where), directory / each.folder
        # A broker may have run in between: then it has begun to clear the folder away, or somebody has produced.
        if _holds(folder, each.log) and held_in(place) is None:
            if place.exists():
                place.rename(directory / _aside(each.where))
            folder.rename(place)
        if _holds(place, each.log):
            done.append(each)
    sync_folder(directory)
    note_logs(directory, {each.where: (each.log.start, each.log.base, each.log.end) for each in done})
    discard_staged(directory)
    return tuple(done)


def forget(directories: Sequence[Path]) -> None:
    """The last step, when all directories are done."""
    for directory in directories:
        (directory / JOURNAL).unlink(missing_ok=True)
        sync_folder(directory)


def _holds(place: Path, log: WrittenLog) -> bool:
    """Whether it has what was written, and perhaps more by now."""
    return (place / f"{log.end:020d}.log").is_file() and sum(
        each.stat().st_size for each in place.glob("*.log")
    ) >= log.bytes


def _aside(where: TopicPartition) -> str:
    """As a broker names what it is about to delete. Ours are told from its own by the first half of the number."""
    suffix = f"-{where.partition}.{_MARK}{uuid.uuid4().hex[len(_MARK) :]}-delete"
    return f"{where.topic[: _NAME_MAX - len(suffix)]}{suffix}"


def _staged(values: dict[str, Any]) -> Staged:
    where, folder = TopicPartition(**values["where"]), str(values["folder"])
    # Nothing leads out of the directory, whoever has written the journal.
    if folder_of(str(where)) != where or "/" in folder or not folder.endswith("-delete"):
        raise ValueError(folder)
    return Staged(where=where, folder=folder, log=WrittenLog(**values["log"]))
