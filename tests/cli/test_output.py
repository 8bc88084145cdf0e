"""What is printed is what things are called: no name colours, hides or steers what a terminal shows."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import sys

import pytest
import typer
from rich.text import Text

from maxbrod.cli.output import agreed, console, print_error, print_line, safe_json, table
from maxbrod.errors import UsageError

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


def test_what_was_typed_before_a_question_does_not_answer_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(typer, "confirm", lambda *_, **__: bool(select.select([terminal], [], [], 0)[0]))
        keyboard.write(b"y\n")
        select.select([terminal], [], [])
        assert not agreed("Restore this?")


def test_colours_of_our_own_are_kept() -> None:
    written = io.StringIO()
    console(file=written, force_terminal=True, color_system="standard").print(Text("error", style="bold red"))
    assert "\x1b[1;31merror" in written.getvalue()


@pytest.mark.parametrize(
    "mark",
    ["\u202e", "\u2066", "\u2028", "\u2029", "\u200b", "\u200f", "\ufeff", "\u061c", "\U000e0041", "\x85", "\x00"],
)
def test_no_mark_that_turns_or_hides_letters_reaches_a_terminal(mark: str) -> None:
    written = io.StringIO()
    to = console(file=written, width=100, force_terminal=True)
    shown = table(f"Title{mark}", f"*na{mark}me", "other")
    shown.add_row(f"orders{mark}cod.exe", f"a{mark}b")
    to.print(shown)
    to.print(Text(f"group {mark}"), soft_wrap=True)
    assert mark not in written.getvalue()
    assert "orders\N{REPLACEMENT CHARACTER}cod.exe" in written.getvalue()
    # JSON says the same with an escape, and is the same document.
    document = json.dumps({"group": f"a{mark}b"}, ensure_ascii=False)
    assert mark not in safe_json(document)
    assert json.loads(safe_json(document)) == json.loads(document)


def test_a_name_does_not_pass_for_a_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("group x\ncomplete: everything is restored")
    print_error(UsageError("no group 'x\nerror: none'"), as_json=False)
    shown = capsys.readouterr()
    assert [line for line in (shown.out + shown.err).splitlines() if not line.startswith(" ")] == [
        "group x",
        "error: no group 'x",
    ]


LONG = "orders" + "x" * 237 + "-eu.v1"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_long_name_takes_few_lines_of_a_terminal_and_keeps_its_ends(width: int) -> None:
    written = io.StringIO()
    to = console(file=written, width=width, force_terminal=True, color_system=None)
    shown = table("", "*topic", ">parts", ">records", "from", "to", ">stored", ">gaps")
    shown.add_row(LONG, "3", "1,000", "2026-11-01 10:10", "2026-11-01 10:10", "10 MB", "0")
    shown.add_row("a-name-of-usual-length.v1", "3", "1,000", "2026-11-01 10:10", "2026-11-01 10:10", "10 MB", "0")
    to.print(shown)
    lines = written.getvalue().splitlines()
    assert len(lines) <= 2 + 3 + 2
    assert all(len(line) <= width for line in lines)
    folded = "".join(line.split(" ")[0] for line in lines[2:])
    assert folded.startswith("orders")
    assert "-eu.v1" in folded
    assert folded.endswith("a-name-of-usual-length.v1")


def test_a_pipe_gets_every_name_whole_and_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    written = io.StringIO()
    shown = table("", "*topic", "*into", ">records")
    shown.add_row(LONG, f"copy-{LONG}", "1,000")
    console(file=written).print(shown)
    assert [line.split() for line in written.getvalue().splitlines()[-1:]] == [[LONG, f"copy-{LONG}", "1,000"]]
