"""What is known of the keys of an archive, without any secret."""

from __future__ import annotations

from dataclasses import dataclass

from maxbrod.errors import EXIT_DONE
from maxbrod.work.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    id: str
    label: str
    kind: str
    added_at_ms: int
    at_hand: bool
    """True for the key that this command opened the archive with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """The files of a new key."""

    file: str
    public_file: str
    id: str | None = None
    public_key: str | None = None
    """The text of the public half; None of a key that signs, whose file is in PEM form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """One change of the keys, as the archive's documents tell it."""

    number: int
    at_ms: int
    change: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysReport(Report):
    archive: str
    keys: tuple[KnownKey, ...]
    epochs: int
    """How often the archive's own keys were made: once, and with every rotation or removal."""
    epoch_since_ms: int
    reads_records: bool
    """False if the key at hand is a public one."""
    changes: tuple[KeyChange, ...]
    """The oldest first."""
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_DONE
