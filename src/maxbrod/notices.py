"""Notices of a run to the user, and the exit code and verdict that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, gravest

_VERDICTS: Final = {EXIT_DONE: "complete", EXIT_FAILED: "failed", EXIT_CORRUPT: "corrupt data found"}

KINDS: Final = {
    "clock": "this machine's clock is behind the end of the newest run",
    "corrupt": "damaged data: a batch with a wrong checksum at the source, or a damaged or lost object",
    "damaged": "data of another tool's archive cannot be read",
    "deleted": "the topic was deleted while it was read; what was read is kept",
    "different": "source and target of a conversion differ",
    "empty": "the target's layout has no place for an empty topic or partition",
    "failed": "a partition could not be read or written to its end",
    "frozen": "objects are in an archive class of their store, and must be brought back before they can be read",
    "generation": "a generation of a compacted topic began, became active, was dropped, or could not be read further",
    "hidden": "topics that were asked for, or may have been, are hidden from this user, or there are fewer than "
    "--min-topics",
    "incarnation": "the archive has several topics of one name, and the target's layout has a place for one",
    "ledger": "a document of the ledger is damaged: what its commit put out of use may be in the catalog again",
    "missing": "a named topic does not exist, or a pattern matches none",
    "not captured": "a part of the cluster's state could not be read; records are not affected",
    "open transaction": "an undecided transaction holds its partition back",
    "pruned": "an undo document names records, and the catalog that knew more is lost",
    "reading": "objects hold offsets in several readings: nothing says which is the newest, or the newest is damaged",
    "registry": "the schema registry could not be captured; records are not affected, and the last capture is kept",
    "retention": "the cluster deleted records before they were read",
    "run": "the records of a run are there, but its point in time is lost with the catalog",
    "snapshot": "a snapshot is damaged: its run is not listed; or it is lost: --as-of cannot name its runs",
    "start": "a partition begins later than requested, because its log does",
    "stopped": "the work was stopped before its end",
    "storage": "the archive could not be written",
    "truncated": "the log was truncated below what was archived",
    "undecided": "a transaction has no marker in the archive, so its records count as committed",
    "unexplained": "offsets are missing, and nothing explains why",
    "unknown object": "no row and no table of contents says what an object holds",
    "unlisted": "an object holds records that the catalog lacks, and that do not continue the archive",
    "unproved": "another tool's archive does not record enough to prove that it is complete",
}
"""Every kind of notice, for the reference. Programs read `kind`; a new kind may come with any release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message to the user about a run. `exit_code` is its contribution to that of the command."""

    kind: str
    message: str
    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    hint: str | None = None
    exit_code: int = EXIT_DONE

    def __str__(self) -> str:
        where = "" if self.topic is None else self.topic
        where += "" if self.partition is None else f"-{self.partition}"
        offsets = "" if self.first_offset is None else f" offsets {self.first_offset} to {self.end_offset}"
        return f"{where}{offsets}: {self.message}" if where else self.message


class PromiseState(StrEnum):
    OK = "OK"
    WARN = "WARN"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One line: what was promised, whether it holds, and why."""

    name: str
    state: PromiseState
    text: str
    hint: str | None = None
    exit_code: int = EXIT_DONE
    """That of the whole command, if nothing is graver."""


def worst_exit_code(notices: Iterable[Notice]) -> int:
    """The exit code of the gravest notice: a failed write, then damage, then missing data."""
    return gravest(notice.exit_code for notice in notices)


def verdict_of(exit_code: int, *, nothing_selected: bool = False) -> str:
    """The verdict on a backup that ends with this code. `nothing_selected`: no topic was there to archive."""
    if nothing_selected and exit_code == EXIT_DONE:
        return "nothing selected"
    return _VERDICTS.get(exit_code, "incomplete")
