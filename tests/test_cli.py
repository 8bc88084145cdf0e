from __future__ import annotations

import json
import subprocess
import sys

import pytest

from maxbrod import __version__
from maxbrod.cli import main
from maxbrod.cli.main import run
from maxbrod.errors import RefusedError


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
    monkeypatch.setattr(main, "app", refuse)


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


def test_looking_around_loads_neither_spark_nor_numba() -> None:
    code = (
        "import sys\nfrom maxbrod.cli.main import run\nrun(['--help'])\n"
        "sys.exit(bool({'pyspark', 'numba', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_completion_can_be_installed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    assert run(["--show-completion", "bash"]) == 0
    assert "_MAXBROD_COMPLETE" in capsys.readouterr().out
