"""Notices: what a person should know about a run, and the exit code and the verdict that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERDICTS: Final = {EXIT_DONE: "complete", EXIT_FAILED: "failed", EXIT_CORRUPT: "corrupt data found"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a person should know. `exit_code` is what it makes of the command's."""

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


def worst_exit_code(notices: Iterable[Notice]) -> int:
    """Of the gravest notice: the archive could not be written, then damage, then what is missing."""
    codes = {notice.exit_code for notice in notices}
    return EXIT_FAILED if EXIT_FAILED in codes else max(codes, default=EXIT_DONE)


def verdict_of(exit_code: int) -> str:
    """What a backup that ends with this code is called."""
    return _VERDICTS.get(exit_code, "incomplete")
