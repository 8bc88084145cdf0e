"""What a deep check remembers while it is under way: which slices have proved sound since it began.

It is kept in the user's cache and not in the archive, because a check needs no right to write there.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maxbrod.cache import cache_dir
from maxbrod.private_files import make_private, opened

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
        try:
            with opened(self.file, create=False) as file, os.fdopen(os.dup(file), encoding="utf-8") as found:
                text = found.read()
        except FileNotFoundError:
            return set()
        # A line without its end was being written when the check was killed.
        return set(text[: text.rfind("\n") + 1].splitlines())

    def add(self, rows: Iterable[Segment]) -> None:
        make_private(self.file.parent)
        text = "".join(f"{slice_name(row)}\n" for row in rows)
        with opened(self.file, create=True) as file, os.fdopen(os.dup(file), "a", encoding="utf-8") as out:
            out.seek(0, os.SEEK_END)
            out.write(text)

    def forget(self) -> set[str]:
        """From here on none is known."""
        self.file.unlink(missing_ok=True)
        return set()
