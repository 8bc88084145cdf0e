from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from maxbrod import __version__
from maxbrod.catalog.catalog import Catalog
from maxbrod.cli import main
from maxbrod.cli.log import warnings_on_stderr
from maxbrod.cli.main import run
from maxbrod.cli.output import console, print_json, print_line
from maxbrod.errors import RefusedError
from maxbrod.storage.stores import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"maxbrod {__version__}\n"


def test_it_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "maxbrod", "--version"], capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == (f"maxbrod {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["nonsense"], ["bench", "codec", "--records", "many"], ["sandbox", "--what"]])
def test_bad_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err


def test_no_help_has_line_ends_of_its_own() -> None:
    """typer keeps them, and they fit the width of no terminal."""
    commands = [get_command(main.command_line())]
    for each in commands:
        commands += getattr(each, "commands", {}).values()
        lines = [paragraph for paragraph in (each.help or "").split("\n\n") if "\n" in paragraph]
        assert not lines, each.name
    assert len(commands) > 30


def test_a_switch_does_not_seem_to_take_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.partition("│ --json")[2].split()[0] == "Print"
    assert "[ARCHIVE]..." in shown
    assert "[[" not in shown


def test_values_of_options_are_named_by_nouns_and_not_by_types(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [
        ["sandbox", "up"],
        ["sandbox", "kill"],
        ["demo"],
        ["doctor"],
        ["replicate", "status"],
        ["help"],
        ["ls"],
        [],
    ]
    for words in groups:
        assert run([*words, "--help"]) == 0
        assert not re.findall(r"<\w+.*?>", capsys.readouterr().out), words


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["bakcup"], "there is no command bakcup", "did you mean backup? see 'maxbrod --help'"),
        (["groups", "plam"], "there is no command plam", "did you mean plan? see 'maxbrod groups --help'"),
        (["backup", "--topik", "x"], "there is no option --topik", "did you mean --topic? see 'maxbrod backup --help'"),
        (
            ["restore", "orders"],
            "unexpected argument orders",
            "name a topic with --topic orders; see 'maxbrod restore --help'",
        ),
        (["backup", "--archive"], "--archive needs a value", "see 'maxbrod --help'"),
    ],
)
def test_a_mistyped_command_line_is_answered_with_the_nearest_right_one(
    words: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert capsys.readouterr().err.splitlines() == [f"error: {message}", f"hint:  {hint}"]


@pytest.mark.parametrize("verb", ["show", "ls", "check"])
def test_topics_may_be_named_with_the_same_flag_by_every_verb(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Catalog.create(open_storage(str(tmp_path)))
    assert run([verb, "--archive", str(tmp_path), "--topic", "orders"]) == 2
    assert "the archive has no topic 'orders'" in capsys.readouterr().err


def test_lines_on_a_terminal_end_between_words_and_words_stay_whole() -> None:
    url = "s3://bucket/" + "long/" * 10
    text = f"  storage: this user may list and create in {url} and nowhere else at all"
    for terminal, lines in (
        (True, ["  storage: this user may list and create", "    in", f"    {url}", "    and nowhere else at all"]),
        (False, [text]),
    ):
        written = io.StringIO()
        screen = console(file=written, width=40, force_terminal=terminal, color_system=None)
        screen.print(text, soft_wrap=True)
        assert written.getvalue().splitlines() == lines


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_tells_the_exit_codes_and_verbs(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([flag]) == 0
    shown = capsys.readouterr().out
    for word in ("ls", "show", "check", "gc", "sandbox", "demo", "bench", "5 refused for safety"):
        assert word in shown


def refuse(*_: object, **__: object) -> None:
    raise RefusedError("target [is] not empty", object_name="orders", offset=7, hint="choose another")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "command_line", lambda _verb: refuse)


@pytest.mark.usefixtures("refusing")
def test_an_error_is_one_message_a_hint_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 5
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "error: target [is] not empty (in orders, at offset 7)",
        "hint:  choose another",
    ]


@pytest.mark.usefixtures("refusing")
def test_an_error_is_json_where_json_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sandbox", "status", "--json"]) == 5
    assert json.loads(capsys.readouterr().out) == {
        "error": "RefusedError",
        "message": "target [is] not empty",
        "exit_code": 5,
        "retryable": False,
        "object_name": "orders",
        "offset": 7,
        "hint": "choose another",
    }


def verbs(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Every command that takes `--json`, as words."""
    command = command or get_command(main.command_line())
    if any("--json" in each.opts for each in command.params):
        yield list(path)
    for name, each in getattr(command, "commands", {}).items():
        yield from verbs(each, (*path, name))


def documents(text: str) -> list[Any]:
    """All that stand one after another."""
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


def test_every_verb_but_those_that_only_group_others_takes_json() -> None:
    assert len(list(verbs())) > 25


@pytest.mark.parametrize("verb", list(verbs()), ids=" ".join)
def test_bad_usage_is_one_json_document_where_json_was_asked(
    verb: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb, "--json", "--no-such-option"]) == 2
    told = capsys.readouterr()
    (document,) = documents(told.out)
    assert (document["error"], document["exit_code"], told.err) == ("UsageError", 2, "")
    assert document["hint"].endswith(f"see 'maxbrod {' '.join(verb)} --help'")


@pytest.mark.parametrize(
    "arguments", [["--json"], ["nonsense", "--json"], ["drill", "verify", "--json"], ["ls", "--json", "--config"]]
)
def test_a_command_that_is_none_is_one_json_document(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert [each["error"] for each in documents(capsys.readouterr().out)] == ["UsageError"]


@pytest.mark.parametrize(
    ("printed", "ending", "code"),
    [
        (False, RuntimeError("a bug"), 1),
        (False, typer.Abort(), 5),
        (True, typer.Exit(3), 3),
        (True, RefusedError("not now"), 5),
    ],
    ids=repr,
)
def test_however_a_command_ends_there_is_one_json_document(
    printed: bool,
    ending: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def work(*_: object, **__: object) -> None:
        print_line("for people")
        if printed:
            print_json({"error": "any", "message": "", "exit_code": code, "retryable": False})
        raise ending

    monkeypatch.setattr("maxbrod.cli.commands.call_of", work)
    assert run(["ls", "--json"]) == code
    told = capsys.readouterr()
    assert [each["exit_code"] for each in documents(told.out)] == [code]
    assert "for people" in told.err
    # Where a document has been printed, an error after it is told to people.
    assert ("error: not now" in told.err) == isinstance(ending, RefusedError)
    run(["--version"])
    assert capsys.readouterr().out == f"maxbrod {__version__}\n"


def test_the_stacks_that_py4j_logs_are_not_shown_and_other_warnings_are(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings_on_stderr():
        logging.getLogger("py4j.clientserver").error("a stack")
        logging.getLogger("some.library").warning("look at this")
        record = logging.LogRecord("root", logging.ERROR, "/x/py4j/java_gateway.py", 1, "another", (), None)
        logging.getLogger().handle(record)
    assert capsys.readouterr().err == "look at this\n"


def test_looking_around_loads_neither_spark_nor_numba() -> None:
    code = (
        "import sys\nfrom maxbrod.cli.main import run\nrun(['--help'])\n"
        "sys.exit(bool({'pyspark', 'numba', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_command_without_spark_loads_no_pandas(tmp_path: Path) -> None:
    Catalog.create(open_storage(str(tmp_path)))
    code = (
        f"import sys\nsys.argv = ['maxbrod', 'ls', '--archive', {str(tmp_path)!r}]\n"
        "from maxbrod.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as ending:\n    sys.exit(ending.code or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    # The variable counts when the command is built, and the tests keep the one that they have built.
    build = typer.main.get_command
    monkeypatch.setattr(typer.main, "get_command", getattr(build, "__wrapped__", build))
    assert run(["--show-completion", "bash"]) == 0
    assert "_MAXBROD_COMPLETE" in capsys.readouterr().out
