"""Notices of a run to the user, and the exit code and verdict that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable

_VERDICTS: Final = {EXIT_DONE: "complete", EXIT_FAILED: "failed", EXIT_CORRUPT: "corrupt data found"}


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


def worst_exit_code(notices: Iterable[Notice]) -> int:
    """The exit code of the gravest notice: a failed write, then damage, then missing data."""
    codes = {notice.exit_code for notice in notices}
    return EXIT_FAILED if EXIT_FAILED in codes else max(codes, default=EXIT_DONE)


def verdict_of(exit_code: int) -> str:
    """The verdict on a backup that ends with this code."""
    return _VERDICTS.get(exit_code, "incomplete")
