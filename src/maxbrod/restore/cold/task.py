"""One task that writes partitions into log directories: reads slices, checks them, and writes them in order.

Every attempt writes into folders of its own. Brokers ignore them until the driver puts them in place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

from maxbrod.batch.headers import NEWEST_MAGIC, BatchHeaders
from maxbrod.errors import MaxbrodError, RefusedError, naming
from maxbrod.layouts.kafka.format import Slice
from maxbrod.layouts.logdir.format import read_all
from maxbrod.layouts.logdir.target import (
    JOURNAL,
    Journal,
    Staged,
    TargetDirectory,
    discard_staged,
    finish,
    forget,
    look_at,
    read_journal,
    stage,
    staged_bytes,
    write_journal,
)
from maxbrod.layouts.logdir.writer import LogWriter, WrittenLog
from maxbrod.layouts.reader import read_logs
from maxbrod.model import TopicPartition
from maxbrod.storage.failures import translate_os
from maxbrod.storage.interface import Storage
from maxbrod.storage.stores import open_storage
from maxbrod.work.reach import Place

if TYPE_CHECKING:
    Placed = dict[tuple[Path, TopicPartition], WrittenLog]

_EPOCH: Final = slice(12, 16)
"""The place of the leader epoch in a batch of magic 2. The checksum covers only what follows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdItem:
    """One target partition, and the directories to write it to."""

    where: TopicPartition
    directories: tuple[str, ...]
    start: int
    """The start of its log."""
    end: int
    """The end of its log. No batch reaches beyond it."""
    epoch_max: int | None
    """Higher leader epochs are lowered to this one; None: they stay."""
    segment_bytes: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdWritten:
    """The outcome of an item: the staged folder in each directory, or why there is none."""

    where: TopicPartition
    folders: dict[str, str]
    log: WrittenLog | None
    batches_lowered: int = 0
    failure: MaxbrodError | None = None


def run_cold_task(place: Place, items: Sequence[ColdItem]) -> list[ColdWritten]:
    """Write partitions of the archive at `place`. An error in one of them is returned, and the others continue."""
    storage = open_storage(place.url, place.storage)
    with ThreadPoolExecutor(1) as ahead:
        return [_write(storage, item, ahead) for item in items]


def _write(storage: Storage, item: ColdItem, ahead: Executor) -> ColdWritten:
    folders: list[Path] = []
    try:
        with naming(str(item.where)):
            folders.extend(stage(Path(directory), item.where) for directory in item.directories)
            log, lowered = _write_log(storage, item, folders, ahead)
    except OSError as error:
        failure: MaxbrodError = translate_os(error, "write a log", str(item.where))
    except MaxbrodError as error:
        failure = error
    else:
        names = {str(path.parent): path.name for path in folders}
        return ColdWritten(where=item.where, folders=names, log=log, batches_lowered=lowered)
    for folder in folders:
        with suppress(OSError):
            shutil.rmtree(folder)
    return ColdWritten(where=item.where, folders={}, log=None, failure=failure)


def _write_log(storage: Storage, item: ColdItem, folders: Sequence[Path], ahead: Executor) -> tuple[WrittenLog, int]:
    writer = LogWriter(folders, start=item.start, segment_bytes=item.segment_bytes)
    lowered = 0
    try:
        for data, headers in _batches(storage, item, ahead):
            if item.epoch_max is None:
                writer.append(data, headers)
                continue
            high = np.flatnonzero((headers["leader_epoch"] > item.epoch_max) & (headers["magic"] == NEWEST_MAGIC))
            writer.append(*(_lowered(data, headers, high, item.epoch_max) if high.size else (data, headers)))
            lowered += len(high)
        # Aborted transactions that continue beyond what the archive holds of them.
        open_ended = [
            aborted
            for stored in item.slices
            for aborted in stored.aborted
            if aborted.last_offset >= stored.end_offset - 1
        ]
        return writer.finish(item.end, open_ended), lowered
    finally:
        writer.discard()


