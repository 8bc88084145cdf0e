"""Records what the demo prints, and draws it as a picture that plays by itself: `maxbrod demo --record FILE.svg`.

The picture is one SVG file without scripts, fonts or other files, so that a README can show it. Lines appear in the
order and in the pace of the run, `SPEED` times as fast. A reader who asked for less motion sees the last state at once.
"""

from __future__ import annotations

import re
import time
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, RenderableType
from rich.terminal_theme import DIMMED_MONOKAI

from maxbrod.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


SPEED: Final = 8
_WIDTH: Final = 108
_STYLE: Final = (
    "@keyframes appear { from { opacity: 0 } to { opacity: 1 } }\n"
    "    @media (prefers-reduced-motion: no-preference) { .later { animation: appear 0.2s linear both } }\n"
)


def check_writable(path: Path) -> None:
    """UsageError if the picture could not be written when the demo has ended."""
    try:
        path.touch()
    except OSError as error:
        hint = "give a file in a folder that exists"
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=hint) from None


class Recording:
    """Prints to a console, and remembers what was printed and when."""

    def __init__(self) -> None:
        self.console: Final = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True, emoji=False)
        self._started = time.monotonic()
        self._appeared: list[float] = []

    def print(self, shown: Console, what: RenderableType, **options: Any) -> None:  # noqa: ANN401 - rich's own
        shown.print(what, **options)
        self.console.print(what, **options)
        self.mark()

    def mark(self) -> None:
        """Give the lines that were printed since the last call the current time."""
        lines = self.console.export_text(clear=False).count("\n")
        self._appeared += [time.monotonic() - self._started] * (lines - len(self._appeared))

    def save(self, path: Path, *, title: str) -> None:
        self.mark()
        picture = self.console.export_svg(title=title, theme=DIMMED_MONOKAI)
        # Rich names fonts on the network: the reader's own monospaced font does as well.
        picture = re.sub(r"@font-face \{.*?\n    \}\n", "", picture, flags=re.DOTALL)
        picture = picture.replace("<style>", f"<style>\n    {_STYLE}", 1)
        try:
            path.write_text(re.sub(r'<text ([^>]*-line-(\d+)\)")>', self._timed, picture), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write {path}: {error.strerror}", hint="give a file in a folder that exists"
            ) from None

    def _timed(self, found: re.Match[str]) -> str:
        """An element of a line, with the class and the delay that let it appear at its time."""
        attributes = re.sub(r'class="([^"]*)"', r'class="\1 later"', found[1], count=1)
        return f'<text {attributes} style="animation-delay: {self._appeared[int(found[2])] / SPEED:.2f}s">'
