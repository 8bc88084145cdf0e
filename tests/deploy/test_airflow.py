"""The example for Airflow, which is not installed here: its tasks obey exit codes and documents."""

from __future__ import annotations

import ast
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import typer

from maxbrod.cli.main import command_line

DAG = Path(__file__).parents[2] / "deploy/airflow/maxbrod_dag.py"


class FailedOnceError(Exception):
    pass


class FailedForGoodError(FailedOnceError):
    pass


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The module, with as much of Airflow as it names. Nothing of a task is run."""

    def decorate(function: Any = None, /, **_: Any) -> Any:
        return (lambda _function: lambda *_, **__: None) if function is None else (lambda *_, **__: None)

    airflow: dict[str, dict[str, Any]] = {
        "airflow": {},
        "airflow.sdk": {"dag": decorate, "task": decorate},
        "airflow.exceptions": {"AirflowException": FailedOnceError, "AirflowFailException": FailedForGoodError},
    }
    for name, contents in airflow.items():
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    names: dict[str, Any] = {}
    exec(compile(DAG.read_text(), str(DAG), "exec"), names)
    return names


def program(folder: Path, code: int, document: object) -> str:
    """A command that ends like this."""
    file = folder / "maxbrod"
    file.write_text(f"#!/bin/sh\ncat <<'E'\n{json.dumps(document)}\nE\nexit {code}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (1, FailedOnceError),
        (2, FailedForGoodError),
        (3, FailedOnceError),
        (4, FailedForGoodError),
        (5, FailedForGoodError),
    ],
)
def test_a_task_is_tried_again_only_if_that_may_help(
    example: dict[str, Any], tmp_path: Path, code: int, raised: type[Exception]
) -> None:
    example["PROGRAM"] = program(tmp_path, code, {"message": "the broker is gone"})
    with pytest.raises(raised, match="the broker is gone") as caught:
        example["run_maxbrod"]("backup")
    assert type(caught.value) is raised


def test_the_document_of_a_command_is_what_a_task_gets(example: dict[str, Any], tmp_path: Path) -> None:
    example["PROGRAM"] = program(tmp_path, 0, {"run_id": "r", "recovery_point_ms": 1})
    assert example["run_maxbrod"]("backup") == {"run_id": "r", "recovery_point_ms": 1}


def test_its_commands_are_ones_that_maxbrod_takes() -> None:
    commands = typer.main.get_command(command_line()).commands  # type: ignore[attr-defined]
    called = [
        [word.value for word in node.args if isinstance(word, ast.Constant)]
        for node in ast.walk(ast.parse(DAG.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run_maxbrod"
    ]
    assert [words[0] for words in called] == ["backup", "check", "drill"]
    for verb, *words in called:
        commands[verb].make_context(verb, [*words, "--config", "x", "--json"])
