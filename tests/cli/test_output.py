"""What is printed is what things are called: no name colours, hides or steers what a terminal shows."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from maxbrod.cli.output import console, table

HOSTILE = "\x1b]0;title\x07\x1b[2J[red]group[/red]:key:\x9b31m\rend"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_name_never_steers_the_terminal_nor_loses_a_letter(*, terminal: bool) -> None:
    written = io.StringIO()
    to = console(file=written, width=100, force_terminal=terminal, color_system="standard" if terminal else None)
    shown = table("", "group")
    shown.add_row(HOSTILE)
    to.print(shown)
    to.print(Text.assemble(("group: ", "bold red"), HOSTILE), soft_wrap=True)
    to.print(HOSTILE, soft_wrap=True, highlight=False)
    text = written.getvalue()
    assert text.count("[red]group[/red]:key:") == 3
    assert text.count("end") == 3
    for steering in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\r"):
        assert steering not in text


def test_colours_of_our_own_are_kept() -> None:
    written = io.StringIO()
    console(file=written, force_terminal=True, color_system="standard").print(Text("error", style="bold red"))
    assert "\x1b[1;31merror" in written.getvalue()
