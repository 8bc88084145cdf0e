"""What a deep check remembers while it is under way: which slices have proved sound since it began.

It is kept in the user's cache and not in the archive, because a check needs no right to write there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.cache import cache_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from maxbrod.catalog.rows import Segment


def slice_name(row: Segment) -> str:
    """Of a slice, for ever: objects never change."""
    return f"{row.path}\t{row.position}\t{row.bytes}\t{row.digest}"


@dataclass(frozen=True, slots=True)
class SoundSlices:
    """A file with a line for each slice."""

    file: Path

    @classmethod
    def of(cls, archive_url: str, patterns: Sequence[str]) -> SoundSlices:
        """Of the check of these topics of this archive."""
        key = "\n".join([archive_url, *sorted(patterns)])
        return cls(cache_dir() / "checks" / hashlib.sha256(key.encode()).hexdigest()[:32])

    def read(self) -> set[str]:
        if not self.file.exists():
            return set()
        text = self.file.read_text(encoding="utf-8")
        # A line without its end was being written when the check was killed.
        return set(text[: text.rfind("\n") + 1].splitlines())

    def add(self, rows: Iterable[Segment]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("a", encoding="utf-8") as out:
            out.writelines(f"{slice_name(row)}\n" for row in rows)

    def forget(self) -> set[str]:
        """From here on none is known."""
        self.file.unlink(missing_ok=True)
        return set()
