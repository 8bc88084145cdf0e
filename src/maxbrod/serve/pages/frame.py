"""What all pages share: addresses, the pages of an archive, states in words, and pages of long lists. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import urlencode

from maxbrod.errors import EXIT_CORRUPT, EXIT_DONE, EXIT_FAILED, EXIT_INCOMPLETE, EXIT_REFUSED
from maxbrod.notices import Promise, PromiseState

T = TypeVar("T")

SECTIONS: Final = (
    ("", "Overview"),
    ("topics", "Topics"),
    ("runs", "Runs"),
    ("jobs", "Jobs"),
    ("restore", "Restore"),
    ("retention", "Retention"),
    ("drills", "Drills"),
    ("replication", "Replication"),
    ("growth", "Growth"),
    ("holds", "Holds"),
)
"""The pages of an archive, in the order of the menu: the last part of their address, and their name."""

STATES: Final = {
    PromiseState.OK: ("good", "OK"),
    PromiseState.WARN: ("warn", "Warning"),
    PromiseState.FAILED: ("bad", "Failed"),
}
"""The class by which a state is coloured, and the word that says it without colour."""
UNKNOWN: Final = ("none", "Not checked yet")
_ENDINGS: Final = {
    EXIT_DONE: ("good", "complete"),
    EXIT_FAILED: ("bad", "failed"),
    EXIT_INCOMPLETE: ("warn", "incomplete"),
    EXIT_CORRUPT: ("bad", "corrupt data found"),
    EXIT_REFUSED: ("bad", "refused"),
}


def link(slug: str, section: str = "", **parameters: object) -> str:
    """The address of a page of an archive. Names of topics are parameters: in a path, `..` would mean something."""
    given = {name: value for name, value in parameters.items() if value is not None and value not in {"", False}}
    path = f"/archives/{slug}/{section}" if section else f"/archives/{slug}"
    return f"{path}?{urlencode(given)}" if given else path


def ending_state(exit_code: int | None) -> tuple[str, str]:
    """The class and the word for the end of a run."""
    return ("good", "committed") if exit_code is None else _ENDINGS.get(exit_code, ("bad", f"ended with {exit_code}"))


_GRAVITY: Final = {PromiseState.OK: 0, PromiseState.WARN: 1, PromiseState.FAILED: 2}


def gravest_promise(promises: Sequence[Promise]) -> Promise | None:
    """The first of those that are broken worst; None: there are no promises."""
    return max(promises, key=lambda promise: _GRAVITY[promise.state], default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """One page of a long list."""

    items: Sequence[T]
    total: int
    first: int
    size: int

    @property
    def last(self) -> int:
        return min(self.first + self.size, self.total)

    @property
    def previous(self) -> int | None:
        return max(self.first - self.size, 0) if self.first > 0 else None

    @property
    def following(self) -> int | None:
        return self.last if self.last < self.total else None


def listed(items: Sequence[T], first: int, size: int) -> Listed[T]:
    """Cut out one page. A number beyond the end shows the last page."""
    first = max(min(first, len(items) - 1), 0)
    return Listed(items=items[first : first + size], total=len(items), first=first, size=size)