def _batches(storage: Storage, item: ColdItem, ahead: Executor) -> Iterator[tuple[NDArray[np.uint8], BatchHeaders]]:
    """The batches of the item. Every slice is read to its end, because only then is its digest checked."""
    for stored in item.slices:
        for data, headers in read_logs(storage, stored, ahead=ahead):
            kept = int(np.count_nonzero(headers.last_offset < item.end))
            if kept:
                yield data, headers if kept == len(headers) else headers.take(slice(kept))


def _lowered(
    data: NDArray[np.uint8], headers: BatchHeaders, rows: NDArray[np.intp], epoch: int
) -> tuple[NDArray[np.uint8], BatchHeaders]:
    changed = data.copy()
    places = headers.position[rows, None] + np.arange(_EPOCH.start, _EPOCH.stop)
    changed[places] = np.frombuffer(epoch.to_bytes(4, "big"), np.uint8)
    epochs = headers["leader_epoch"].copy()
    epochs[rows] = epoch
    return changed, replace(headers, fields={**headers.fields, "leader_epoch": epochs})


class Placing:
    """The directories of one restore, which holds their locks. The `with` removes what was staged and not placed."""

    def __init__(self, directories: Sequence[Path], command: str) -> None:
        self._directories, self._command = directories, command
        self.placed: Placed = {}
        self.resumed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for directory in self._directories:
            # What a journal names stays: the same command puts it in place.
            if not (directory / JOURNAL).exists():
                discard_staged(directory)

    def look(self) -> list[TargetDirectory]:
        """The directories as they are, or as they will be once interrupted journals are completed."""
        journals = self._journals()
        begun = {path: {staged.where: staged.folder for staged in journal.staged} for path, journal in journals.items()}
        found = [look_at(path, begun.get(path)) for path in self._directories]
        # What a killed restore staged without a journal is removed before anything is written.
        removed = {
            directory.path: staged_bytes(directory.path) for directory in found if directory.path not in journals
        }
        return [
            replace(directory, free_bytes=directory.free_bytes + removed.get(directory.path, 0)) for directory in found
        ]

    def begun(self) -> frozenset[tuple[Path, TopicPartition]]:
        """The partitions in journals of an interrupted restore by the same command. Changes nothing."""
        return frozenset(
            (directory, staged.where) for directory, journal in self._journals().items() for staged in journal.staged
        )

    def finish_begun(self) -> Mapping[tuple[Path, TopicPartition], WrittenLog]:
        """Complete the journals of such a restore, and remove what it staged without a journal."""
        for directory, journal in self._journals().items():
            self._add_placed(directory, finish(directory, journal))
            self.resumed = True
        for directory in self._directories:
            discard_staged(directory)
            with naming(str(directory)):
                read_all(directory)
        return dict(self.placed)

    def place(self, written: Sequence[ColdWritten]) -> None:
        """Put everything that was written in place: first all journals, then the moves.

        A journal is the commit point of its directory. After a crash the same command completes the directories with
        a journal, and writes the others again.
        """
        try:
            journals = self._journals()
            for directory in self._directories:
                earlier = journals.get(directory, Journal(command=self._command, staged=()))
                journals[directory] = replace(earlier, staged=(*earlier.staged, *_staged(directory, written)))
                write_journal(directory, journals[directory])
            for directory, journal in journals.items():
                self._add_placed(directory, finish(directory, journal))
            forget(self._directories)
        except OSError as error:
            raise translate_os(error, "put partitions in place", str(error.filename)) from error

    def _add_placed(self, directory: Path, done: Sequence[Staged]) -> None:
        self.placed.update({(directory, staged.where): staged.log for staged in done})

    def _journals(self) -> dict[Path, Journal]:
        """RefusedError: another command was interrupted here."""
        found = {}
        for directory in self._directories:
            journal = read_journal(directory)
            if journal is not None and journal.command != self._command:
                raise RefusedError(
                    "another restore into this directory was interrupted while it put partitions in place",
                    operation="restore",
                    object_name=str(directory),
                    hint=f"run that command again, or remove {JOURNAL} there",
                )
            if journal is not None:
                found[directory] = journal
        return found


def _staged(directory: Path, written: Sequence[ColdWritten]) -> list[Staged]:
    return [
        Staged(where=cold_written.where, folder=cold_written.folders[str(directory)], log=cold_written.log)
        for cold_written in written
        if cold_written.log is not None and str(directory) in cold_written.folders
    ]
