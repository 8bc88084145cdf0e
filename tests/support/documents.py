"""Validates every document that a test prints with `--json` against the published schema of its command. Commands that
tests run in process are built once.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import typer.main
from jsonschema import Draft202012Validator

from maxbrod.cli import main, output
from maxbrod_reference.documents import DOCUMENTS, error_schema, schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BYTES_MAX = 200_000
"""A larger document has more of the same, and takes long to validate."""


@cache
def validators(command: str) -> dict[str, Any]:
    """By the name of the document: what this command may print."""
    mine = {each.name: schema_of(each) for each in DOCUMENTS if command in each.commands}
    return {name: Draft202012Validator(schema) for name, schema in {**mine, "error": error_schema()}.items()}


def command_of(arguments: Sequence[str]) -> str | None:
    """The longest known command that the arguments begin with; None: its documents have no schema."""
    known = {command for each in DOCUMENTS for command in each.commands}
    found = [" ".join(arguments[:length]) for length in (2, 1)]
    return next((each for each in found if each in known), None)


def faults(arguments: Sequence[str], text: str) -> list[str]:
    """Why the document fits none of the schemas of its command; empty if it fits one."""
    command = command_of(arguments)
    if command is None or len(text) > _BYTES_MAX:
        return []
    document = json.loads(text)
    found = {name: [each.message for each in one.iter_errors(document)] for name, one in validators(command).items()}
    if not all(found.values()):
        return []
    nearest = min(found, key=lambda name: len(found[name]))
    return [f"{nearest}: {each}" for each in found[nearest]]


@pytest.fixture(autouse=True, scope="session")
def commands_are_built_once() -> Iterator[None]:
    """typer builds all commands again for each call, which takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True, scope="session")
def documents_fit_their_schemas() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    running: list[list[str]] = [[]]
    run, printing = main._run, output.print_document

    def noted(arguments: list[str], *, as_json: bool) -> int:
        running[0] = arguments
        return run(arguments, as_json=as_json)

    def validated(text: str) -> None:
        wrong = faults(running[0], text)
        if wrong:
            pytest.fail(f"a document of {running[0][:2]} is not as its schema says: {wrong[:3]}")
        printing(text)

    patch.setattr(main, "_run", noted)
    patch.setattr(output, "print_document", validated)
    yield
    patch.undo()
