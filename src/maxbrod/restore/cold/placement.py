"""The last steps of a restore into log directories: staged partitions are put in place in all directories.

A journal in each directory names the staged partitions before the first of them is moved. So after a crash the same
command completes what was started, and a restore that wrote no journal has changed nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from maxbrod.errors import RefusedError, naming
from maxbrod.layouts.logdir.format import read_all
from maxbrod.layouts.logdir.installation import (
    JOURNAL,
    Journal,
    Staged,
    discard_staged,
    finish,
    forget,
    read_journal,
    staged_bytes,
    write_journal,
)
from maxbrod.layouts.logdir.target import TargetDirectory, look_at
from maxbrod.storage.failures import translate_os

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from maxbrod.layouts.logdir.writer import WrittenLog
    from maxbrod.model import TopicPartition
    from maxbrod.restore.cold.task import ColdWritten

    Placed = dict[tuple[Path, TopicPartition], WrittenLog]


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
        begun = {path: {each.where: each.folder for each in journal.staged} for path, journal in journals.items()}
        found = [look_at(path, begun.get(path)) for path in self._directories]
        # What a killed restore staged without a journal is removed before anything is written.
        removed = {each.path: staged_bytes(each.path) for each in found if each.path not in journals}
        return [replace(each, free_bytes=each.free_bytes + removed.get(each.path, 0)) for each in found]

    def begun(self) -> frozenset[tuple[Path, TopicPartition]]:
        """The partitions in journals of an interrupted restore by the same command. Changes nothing."""
        return frozenset(
            (directory, each.where) for directory, journal in self._journals().items() for each in journal.staged
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
        self.placed.update({(directory, each.where): each.log for each in done})

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
        Staged(where=each.where, folder=each.folders[str(directory)], log=each.log)
        for each in written
        if each.log is not None and str(directory) in each.folders
    ]
